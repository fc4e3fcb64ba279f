"""`python -m pipeline COMMAND ...`: exit status 0 done, 2 the user's mistake, 130 interrupted."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from pipeline.cli import parser as cli
from pipeline.console import typed
from pipeline.console.messages import Level, level
from pipeline.errors import Interrupted, UserError, is_out_of_memory

# Errors of the system about a wrong path, or a file of another kind.
WRONG_PLACE = {errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
# What libraries and the system say where nodes do not meet, or threads run out.
NODES = ("clients joined", "client socket has timed out")
THREADS = ("can't start new thread", "ThreadPoolBuildError", "Resource temporarily unavailable")
SPINS = "10000"  # of a thread that waits, before it sleeps (GOMP_SPINCOUNT)


class Pipe(io.FileIO):
    """Standard output or error that may be closed by its reader, as by `| head`: the rest is written to nowhere."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return super().write(data)


def outlasting(stream: Any) -> Any:
    """A standard stream that survives its reader; another stream unchanged."""
    try:
        raw = Pipe(stream.fileno(), "w", closefd=False)
    except (AttributeError, OSError, ValueError):
        return stream
    stream.flush()
    options = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": stream.line_buffering}
    options["write_through"] = stream.write_through  # of python -u
    return io.TextIOWrapper(raw if stream.write_through else io.BufferedWriter(raw), **options)


def main() -> int:
    args = sys.argv[1:]
    if not args:
        cli.parser().print_help()
        say("Error: name a command, one of those above.")
        return 2
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    let_threads_give_way(os.environ)
    for name in ("SIGTERM", "SIGUSR1"):  # as Ctrl-C; training has its own handlers, and Windows has no SIGUSR1
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.default_int_handler)
    try:
        cli.main(args)
    except UserError as error:
        if level() == Level.VERBOSE:
            traceback.print_exc()
        say(f"Error: {error}")
        return 2
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        say("Interrupted.")  # Lightning's way to say so, outside of training steps
        return 130
    except Interrupted as error:
        say(f"Interrupted; a checkpoint was saved, and {str(error) or typed.flag('resume')} continues from it.")
        return 130
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except BaseException as error:
        plain = in_plain_words(error, args)
        if plain is None:
            raise
        say(f"Error: {plain}")
        return 2
    return 0


def say(message: str) -> None:
    """A last message on standard error, on a new line, below progress bars that are still open."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()
    print(message, file=sys.stderr)


def let_threads_give_way(environment: MutableMapping[str, str]) -> None:
    """Sets how long a thread of OpenMP spins before it sleeps, unless the user has; before torch is imported.

    Threads wait for each other many times in a step. By default they spin for some milliseconds, and beside another
    busy process they keep the thread that they wait for from its core (docs/benchmarks.md, "Beside other work").
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = SPINS


def in_plain_words(error: BaseException, args: list[str]) -> str | None:
    """What the user can do about an error of the system or of Weights & Biases; None: a bug of the program."""
    from pipeline.storage.atomic import first_line, is_disk_full, reason

    if isinstance(error, (MemoryError, RuntimeError, OSError)) or type(error).__name__ == "PanicException":
        message = repr(error)
        if is_out_of_memory(error):
            return "Memory ran out. Lower the sizes of network, vocabulary or batch, or end other programs."
        if any(sign in message for sign in THREADS) and getattr(error, "filename", None) is None:
            return "No further thread or process can be started. Raise the limit (ulimit -u), or end other programs."
        if any(sign in message for sign in NODES):
            first = first_line(error)
            return f"Not all nodes of the run could be reached ({first}). PIPELINE_NODE_TIMEOUT=MINUTES waits longer."
    if isinstance(error, OSError):
        name = str(error.filename or "")
        given = bool(name) and is_given(Path(name), args)  # what else is not there may be ours to make
        if not (is_disk_full(error) or error.errno in WRONG_PLACE or (error.errno == errno.ENOENT and given)):
            return None
        what = "written" if is_disk_full(error) or error.errno == errno.EEXIST else "read or written"
        return f"{short_place(name) or 'A file'} could not be {what}: {reason(error)}."
    if type(error).__module__.partition(".")[0] == "wandb":
        return (
            f"Weights & Biases says: {' '.join(str(error).split())}\n"
            f"WANDB_MODE=offline does without it, and `{typed.command('sync')}` uploads later."
        )
    return None


def is_given(path: Path, args: list[str]) -> bool:
    """Whether a path is among the values of arguments, or above or below one of them."""
    values = [value for arg in args for value in (arg, arg.partition("=")[2])]
    places = [Path(value) for value in values if value.strip("./") and not value.startswith("-")]
    return any(path == place or path in place.parents or place in path.parents for place in places)


def short_place(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:60]}... ({len(name)} characters)"


def command() -> int:
    """`main` as a program whose output may be closed before its end (`| head`)."""
    sys.stderr = outlasting(sys.stderr)
    if sys.argv[1:2] != ["predict"]:  # which has nothing else to do, and ends where nobody reads on
        sys.stdout = outlasting(sys.stdout)
    return main()


if __name__ == "__main__":
    sys.exit(command())
