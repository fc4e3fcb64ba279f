"""Learning-rate schedules and gradual unfreezing, as plain functions of the optimizer step."""

from __future__ import annotations

import math
from typing import Any

import torch

DECAY_SHARE = 0.2  # of a run with `wsd`, as SmolLM2 has it; the paper has a tenth


def rate_at(step: int, *, warmup: int, total: int, schedule: str) -> float:
    """Fraction of the peak learning rate at an optimizer step (from 0): linear warm-up, then decay to 0 at `total`.

    Warm-up is (s + 1) / (w + 1), so that the first step changes the weights; Hugging Face's is s / w, 0 at first.

    Args:
        warmup: w, steps of warm-up.
        total: optimizer steps of the run.
        schedule: `linear`, `cosine`, `constant`; `wsd` (warm-up, stable, decay: Hu et al. 2024, 4), which is constant
            and falls in the last fifth; or `inverse_sqrt` (Vaswani et al. 2017, 5.3), which falls with the square root
            of the step and does not reach 0.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    if schedule == "linear":
        return 1 - done
    if schedule == "wsd":
        return min(1.0, max(0, total - step) / max(1, min(DECAY_SHARE * total, total - warmup)))
    if schedule == "inverse_sqrt":
        return math.sqrt((warmup + 1) / (step + 1))
    return 0.5 * (1 + math.cos(math.pi * done)) if schedule == "cosine" else 1.0


def unfreezes_at(depth: int, layers: int, total: int, share: float) -> int:
    """The optimizer step at which a layer is unfrozen (gradual unfreezing, Howard and Ruder 2018).

    The head is trained from the start, then one more layer at equal intervals, the lowest one from `share` of `total`.

    Args:
        depth: layers above this one.
        layers: number of layers.
    """
    return math.ceil(share * total * (depth + 1) / layers)


def apply_configured_rates(optimizer: torch.optim.Optimizer, schedule: Any, module: Any) -> None:
    """Sets the rates and decays of a restored optimizer to those of the configuration, not of its checkpoint.

    A run that was begun in another precision may be fused now, or no longer be. Fused AdamW counts its steps beside the
    weights, else they are counted on the CPU.
    """
    fresh = module.configure_optimizers()["optimizer"]
    for group, new in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        group.update({name: value for name, value in new.items() if name != "params"})
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            if "step" in state:
                state["step"] = state["step"].to(weight.device if group["fused"] else "cpu")
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    for group, share in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * share(schedule.last_epoch)
