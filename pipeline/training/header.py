"""The first lines of a run: what it computes on, how it trains, where it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch

from pipeline.training.optimizers import Optimization


def header(
    trainer: lightning.Trainer, optimization: Optimization | None, batch_size: int, out: Path, wandb: Any
) -> str:
    """Device, precision, steps, rows, rate; run folder, and where Weights & Biases writes.

    Args:
        optimization: None: the model counts.
        wandb: the logger of Weights & Biases; None: it is disabled.
    """
    parts = trainer.accumulate_grad_batches
    rows = f"{batch_size:,} rows" + (f" in {parts} parts" if parts > 1 else "")
    steps = f"{trainer.max_steps:,} steps of {rows}; "
    if optimization is None:
        steps, how = "", "counting"
    else:
        how = f"{optimization.optimizer}, learning rate {optimization.learning_rate:g}, {optimization.schedule} decay"
    where = "disabled" if wandb is None else f"{wandb.mode} in {out / 'wandb'}"
    return (
        f"run         {device_of(trainer)}, {trainer.precision}; {steps}{how}\n"
        f"output      {out}; Weights & Biases {where}"
    )


def device_of(trainer: lightning.Trainer) -> str:
    """The device of a run with its name, and how many there are."""
    device, processes = trainer.strategy.root_device, trainer.world_size
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif device.type == "cpu":
        name = f"cpu, {torch.get_num_threads()} threads" if torch.get_num_threads() > 1 else "cpu, 1 thread"
    else:
        name = device.type
    return name if processes == 1 else f"{processes} x {name}"
