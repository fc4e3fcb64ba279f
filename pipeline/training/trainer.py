"""Lightning's trainer of a run, and its errors in plain words."""

from __future__ import annotations

import contextlib
import copy
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from pipeline.console import typed
from pipeline.errors import UserError, is_out_of_memory
from pipeline.training.checkpoints import WholeCheckpoints
from pipeline.training.run_folder import discard_old

UNKNOWN_METRIC = ("Early stopping conditioned on metric", "`ModelCheckpoint(monitor=")  # as Lightning says it


def make_trainer(make: Callable[..., lightning.Trainer], settings: Any, out: Path, **options: Any) -> lightning.Trainer:
    """The trainer of a configuration.

    Args:
        make: takes arguments of `lightning.Trainer`; the configuration has set the others.
        settings: the configuration's section `trainer`.

    Raises:
        UserError: there is no such device, or the like.
    """
    strategy = copy.deepcopy(settings.strategy)  # an object belongs to one trainer
    if not is_alone(settings) and strategy in ("auto", "ddp"):
        # Heads of pretraining are not used in fine-tuning, rare words not by every process. Buffers are the same
        # everywhere; to send them at each step would hang where one process has fewer batches than another.
        strategy = DDPStrategy(find_unused_parameters=True, broadcast_buffers=False)
    try:
        return make(
            plugins=[*(settings.plugins or []), WholeCheckpoints(partial(discard_old, out))],
            strategy=strategy,
            use_distributed_sampler=False,  # batches are split over processes where they are made
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            default_root_dir=out,
            **options,
        )
    except (MisconfigurationException, ModuleNotFoundError, RuntimeError, TypeError, ValueError) as error:
        message = str(error) or type(error).__name__
        raise UserError(f"The trainer cannot be made: {message.splitlines()[0].rstrip('.')}.") from None


def is_alone(settings: Any) -> bool:
    """Whether the section `trainer` asks for one process: for one device, or one by its number, as [3] or "3,"."""
    devices = settings.devices
    if isinstance(devices, str) and "," in devices:
        devices = [number for number in devices.split(",") if number.strip()]
    one = len(devices) == 1 if isinstance(devices, (list, tuple)) else str(devices).strip() == "1"
    return one and settings.num_nodes == 1


def shards_weights(strategy: Any) -> bool:
    """Whether each process will hold a part of the weights only: by name, as on the command line, or as an object."""
    return "fsdp" in (strategy if isinstance(strategy, str) else type(strategy).__name__).lower()


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """While a network is made.

    Raises:
        UserError: the machine has not the memory for it.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        size = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error))
        at_once = f" (at once {size[1]})" if size else ""
        raise UserError(f"There is not enough memory for {what}{at_once}; make it smaller.") from None


def _is_of_loader(error: BaseException) -> bool:
    """Whether a process that makes batches died, alone or while it sent one."""
    if isinstance(error, (ConnectionResetError, EOFError)):
        return any("dataloader.py" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
    ends = ("killed by signal", "exited unexpectedly")
    return "DataLoader worker" in str(error) and any(end in str(error) for end in ends)


def plain_error(error: BaseException, trainer: lightning.Trainer, *, batch_size: int) -> UserError | None:
    """What the user can do about an error of the machine in training; None for one of the program."""
    message, step = str(error), trainer.global_step
    if is_out_of_memory(error):
        return UserError(
            f"Memory ran out at step {step:,}, with {batch_size} rows in a batch. Raise "
            "trainer.accumulate_grad_batches (the same gradient in smaller parts), or lower data.batch_size or "
            f"the length of rows, and start over with {typed.flag('overwrite')}."
        )
    if _is_of_loader(error):
        return UserError(
            f"A process that makes batches died at step {step:,}, most often for lack of memory. Continue with "
            f"{typed.flag('resume')} from the last checkpoint, with a lower data.workers."
        )
    if type(error).__module__.startswith("torch._inductor"):
        why = message.splitlines()[0][:200].rstrip(".") if message else type(error).__name__
        return UserError(
            f"The blocks cannot be compiled here ({why}): install a C++ compiler and the headers of Python, or leave "
            "compile out."
        )
    if message.startswith(UNKNOWN_METRIC):
        named = f"; there are {', '.join(names)}" if (names := sorted(trainer.callback_metrics)) else ""
        return UserError(f"One of trainer.callbacks monitors a metric that does not exist: {_monitor(message)}{named}.")
    return None


def _monitor(message: str) -> str:
    """The name of the metric in an error message of Lightning's."""
    found = re.search(r"conditioned on metric `(.*?)`|monitor='(.*?)'", message)
    return (found[1] or found[2]) if found else message.splitlines()[0]
