"""Runs that are run once: a folder whose metrics are made of the same is not run again, and never lost to a refusal."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from pipeline.console import typed
from pipeline.console.progress import write
from pipeline.data.row_sources import source_hash
from pipeline.errors import Diverged, Interrupted, UserError
from pipeline.experiments.feasible import task_as_run
from pipeline.models.folder import FILES
from pipeline.presets.arms import FRESH
from pipeline.presets.files import named_config
from pipeline.presets.tasks import task_file, task_hash
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.folders import remove
from pipeline.storage.validation import read_json
from pipeline.tracking.history import read_metrics
from pipeline.training.checkpoints import LAST, PREVIOUS, Damaged
from pipeline.training.progress import quiet
from pipeline.training.requests import FineTuneRequest, PretrainRequest, ZeroShotRequest
from pipeline.training.run_folder import MARKER, check_place, lock_run

Fingerprint = dict[str, Any]  # what the metrics of a run depend on
R = TypeVar("R", FineTuneRequest, PretrainRequest, ZeroShotRequest)
Taken = Callable[[dict[str, Any]], dict[str, Any]]  # from the content of a metrics.json
STATES = tuple(f"checkpoints/{name}" for name in (LAST, PREVIOUS))  # of a run that can be resumed
BEGUN = (*STATES, "metrics.json")  # what a run has that cannot be refused any more
DIVERGED = "diverged.txt"  # why a run has no metrics, and would have none again
NOTE = "cell.json"  # its fingerprint, in the folder of a run


class Lacking(UserError, LookupError):
    """The metrics of a run that has just ended lack something, or have a figure that cannot be."""


def fingerprint_of_finetune(request: FineTuneRequest) -> Fingerprint:
    """What the metrics of a fine-tune depend on, beside its seed; fresh weights are the same for any encoder's.

    Raises:
        UserError: there is no such encoder, task or data.
    """
    return {
        "encoder": digest([file_hash(file) for file in encoder_files(request)]),
        "arm": request.arm,
        "data": source_hash(task_as_run(request.task, request.overrides), request.data),
        "files": task_hash(task_file(request.task)),
        "flags": with_contents(request.overrides),
    }


def with_contents(overrides: Sequence[str]) -> list[str]:
    """Settings, and of each one whose value names a file or an encoder folder a hash of its content."""
    hashes = []
    for word in overrides:
        place = Path(word.partition("=")[2] or word)
        with contextlib.suppress(OSError):  # most values are no names of files, and some are too long for one
            file = place / "model.safetensors" if place.is_dir() else place
            if file.is_file():
                hashes.append(file_hash(file))
    return [*overrides, *hashes]


def encoder_files(request: FineTuneRequest) -> list[Path]:
    """What the network of a fine-tune is made of: a folder's files, or where there is none the configurations of sizes.

    Raises:
        UserError: there is no such encoder.
    """
    encoder = request.encoder
    if encoder is None and request.arm in FRESH:
        rooms = ("pretrain", f"tasks/{task_file(request.task).stem}")
        return [file for room in rooms if (file := named_config(room, request.model)) is not None]
    if encoder is None or not (encoder / "model.safetensors").is_file():
        raise UserError(f"There is no encoder in {encoder}; pretrain one there, or set {typed.flag('from')}.")
    names = [name for name in FILES if request.arm not in FRESH or name != "model.safetensors"]
    return [encoder / name for name in names if (encoder / name).is_file()]


def finished(folder: Path, made_of: Fingerprint, taken: Taken) -> tuple[dict[str, Any] | None, str | None]:
    """What `taken` returns of the metrics of a run with this fingerprint; else None, and why they are not of it."""
    note, metrics = folder / NOTE, folder / "metrics.json"
    if not metrics.is_file():
        return None, None
    try:
        before = read_json(note, dict[str, Any]) if note.is_file() else {}
        if before != made_of:
            return None, f"not of the same {', '.join(name for name in made_of if made_of[name] != before.get(name))}."
        return taken(read_metrics(folder)), None
    except UserError as error:
        return None, str(error)
    except LookupError as error:
        return None, f"{metrics} has no {error.args[0]}."


def folder_of(request: R) -> Path:
    """The folder of a run that an experiment asks for."""
    assert request.out is not None
    return request.out


def has_ended(folder: Path) -> bool:
    """Whether a run has ended there, with metrics or without a finite loss, of whatever it was made."""
    return any((folder / name).is_file() for name in ("metrics.json", DIVERGED))


def check_diverged(folder: Path, made_of: Fingerprint) -> None:
    """Raises: Diverged, a run with this fingerprint has ended there without a finite loss."""
    if (folder / DIVERGED).is_file() and _note_of(folder) == made_of:
        text = (folder / DIVERGED).read_text().strip()
        raise Diverged(f"{text} It is not run again without {typed.flag('overwrite')}.")


def run_once(request: R, made_of: Fingerprint, run: Callable[[R], object], **how: Any) -> dict[str, Any]:
    """`once`, of a request in its folder, begun anew or resumed."""

    def begin(*, resume: bool) -> None:
        again: dict[str, Any] = {"overwrite": not resume}
        if not isinstance(request, ZeroShotRequest):  # it is not resumed
            again["resume"] = resume
        run(replace(request, **again))

    return once(folder_of(request), made_of, begin, **how)


def once(
    folder: Path,
    made_of: Fingerprint,
    run: Callable[..., object],
    *,
    overwrite: bool = False,
    taken: Taken = dict,
    bar: tqdm | None = None,
) -> dict[str, Any]:
    """Runs what writes `metrics.json` into a folder, unless a run with the same fingerprint has.

    What was there before is removed only when the new run has begun: one that is refused leaves everything as it was.

    Args:
        run: with `resume=True` it continues a run of the same that was stopped.
        overwrite: run it in any case.
        taken: what to return of the content of `metrics.json`; a LookupError says what it lacks.
        bar: counts runs; one that was finished before says nothing about the time of the others.

    Raises:
        Diverged: its loss is not finite; it is not run again.
        UserError: the run is refused, or another process runs it, or the folder is not of a grid's run.
        Lacking: `taken` finds something lacking in the metrics of the new run.
    """
    check_place(folder)
    lock = lock_run(folder, folder.with_name(f".{folder.name}.lock"))  # beside it: the folder itself may be set aside
    try:
        metrics = _once(folder, made_of, run, overwrite=overwrite, taken=taken, bar=bar)
    except Diverged as error:
        write(f"{folder.name}: {error}")
        if bar is not None:
            bar.update()
        raise
    finally:
        lock.release()
    if bar is not None:
        bar.update()
    return metrics


def _once(
    folder: Path,
    made_of: Fingerprint,
    run: Callable[..., object],
    *,
    overwrite: bool,
    taken: Taken,
    bar: tqdm | None,
) -> dict[str, Any]:
    metrics, aside = folder / "metrics.json", folder.with_name(f".{folder.name}.before")
    put_back(aside, folder)  # after a kill
    if not overwrite:
        check_diverged(folder, made_of)
    before, why = finished(folder, made_of, taken)
    if before is not None and not overwrite:
        if bar is not None:
            bar.initial += 1
        return before
    if why is not None:
        write(f"{folder.name} is run again: {why}")
    stopped = not metrics.is_file() and any((folder / name).is_file() for name in STATES)
    resume = not overwrite and stopped and _note_of(folder) == made_of
    if os.path.lexists(folder) and not resume:
        check_own(folder)
        check_own(aside)
        remove(aside)
        folder.rename(aside)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / NOTE, made_of, indent=None)
    try:
        with quiet(folder / "log.txt"):
            run(resume=resume)
    except Diverged as error:
        write_atomically(folder / DIVERGED, f"{error}\n")
        remove(aside)
        raise
    except Damaged as error:
        if not resume:
            raise
        write(f"{folder.name} is run again: {error}")
        return _once(folder, made_of, run, overwrite=True, taken=taken, bar=bar)
    except UserError:
        put_back(aside, folder)
        raise
    except Interrupted:
        again = f" without {typed.flag('overwrite')}" if overwrite else ""
        raise Interrupted(f"the same command{again}") from None
    remove(aside)
    try:
        return taken(read_metrics(folder))
    except LookupError as error:
        raise Lacking(f"{metrics} has no {error.args[0]}.") from None


def _note_of(folder: Path) -> Fingerprint:
    with contextlib.suppress(UserError):  # missing or damaged
        return read_json(folder / NOTE, dict[str, Any])
    return {}


def check_own(folder: Path) -> None:
    """Raises: UserError, a folder holds something, and nothing that a grid has made."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if folder.is_symlink() or not folder.is_dir() or not ((folder / NOTE).is_file() or (folder / MARKER).is_file()):
        raise UserError(
            f"{folder} was not made by a run, and a run would replace it: move it, or choose another "
            f"{typed.flag('out')}."
        )


def put_back(aside: Path, folder: Path) -> None:
    """Restores the backup of a run whose replacement never began."""
    if os.path.lexists(aside) and not any((folder / name).exists() for name in BEGUN):
        check_own(aside)
        check_own(folder)
        remove(folder)
        aside.rename(folder)


def finite(metrics: dict[str, Any], name: str, *, most: float = math.inf) -> Any:
    """A metric, which may be true or false.

    Raises:
        LookupError: it is not there, no finite number, or its size is above `most`.
    """
    value = metrics.get(name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or abs(value) > most:
        raise LookupError(f"{name} that can be")
    return value
