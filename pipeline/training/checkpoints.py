"""Checkpoints for resuming: atomic writes, one backup, CRC check on load, save on signal."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import signal
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor

from pipeline.console import typed
from pipeline.errors import Interrupted, UserError
from pipeline.storage.atomic import is_disk_full, new_file, reason
from pipeline.training.step_callbacks import StepCallback

LAST, PREVIOUS, BEST, DAMAGED = "last.ckpt", "previous.ckpt", "best.ckpt", "damaged.ckpt"


ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error)
# Errors of the system about a broken file: without a number (zipfile's), a seek before its start, removed meanwhile.
BROKEN = (None, errno.EINVAL, errno.ENOENT, errno.EISDIR)
# The state that a run resumes from: a file without one of these is not a checkpoint of a run.
PARTS: dict[str, type] = {
    **dict.fromkeys(("state_dict", "loops", "callbacks", "sums"), dict),
    **dict.fromkeys(("optimizer_states", "lr_schedulers"), list),
    "global_step": int,
}


class Damaged(UserError):
    """A checkpoint that cannot be resumed; the one before it may be whole, unless that is said."""


class WholeCheckpoints(TorchCheckpointIO):
    """Writes aside and renames; the `last.ckpt` before becomes `previous.ckpt` when the new one is whole.

    Args:
        written: is called when there is a new `last.ckpt`.
    """

    def __init__(self, written: Callable[[], None]) -> None:
        super().__init__()
        self.written = written
        self.write: Callable[[dict[str, Any], Any], None] = torch.save

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        file = Path(path)
        aside = file.with_name(f".{file.name}.new")
        stream: ErrorKeepingFile | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with new_file(aside, "wb") as file_on_disk:
                stream = ErrorKeepingFile(file_on_disk)
                self.write(checkpoint, stream)
                file_on_disk.flush()
                os.fsync(file_on_disk.fileno())
            if file.name == LAST and file.exists():
                os.replace(file, file.with_name(PREVIOUS))
            os.replace(aside, file)
            sync_folder(file.parent)
        except (OSError, RuntimeError) as error:
            aside.unlink(missing_ok=True)
            cause = error if stream is None else stream.error or error
            if not is_disk_full(cause):
                raise
            raise UserError(
                f"The checkpoint {file} could not be written: {reason(cause)}. Make room and continue with "
                f"{typed.flag('resume')} from the one before it, if there is one."
            ) from None
        if file.name == LAST:
            self.written()


class ErrorKeepingFile:
    """File wrapper that remembers the original OSError, which torch.save replaces by its own."""

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


def newest(
    folder: Path, check: Callable[[Path, dict[str, Any]], None] = lambda file, state: None
) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint of a run and its content; warns when it is not the last one.

    Args:
        check: a further check; raises `Damaged` where the checkpoint before it may pass.

    Raises:
        Damaged: there are checkpoints, and none is whole.
        UserError: the system could not read one.
    """
    files = [file for file in (folder / LAST, folder / PREVIOUS) if file.exists()]
    complaints = []
    for file in files:
        try:
            state = read(file)
            check(file, state)
        except Damaged as error:
            complaints.append(str(error))
            if file.name == LAST and len(files) > 1:  # else the next one saved would push the whole one out
                with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
                    os.replace(file, file.with_name(DAMAGED))
            continue
        if complaints or file.name == PREVIOUS:
            why = complaints[0] if complaints else f"{folder / LAST} is missing."
            print(f"Warning: {why} Resuming from the previous checkpoint, of step {state['global_step']:,}.")
        return file, state
    if complaints:
        others = "The one before it is damaged too" if len(complaints) > 1 else "No other checkpoint is there"
        raise Damaged(f"{complaints[0]} {others}; set {typed.flag('overwrite')} to start over.")
    return None


