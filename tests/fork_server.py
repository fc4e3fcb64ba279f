"""`python -m pipeline` as a process of its own, without the seconds that imports take: forks of one that has imported.

`start` begins a server. At the first command it imports the libraries, not the pipeline, and nothing else: it has no
threads and has computed nothing. `python()` is a program that takes the place of `sys.executable`: it has the server
fork, and is to its caller what the fork is (streams, folder, environment, signals, exit status). Where the environment
has other values of what Python or a library reads when it starts (`AT_START`), the fork becomes a new Python.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
AT_START = (
    "PYTHON",
    "LC_",
    "LANG",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "HF_",
    "TORCH_",
    "MPLCONFIGDIR",
    "LD_",
    "HOME",
    "SLURM_",
)
FREE = ("PYTHONPATH",)
LIBRARIES = ("multiprocessing.spawn", "lightning.pytorch.cli", "matplotlib.backends.backend_agg", "matplotlib.pyplot")
LIBRARIES += ("sklearn.linear_model", "sklearn.feature_extraction.text", "tokenizers", "wandb")
LIBRARIES += ("wandb.sdk.launch.inputs.internal",)  # 1.7 s, which wandb.init imports
FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}
PROGRAM = """\
#!{python} -IS
# Has the server at a socket run a command, and is to its caller what that is.
import array, json, os, signal, socket, sys
forwarded = {{signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP}}
signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
server = socket.socket(socket.AF_UNIX)
try:
    if sys.argv[1] not in ("-m", "-c"):
        raise OSError
    server.connect({address!r})
except OSError:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
request = json.dumps([sys.argv[0], sys.argv[1:], os.getcwd(), os.umask(0), dict(os.environ)]).encode()
server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
server.sendall(request)
answers = server.makefile("r")
process = int(answers.readline())
for number in forwarded:
    signal.signal(number, lambda number, frame: os.kill(process, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, forwarded)
status = int(answers.readline())
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
os._exit(status)
"""

MAIN = str(os.getpid())
_program = sys.executable


def python() -> str:
    """A program for `[python(), "-m", "pipeline", ...]` and `[python(), "-c", ...]`."""
    return _program


def use(program: str) -> None:
    """Makes `python()` the program of a server that another process has started."""
    global _program
    _program = program


def start(folder: Path) -> subprocess.Popen[bytes] | None:
    """A server that ends with this process, or when its standard input is closed; its program is `folder`/python."""
    if not hasattr(os, "pidfd_open"):  # needs Linux
        return None
    address = str(folder / "socket")
    (folder / "python").write_text(PROGRAM.format(python=sys.executable, address=address))
    (folder / "python").chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in FREE}
    server = subprocess.Popen([sys.executable, __file__, address], stdin=subprocess.PIPE, env=environment)
    use(str(folder / "python"))
    while not Path(address).exists() and server.poll() is None:
        select.select([], [], [], 0.005)
    return server


# ---------------------------------------------------------------------- the server


def import_libraries() -> None:
    """What most commands import; the threads of a library would not be in a fork."""
    for name in LIBRARIES:
        importlib.import_module(name)
    names = {file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm") if file.parent.name != MAIN}
    if names - {"jemalloc_bg_thd"}:  # of pyarrow; it starts anew in a fork
        raise RuntimeError(f"a library has started threads at its import: {names}")


def serve(address: str) -> list[Any]:
    """Forks for each request; returns in the forks alone, with what is to be run."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(64)
    waiting: dict[int, tuple[int, socket.socket]] = {}  # file descriptor of a process -> its id, and who waits for it
    callers: dict[int, int] = {}  # file descriptor of a caller's socket -> the process
    ready = False
    while True:
        for file in select.select([0, listening, *waiting, *callers], [], [])[0]:
            if file == 0:
                sys.exit()
            if file is listening:
                caller = listening.accept()[0]
                streams, request = received(caller)
                if not ready:
                    import_libraries()
                    ready = True
                signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # Python forgets those of before its fork
                process = os.fork()
                if process == 0:
                    for other in (listening, caller, *(caller for _, caller in waiting.values())):
                        other.close()
                    for number in waiting:
                        os.close(number)
                    for number, stream in enumerate(streams):
                        os.dup2(stream, number)
                        os.close(stream)
                    return request
                for stream in streams:
                    os.close(stream)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
                waiting[os.pidfd_open(process)] = (process, caller)
                callers[caller.fileno()] = process
                caller.sendall(f"{process}\n".encode())
            elif file in callers:  # killed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(callers.pop(file), signal.SIGKILL)
            elif file in waiting:
                process, caller = waiting.pop(file)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                callers.pop(caller.fileno(), None)
                with contextlib.suppress(BrokenPipeError):
                    caller.sendall(f"{status}\n".encode())
                caller.close()
                os.close(file)


def received(caller: socket.socket) -> tuple[list[int], Any]:
    """Standard streams and request of a caller."""
    streams = array.array("i")
    size, parts, *_ = caller.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(parts[0][2])
    content = b""
    while len(content) < int.from_bytes(size, "big"):
        content += caller.recv(1 << 20)
    return streams.tolist(), json.loads(content)


# ---------------------------------------------------------------------- a fork


def at_start(environment: Any) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START) and name not in FREE}


def become(program: str, args: list[str], folder: str, umask: int, environment: dict[str, str]) -> None:
    """Makes this process one of `python ARGS` that has just begun."""
    os.chdir(folder)
    os.umask(umask)
    real, anew = sys.executable, at_start(environment) != at_start(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    if anew:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        os.execv(real, [real, *args])
    sys.executable = program  # for processes that the command starts
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=sys.stdin.encoding, errors=sys.stdin.errors)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = written(sys.stdout), written(sys.stderr)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder if args[0] == "-m" else "", *(path for path in paths if path), str(REPOSITORY)]
    sys.argv = [args[0], *args[2:]]
    sys.modules["__main__"] = types.ModuleType("__main__")
    what_libraries_read_of_a_process()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)


def written(stream: Any) -> io.TextIOWrapper:
    """Standard output or error as Python makes it; what the server had made may hold something."""
    raw = io.FileIO(stream.fileno(), "w")
    options = {"encoding": stream.encoding, "errors": stream.errors, "line_buffering": stream.line_buffering}
    options["write_through"] = stream.write_through  # of PYTHONUNBUFFERED
    return io.TextIOWrapper(raw if stream.write_through else io.BufferedWriter(raw), **options)  # type: ignore[arg-type]


def what_libraries_read_of_a_process() -> None:
    """What is set by the process in which a library is imported."""
    import numpy
    from lightning.fabric.utilities import rank_zero

    numpy.random.seed()  # noqa: NPY002
    rank_zero.rank_zero_only.rank = rank_zero._get_rank() or 0


def end_of(kind: str, what: str) -> int:
    """Runs `-m MODULE` or `-c CODE`; returns its exit status."""
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def leave(status: int) -> None:
    """Ends as Python would, without taking down the modules, which costs a second here."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if path != str(REPOSITORY / "tests")]
    program, args, *surroundings = serve(sys.argv[1])
    become(program, args, *surroundings)
    leave(end_of(*args[:2]))
