"""The first lines of a run: what it computes on, how it trains, where it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning

from pipeline.training.base_module import Training
from pipeline.training.hardware import device_name
from pipeline.training.optimizers import Optimization


def header(trainer: lightning.Trainer, module: Training, batch_size: int, out: Path, wandb: Any) -> str:
    """Devices, precision, steps, rows, rate; run folder, and where Weights & Biases writes.

    Args:
        wandb: the logger of Weights & Biases; None: it is disabled.
    """
    devices = device_name(trainer.strategy.root_device)
    if trainer.world_size > 1:
        devices = f"{trainer.world_size} x {devices}"
    options: Optimization | None = module.optimization
    if options is None:
        how = "counting"
    else:
        parts, warmup = trainer.accumulate_grad_batches, module.warmup_steps(trainer.max_steps)
        how = f"{trainer.max_steps:,} steps of {batch_size:,} rows" + (f" in {parts} parts" if parts > 1 else "")
        how += f"; {options.optimizer}, learning rate {options.learning_rate:g}"
        how += (f", warm-up to step {warmup:,}" if warmup else "") + f", {options.schedule} decay"
        if options.average_share:
            how += f", mean of the weights over the last {options.average_share:.0%} of steps"
    where = "disabled" if wandb is None else f"{wandb.mode} in {out / 'wandb'}"
    return f"run         {devices}, {trainer.precision}; {how}\noutput      {out}; Weights & Biases {where}"