def read(file: Path) -> dict[str, Any]:
    """A checkpoint whose checksums are right, with all its parts; tensors stay on disk until they are used.

    Raises:
        Damaged: a checksum or a part is wrong, or it holds something other than tensors and plain data.
        UserError: the system cannot read the file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()  # each entry has a CRC-32
        if damaged is not None:
            raise Damaged(f"The checkpoint {file} is damaged ({damaged} has a different checksum).")
        state = torch.load(file, weights_only=True, map_location="cpu", mmap=True)
    except pickle.UnpicklingError:
        raise Damaged(
            f"The checkpoint {file} holds something other than tensors and plain data, which could be code: it is not "
            "loaded."
        ) from None
    except (OSError, RuntimeError, ValueError, KeyError, NotImplementedError, EOFError, *ZIP_ERRORS) as error:
        if isinstance(error, OSError) and error.errno not in BROKEN:
            raise UserError(f"The checkpoint {file} could not be read: {reason(error)}.") from None
        raise Damaged(f"The checkpoint {file} is damaged ({type(error).__name__}).") from None
    for name, kind in PARTS.items():
        if not isinstance(state, dict) or not isinstance(state.get(name), kind):
            raise Damaged(f"The checkpoint {file} is damaged: it has no {name}.")
    moments = state["optimizer_states"]
    if not moments or not all(isinstance(part, dict) and {"state", "param_groups"} <= set(part) for part in moments):
        raise Damaged(f"The checkpoint {file} is damaged: it has no state of an optimizer.")
    return state


def check_fits(file: Path, state: dict[str, Any], module: torch.nn.Module) -> None:
    """Compares the tensors of a checkpoint with those of the network that would resume from it.

    Raises:
        Damaged: it lacks one, or has others.
    """
    for name in getattr(module, "kept", ()):
        if name not in state:
            raise Damaged(f"The checkpoint {file} is damaged: it has no {name}.")
    saved, ours = state["state_dict"], module.state_dict()
    for name in sorted({*saved, *ours}):
        if name not in saved or name not in ours:
            which = "lacks" if name in ours else "has"
            raise Damaged(f"The checkpoint {file} is damaged: it {which} a tensor {name}.")
        if not isinstance(saved[name], Tensor) or saved[name].shape != ours[name].shape:
            there = list(saved[name].shape) if isinstance(saved[name], Tensor) else type(saved[name]).__name__
            raise Damaged(f"The checkpoint {file} is damaged: {name} is {there}, not {list(ours[name].shape)}.")


def sync_folder(folder: Path) -> None:
    """Puts renames on disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move(checkpoint: dict[str, Any], folder: Path, key: str) -> None:
    """Updates the paths of the callback that keeps the best checkpoint: in a moved run it would forget it.

    Args:
        folder: where the run's checkpoints are now.
        key: of the callback's state. Those of the user's own callbacks are elsewhere, and stay there.
    """
    now = os.path.realpath(folder)  # as Lightning writes it
    state = checkpoint["callbacks"].get(key, {})
    if (old := state.get("dirpath")) and old != now:
        for name in ("dirpath", "best_model_path", "kth_best_model_path", "last_model_path"):
            state[name] = state[name].replace(old, now, 1)
        state["best_k_models"] = {path.replace(old, now, 1): score for path, score in state["best_k_models"].items()}


def callback_value(checkpoint: dict[str, Any], callback: lightning.Callback, name: str) -> Any:
    """A value in the state that a callback has saved in a checkpoint; None: it has none."""
    return checkpoint.get("callbacks", {}).get(callback.state_key, {}).get(name)


class EarlyStopping(callbacks.EarlyStopping):
    """Lightning's; a resumed run has the patience of its configuration, not that of its checkpoint."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})


class Latest(StepCallback, Checkpoint):
    """Saves `last.ckpt` after each validation, and after the current step when the run is to stop.

    Ctrl-C, SIGTERM and SIGUSR1 (which SLURM sends before the time is up) stop it. As a checkpoint callback it runs
    after all others, so that its file holds their state of the same step.
    """

    SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

    def __init__(self, file: Path) -> None:
        self.file, self.stop_requested = file, False
        self.before: dict[int, Any] = {}

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        def ask(signal_number: int, frame: FrameType | None) -> None:
            self.stop_requested = True

        for number in self.SIGNALS:
            self.before[number] = signal.signal(number, ask)

    def on_step_end(self, trainer: lightning.Trainer, module: Any) -> None:
        assert isinstance(trainer.val_check_batch, int)
        every = trainer.val_check_batch // trainer.accumulate_grad_batches
        if trainer.global_step % every and not trainer.should_stop and self._must_stop(trainer):
            trainer.save_checkpoint(self.file)
            raise Interrupted

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        trainer.save_checkpoint(self.file)
        if self._must_stop(trainer) and trainer.global_step < trainer.max_steps:
            raise Interrupted

    def _must_stop(self, trainer: lightning.Trainer) -> bool:
        """Whether any process got a signal: all stop at the same step."""
        if trainer.world_size == 1:
            return self.stop_requested
        return trainer.strategy.reduce_boolean_decision(self.stop_requested, all=False)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._restore_handlers()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Restores the signal handlers before Lightning's teardown, which would reinstall its own and keep the trainer
        alive."""
        self._restore_handlers()

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
