"""Optimisers and schedules as plain functions of the optimiser step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from pipeline import UserError


@dataclass
class Optimization:
    """AdamW (Loshchilov and Hutter 2017) with warm-up and decay.

    Args:
        learning_rate: the peak.
        warmup_steps: optimiser steps of linear warm-up.
        schedule: how the rate falls to zero at the last step.
        weight_decay: on matrices; biases and norms have none.
        betas: of AdamW.
        eps: of AdamW.
        layer_decay: the rate of each layer is this times that of the layer above (1 = all the same).
    """

    learning_rate: float
    warmup_steps: int
    schedule: Literal["linear", "cosine", "constant"]
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        for name, fine, what in (
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("betas", all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1"),
            ("eps", self.eps > 0, "above 0"),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
        ):
            if not fine:
                raise UserError(f"model.optimization.{name} is {getattr(self, name)}; it must be {what}.")


def rate_at(step: int, *, warmup: int, total: int, schedule: str) -> float:
    """Share of the peak rate at an optimiser step (0-based): warm-up, then decay that reaches 0 at `total`."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if schedule == "linear":
        return 1 - done
    return 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1.0


def unfreezes_at(depth: int, layers: int, total: int, share: float) -> int:
    """The optimiser step from which a layer is trained, `depth` layers below the top one.

    The head is trained from the start, then one layer more at equal intervals, the last one at `share` of `total`.
    """
    return math.ceil(share * total * (depth + 1) / layers)


def build(
    options: Optimization,
    layers: list[list[nn.Parameter]],
    rest: Iterable[nn.Parameter],
    *,
    total: int,
    matrices: set[int],
) -> Any:
    """Lightning's optimiser and per-step schedule.

    Args:
        layers: parameters of the encoder from the embeddings to the top.
        rest: parameters above the encoder (heads), at the full rate.
        total: optimiser steps of the whole run.
        matrices: ids of the parameters that decay; sharded ones have lost their shape.
    """
    groups: list[dict[str, Any]] = []
    for depth, parameters in enumerate(reversed([*layers, list(rest)])):
        rate = options.learning_rate * options.layer_decay ** max(0, depth - 1)
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        for decayed in (True, False):
            chosen = [parameter for parameter in trainable if (id(parameter) in matrices) == decayed]
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": options.weight_decay * decayed})
    # Fused: one pass over memory instead of ten.
    optimizer = torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: rate_at(step, warmup=options.warmup_steps, total=total, schedule=options.schedule),
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def restate(optimizer: torch.optim.Optimizer, schedule: Any, module: Any) -> None:
    """Gives a restored optimiser the rates and decays of the configuration, instead of those of its checkpoint."""
    fresh = module.configure_optimizers()["optimizer"]
    for group, new in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        group.update({name: value for name, value in new.items() if name != "params"})
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    for group, share in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * share(schedule.last_epoch)
