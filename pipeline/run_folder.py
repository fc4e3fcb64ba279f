"""The folder of a run: what a run may write over, one run at a time, and what is cleared for the next."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline import UserError
from pipeline.folders import SUMS
from pipeline.tracking import is_main, wandb_mode

# What a run writes: OVERWRITE=1 removes these and nothing else.
RUN_FILES = (
    *("config.yaml", "metrics.json", "metrics.csv", "lineage.json", "checkpoints", "wandb", "encoder", "model"),
    *("predictions.jsonl", "curves.png", "confusion.png", "types.png", "mix.png", "shots.png"),
    *("data.txt", "receipt.txt", "examples.md", "not_finite.json", "profile.txt", "trace.json"),
)
SIGN = "lineage.json"  # of a folder that a run made: the first that it writes, the last that is cleared
LOCKS: list[FileLock] = []


def check_run_folder(out: Path, options: argparse.Namespace, *, resumes: bool = True) -> None:
    """Refuses to write over anything; makes sure that the folder can be written, and by this process alone.

    Args:
        resumes: whether a run of this kind can be gone on with.
    """
    if not is_main():
        return
    wandb_mode()  # refuses one that there is not
    if (out / SUMS).exists():
        raise UserError(f"{out} is the folder of an encoder or model, and a run would break it; choose another OUT=.")
    foreign = [name for name in RUN_FILES if (out / name).exists()]
    if foreign and SIGN not in foreign:
        raise UserError(f"{out} holds {foreign[0]} but no run, and a run would clear it; choose another OUT=.")
    if options.overwrite and options.resume:
        raise UserError("RESUME goes on with a run, OVERWRITE starts it anew: set one of them.")
    if not options.overwrite and not options.resume:
        for sign, state in (
            ("metrics.json", "a finished run"),
            ("checkpoints/last.ckpt", "an interrupted run"),
            ("checkpoints/previous.ckpt", "an interrupted run"),
        ):
            if (out / sign).exists():
                go_on = "RESUME=1 to go on with it, " if resumes else ""
                raise UserError(f"{out} holds {state}; set {go_on}OVERWRITE=1 to start anew, or another OUT=.")
    LOCKS.append(locked(out, out / ".lock"))  # until the verb or the process ends, however it does


def locked(out: Path, file: Path) -> FileLock:
    """The lock of a run folder, taken; it goes with the process that holds it.

    Raises:
        UserError: another process has it, or it cannot be written.
    """
    lock = FileLock(file, is_singleton=True)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(f"Another run is writing into {out}; wait for it, or choose another OUT=.") from None
    except OSError as error:
        raise UserError(f"The run folder {out} cannot be written: {error.strerror}.") from None
    return lock


def release() -> None:
    """Gives back the run folders that this process has written into."""
    while LOCKS:
        LOCKS.pop().release(force=True)


def clear(out: Path, *, uses: Path | None = None) -> None:
    """Removes what an earlier run left in a folder.

    Raises:
        UserError: what the new run uses is in there.
    """
    if uses is not None and out.resolve() in uses.resolve().parents:
        raise UserError(f"{uses} lies in the run folder {out}, which would be cleared; choose another OUT=.")
    for name in sorted(RUN_FILES, key=SIGN.__eq__):
        path = out / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
