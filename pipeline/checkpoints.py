"""Checkpoints to go on from: whole or not at all, the one before kept, checked before use; stopping with one."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import zipfile
import zlib
from pathlib import Path
from types import FrameType
from typing import IO, Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from pipeline import Interrupted, UserError
from pipeline.folders import is_no_room, reason

LAST, PREVIOUS, BEST, DAMAGED = "last.ckpt", "previous.ckpt", "best.ckpt", "damaged.ckpt"


ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error)


class WholeCheckpoints(TorchCheckpointIO):
    """Writes aside and renames; the `last.ckpt` before becomes `previous.ckpt` when the new one is whole."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        file = Path(path)
        aside = file.with_name(f".{file.name}.new")
        stream: Telling | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file_on_disk:
                stream = Telling(file_on_disk)
                write(checkpoint, stream)
                file_on_disk.flush()
                os.fsync(file_on_disk.fileno())
            if file.name == LAST and file.exists():
                os.replace(file, file.with_name(PREVIOUS))
            os.replace(aside, file)
            sync_folder(file.parent)
        except (OSError, RuntimeError) as error:
            aside.unlink(missing_ok=True)
            told = error if stream is None else stream.error or error
            if not is_no_room(told):
                raise
            raise UserError(
                f"The checkpoint {file} could not be written: {reason(told)}. Make room and go on with RESUME=1 from "
                "the one before it, if there is one."
            ) from None


class Telling:
    """A file to write to that keeps what the system said when it could not: torch has words of its own for it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            return self.file.write(content)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write(checkpoint: dict[str, Any], stream: Any) -> None:
    torch.save(checkpoint, stream)


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint of a run to go on from, and what it holds; says when it is not the last one.

    Raises:
        UserError: there are checkpoints, and none is whole.
    """
    found = [file for file in (folder / LAST, folder / PREVIOUS) if file.exists()]
    complaints = []
    for file in found:
        try:
            state = read(file)
        except UserError as error:
            complaints.append(str(error))
            if file.name == LAST and len(found) > 1:  # else the next one saved would push the whole one out
                with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
                    os.replace(file, file.with_name(DAMAGED))
            continue
        if complaints or file.name == PREVIOUS:
            why = complaints[0] if complaints else f"{folder / LAST} is missing."
            print(f"Warning: {why} Going on from the checkpoint before it, of step {state['global_step']:,}.")
        return file, state
    if complaints:
        raise UserError(f"{complaints[0]} No other checkpoint is there; set OVERWRITE=1 to start anew.")
    return None


def read(file: Path) -> dict[str, Any]:
    """A checkpoint whose checksums are right; tensors stay on disk until they are used.

    Raises:
        UserError: it is damaged, or holds something else than tensors and plain data.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # each entry has a CRC-32
        if damaged is not None:
            raise UserError(f"The checkpoint {file} is damaged ({damaged} has another checksum).")
        return torch.load(file, weights_only=True, map_location="cpu", mmap=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"The checkpoint {file} holds something else than tensors and plain data, which could be code: it is not "
            "loaded."
        ) from None
    except PermissionError:
        raise UserError(f"The checkpoint {file} may not be read: permission denied.") from None
    except (OSError, RuntimeError, ValueError, KeyError, NotImplementedError, EOFError, *ZIP_ERRORS) as error:
        raise UserError(f"The checkpoint {file} is damaged ({type(error).__name__}).") from None


def sync_folder(folder: Path) -> None:
    """Puts renames on disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move(checkpoint: dict[str, Any], folder: Path) -> None:
    """Tells Lightning's checkpoint callbacks where their files are now: in a moved run they would forget the best."""
    now = os.path.realpath(folder)  # as Lightning writes it
    for state in checkpoint["callbacks"].values():
        if isinstance(state, dict) and (old := state.get("dirpath")) and old != now:
            place = lambda path, old=old: path.replace(old, now, 1)  # noqa: E731
            for name in ("dirpath", "best_model_path", "kth_best_model_path", "last_model_path"):
                state[name] = place(state[name])
            state["best_k_models"] = {place(path): score for path, score in state["best_k_models"].items()}


def callback_value(checkpoint: dict[str, Any], name: str) -> Any:
    """What a callback has kept in a checkpoint under a name of its own; None if nothing."""
    states = [state for state in checkpoint["callbacks"].values() if isinstance(state, dict) and name in state]
    return states[0][name] if states else None


class Latest(Checkpoint):
    """`last.ckpt` after each validation, and after the step at hand when the run is asked to stop.

    Asked by Ctrl-C, SIGTERM, or SIGUSR1, which SLURM sends before the time is up. Being a checkpoint callback, it
    runs after the others, so that its file holds their state of the same moment.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self, file: Path) -> None:
        self.file, self.asked = file, False
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        def ask(signal_number: int, frame: FrameType | None) -> None:
            self.asked = True

        for number in self.SIGNALS:
            self.before[number] = signal.signal(number, ask)
        module.between_steps = self.between_steps

    def between_steps(self, trainer: lightning.Trainer) -> None:
        """The module calls this after each whole optimiser step, when it is logged: a place that resumes exactly."""
        assert isinstance(trainer.val_check_batch, int)
        every = trainer.val_check_batch // trainer.accumulate_grad_batches
        if trainer.global_step % every and not trainer.should_stop and self._anyone_asked(trainer):
            trainer.save_checkpoint(self.file)
            raise Interrupted

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        trainer.save_checkpoint(self.file)
        if self._anyone_asked(trainer) and trainer.global_step < trainer.max_steps:
            raise Interrupted

    def _anyone_asked(self, trainer: lightning.Trainer) -> bool:
        """All processes stop at the same step, whichever of them was asked."""
        if trainer.world_size == 1:
            return self.asked
        return trainer.strategy.reduce_boolean_decision(self.asked, all=False)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Gives the signals back before Lightning does: after it, they would get its own again and all they hold."""
        self.teardown(trainer, module, "fit")

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
