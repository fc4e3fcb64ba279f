"""Run folders: overwrite protection, locking, and clearing of an earlier run's files."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from filelock import FileLock

from pipeline.console import typed
from pipeline.console.rank import is_main
from pipeline.data.files import root_of
from pipeline.errors import UserError
from pipeline.storage.atomic import reason
from pipeline.storage.checksums import SUMS
from pipeline.storage.folders import remove
from pipeline.storage.locks import Held, lock
from pipeline.storage.paths import path_of
from pipeline.tracking import lineage, words_seen
from pipeline.tracking.wandb_environment import check_environment, end_open_run
from tasks.base import kinds

# The files of a run; OVERWRITE=1 removes these, the plots of a user's own kind of task, and nothing else.
RUN_FILES = (
    *("config.yaml", "metrics.json", "metrics.csv", "lineage.json", "checkpoints", "wandb", "encoder", "model"),
    words_seen.FOLDER,
    *("predictions.jsonl", "splits.csv", "curves.png", "mix.png", "shots.png", "characters.png"),
    *sorted({f"{name}.png" for kind in kinds().values() for name in kind.pictures}),  # kinds share some
    *("data.txt", "load_report.txt", "receipt.txt", "examples.md", "not_finite.json", "profile.txt", "trace.json"),
    *("command.txt", "corpus.json", "model.arpa.gz", "loggers", "report.html", "report.md", "report.tex"),
)
MARKER = lineage.FILE  # marks a run folder: the first file that is written, the last that is cleared
FINISHED, INTERRUPTED = "a finished run", "an interrupted run"
STATES = {  # files worth keeping, and what a folder with them holds
    **dict.fromkeys(("metrics.json", "encoder", "model", "predictions.jsonl"), FINISHED),
    **dict.fromkeys(("checkpoints/last.ckpt", "checkpoints/previous.ckpt"), INTERRUPTED),
}
MAKERS = {"encoder": "pretrain", "model": "finetune", "predictions.jsonl": "zeroshot"}  # stages, by their products
ASIDE, LEAVING = ".before", ".leaving"  # cleared files, until the new run has begun; and while they are removed
SEALED = (SUMS, "config.json", "model.safetensors")  # of the folder of an encoder or model; sums alone, others have too
LONGEST_NAME = 200  # bytes, of a file in a run folder
LOCK = ".lock"
LOCKS: dict[Path, FileLock] = {}  # of run folders, held until the command or the process ends, however it does
NEW: dict[Path, list[Path]] = {}  # run folder -> folders that were made for its lock, from the lowest up


def files_of(folder: Path) -> list[str]:
    """The names that the files of a run in a folder can have."""
    pictures = []
    with contextlib.suppress(UserError):  # damaged
        if (folder / MARKER).is_file():
            pictures = lineage.pictures_of(lineage.read(folder))
    return list(dict.fromkeys([*RUN_FILES, *pictures]))


def run_folder(out: Path | None, stage: str, name: str) -> Path:
    """OUT=, or in a sweep a folder for each run, or the folder of that name."""
    if out is None and (sweep := os.environ.get("WANDB_SWEEP_ID")):
        return Path("runs/sweeps") / sweep / os.environ.get("WANDB_RUN_ID", name)
    return out or Path("runs") / stage / name


def check_run_folder(
    out: Path,
    *,
    stage: str,
    overwrite: bool,
    resume: bool = False,
    resumes: bool = True,
    uses: Iterable[Path] = (),
    texts: str | None = None,
    rows: str | None = None,
) -> None:
    """Refuses to overwrite anything; takes the lock of the folder, which must be writable.

    Args:
        stage: the kind of run.
        overwrite: replace a run that is there.
        resume: continue a run that is there.
        resumes: whether a run of this kind can be resumed.
        uses: files and folders that the run needs.
        texts: file, folder or pattern of its corpus.
        rows: the same of a task's data.

    Raises:
        UserError: files would be lost or spoiled, or the folder cannot be written.
    """
    if not is_main():
        return
    check_environment()
    check_place(out)
    if (texts is not None and _reads(texts, out)) or (rows is not None and path_of(rows).resolve() == out.resolve()):
        raise UserError(f"The files of a run in {out} would be read as data of {texts or rows}; {elsewhere()}.")
    if overwrite and resume:
        raise UserError(
            f"{typed.flag('resume')} continues a run, {typed.flag('overwrite')} starts over: set one of them."
        )
    if os.path.lexists(out / ASIDE) or _half_removed(out):  # after a kill
        LOCKS[out] = lock_run(out, out / LOCK)
        restore(out)
    there = {name: state for name, state in STATES.items() if os.path.lexists(out / name)}
    if not there and (other := _other_run(out)) is not None:
        raise UserError(f"{out} is a folder of runs, as {other}; {elsewhere()}.")
    _check_sign(out, goes_on=INTERRUPTED in there.values() and resumes, resume=resume)
    if there and (kind := kind_of(out)) not in (stage, None):
        raise UserError(f"{out} holds a run of {kind}, and one of {stage} would clear it; {elsewhere()}.")
    if there and not overwrite and not resume:
        go_on = f"{typed.flag('resume')} to continue it, " if resumes else ""
        state = next(iter(there.values()))
        raise UserError(
            f"{out} holds {state}; set {go_on}{typed.flag('overwrite')} to start over, or another {typed.flag('out')}."
        )
    for path in uses if not resume else ():
        _check_kept(out, path)
    NEW[out] = [folder for folder in (out, *out.parents) if not folder.exists()]
    LOCKS[out] = lock_run(out, out / LOCK)


def _other_run(out: Path) -> Path | None:
    """A run in a folder of runs, as those of `runs` or `runs/pretrain`."""
    inside = (file.parent for depth in ("*", "*/*") for file in out.glob(f"{depth}/{MARKER}"))
    own = {*RUN_FILES, ASIDE, *(path.name for path in _half_removed(out))}
    return next((run for run in inside if run.relative_to(out).parts[0] not in own), None)


def _check_sign(out: Path, *, goes_on: bool, resume: bool) -> None:
    """Raises: UserError, a run would clear files of a folder that no run has marked as its own."""
    found = [name for name in files_of(out) if os.path.lexists(out / name)]
    if found and MARKER not in found and not (goes_on and resume):
        raise UserError(
            f"{out} holds {found[0]} but no run (there is no {MARKER}), and a run would clear it; "
            + (f"continue from its checkpoint with {typed.flag('resume')}, or choose" if goes_on else "choose")
            + f" another {typed.flag('out')}."
        )


def kind_of(out: Path) -> str | None:
    """The kind of run that a folder holds: by its lineage, else by what it made."""
    if (out / "profile.txt").exists() and not (out / "encoder").exists():
        return "profile"
    with contextlib.suppress(UserError):  # damaged
        if (out / MARKER).is_file() and (kind := lineage.run_of(lineage.read(out))):
            return kind
    return next((kind for name, kind in MAKERS.items() if (out / name).exists()), None)


def elsewhere() -> str:
    return f"choose another {typed.flag('out')}"


def check_place(path: Path) -> None:
    """Refuses to write among the files of a run or an encoder, and where no file can be.

    Raises:
        UserError: the path is such a place.
    """
    try:
        place = path.resolve()
        os.fsencode(place).decode()  # a name that is not text breaks the files that contain it
        if max(len(os.fsencode(place)) + LONGEST_NAME - 4096, *(len(os.fsencode(p)) - 255 for p in place.parts)) > 0:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        parents = [place, *place.parents]
        sealed = next((folder for folder in parents if all((folder / name).exists() for name in SEALED)), None)
    except UnicodeDecodeError:
        raise UserError(f"The name {str(path)!r} is not UTF-8; {elsewhere()}.") from None
    except (OSError, RuntimeError) as error:
        message = (error.strerror if isinstance(error, OSError) else None) or "its links form a loop"
        raise UserError(f"{str(path)[:100]} cannot be written: {message}; {elsewhere()}.") from None
    if sealed is not None:
        where = "is" if sealed == place else "lies in"
        raise UserError(f"{path} {where} the folder of an encoder or model, which this would break; {elsewhere()}.")
    for folder in parents[1:]:
        part = place.relative_to(folder).parts[0]
        if part in files_of(folder) and (folder / MARKER).exists():
            where = "" if folder / part == place else f" lies in {folder / part}, which"
            raise UserError(f"{path}{where} is a part of a run; {elsewhere()}.")


def _check_kept(out: Path, path: Path) -> None:
    """Raises: UserError, a run would clear a file that it needs."""
    place, here = path.resolve(), out.resolve()
    if here in place.parents and place.relative_to(here).parts[0] in files_of(out):
        raise UserError(f"{path} lies in the run folder {out}, which would be cleared; {elsewhere()}.")


def _reads(location: str, out: Path) -> bool:
    """Whether texts of a run in `out` are among those of a corpus."""
    root, place, pattern = root_of(location).resolve(), out.resolve(), path_of(location)
    if pattern.is_file() or root not in (place, *place.parents):
        return False
    written = (place / name for name in RUN_FILES if name.endswith((".txt", ".jsonl")))
    return pattern.is_dir() or "**" in location or any(file.match(str(pattern.resolve())) for file in written)


def lock_run(out: Path, file: Path) -> FileLock:
    """Takes the lock of a run folder.

    Raises:
        UserError: another process holds it, or its file cannot be written.
    """
    try:
        return lock(file)
    except Held:
        raise UserError(f"Another run is writing into {out}; wait for it, or {elsewhere()}.") from None
    except OSError as error:
        raise UserError(f"The run folder {out} cannot be written: {error.strerror}.") from None


def release() -> None:
    """Closes W&B runs that are still open, and releases this process's run-folder locks.

    Where a new run never began, the files that were cleared for it are restored.
    """
    end_open_run()
    while LOCKS:
        out, taken = LOCKS.popitem()
        try:
            restore(out)
            _remove_unused(out, NEW.pop(out, []))
        finally:
            taken.release(force=True)


def _remove_unused(out: Path, new: list[Path]) -> None:
    """Removes the folders that were made for a run that was refused: the lock alone is in them."""
    if out in new and [path.name for path in out.iterdir()] == [LOCK]:
        (out / LOCK).unlink()
        with contextlib.suppress(OSError):  # another process has begun to use one
            for folder in new:
                folder.rmdir()


# ---------------------------------------------------------------------- clearing for a new run


def set_aside(out: Path) -> None:
    """Sets aside the files of an earlier run in a folder, until the new one has begun (`discard_old`)."""
    found = [name for name in sorted(files_of(out), key=MARKER.__eq__) if os.path.lexists(out / name)]
    if found:
        (out / ASIDE).mkdir()
    for name in found:
        (out / name).rename(out / ASIDE / name)


def discard_old(out: Path) -> None:
    """Removes the files that `set_aside` set aside: the new run has a checkpoint, or its metrics."""
    if os.path.lexists(out / ASIDE):
        names = (f"{LEAVING}{number or ''}" for number in itertools.count())
        (out / ASIDE).rename(next(out / name for name in names if not os.path.lexists(out / name)))
        _remove_old(out)


def _half_removed(out: Path) -> list[Path]:
    """Folders to remove: more than one where that failed before."""
    return [path for path in out.glob(f"{LEAVING}*") if path.name[len(LEAVING) :].isdecimal() or path.name == LEAVING]


def _remove_old(out: Path) -> None:
    """Removes the files of an earlier run; those that cannot be removed stay, and harm no run."""
    for left in _half_removed(out):
        try:
            remove(left)
        except OSError as error:
            print(f"Warning: {left}, left by an earlier run, cannot be removed: {reason(error)}.", file=sys.stderr)


def restore(out: Path) -> None:
    """Restores the files that `set_aside` set aside for a run that ended before it had begun.

    Raises:
        UserError: they are not in a folder.
    """
    _remove_old(out)  # after a kill
    aside = out / ASIDE
    if not os.path.lexists(aside):
        return
    if aside.is_symlink() or not aside.is_dir():
        raise UserError(f"{aside} is not a folder of a run; remove it, or {elsewhere()}.")
    if (aside / MARKER).exists():  # all was cleared, so what is there is of the run that did not begin
        for name in files_of(out):
            remove(out / name)
    for name in sorted(files_of(aside), key=MARKER.__ne__):  # the marker first: what comes after it is of the old run
        if os.path.lexists(aside / name):
            (aside / name).rename(out / name)
    aside.rmdir()
    print(f"{out} holds the previous run again: the new one ended before its first checkpoint.")
