"""Optimisers and schedules as plain functions of the optimiser step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.errors import UserError

MOMENTUM = 0.95  # Muon's


@dataclass
class Optimization:
    """AdamW (Loshchilov and Hutter 2017) or Muon (Jordan et al. 2024), with warm-up and decay.

    Args:
        learning_rate: the peak.
        warmup_steps: w optimiser steps of linear warm-up; step s (from 0) has (s + 1) / (w + 1) of the peak.
        schedule: how the rate falls to zero at the last step.
        weight_decay: on matrices; biases and norms have none.
        betas: of AdamW.
        eps: of AdamW.
        layer_decay: the rate of each layer is this times that of the layer above (1 = all the same).
        optimizer: `adamw`, or `muon` for the matrices of the layers and AdamW for what is left: embeddings, ELMo's
            characters, biases, norms, heads.
    """

    learning_rate: float
    warmup_steps: int
    schedule: Literal["linear", "cosine", "constant"]
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    layer_decay: float = 1.0
    optimizer: Literal["adamw", "muon"] = "adamw"

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
    """Share of the peak rate at an optimiser step (0-based): warm-up, then decay that reaches 0 at `total`.

    Warm-up is (s + 1) / (w + 1), so that the first step moves the weights; Hugging Face's is s / w, one step behind:
    its first step is made at a rate of 0.
    """
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
    half: bool,
) -> Any:
    """Lightning's optimiser and per-step schedule.

    Args:
        layers: parameters of the encoder from the embeddings to the top.
        rest: parameters above the encoder (heads), at the full rate.
        total: optimiser steps of the whole run.
        matrices: ids of the parameters that decay; sharded ones have lost their shape.
        half: whether the run computes in bf16.
    """
    groups: list[dict[str, Any]] = []
    turned = {id(parameter) for layer in layers[1:] for parameter in layer if parameter.dim() == 2}
    if options.optimizer == "adamw":
        turned.clear()
    for depth, parameters in enumerate(reversed([*layers, list(rest)])):
        rate = options.learning_rate * options.layer_decay ** max(0, depth - 1)
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        for muon, decayed in ((True, True), (False, True), (False, False)):
            chosen = [p for p in trainable if (id(p) in turned, id(p) in matrices) == (muon, decayed)]
            if chosen:
                decay = options.weight_decay * decayed
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay, "muon": muon})
    kind = partial(Muon, dtype=torch.bfloat16 if half else torch.float32) if turned else torch.optim.AdamW
    # Fused: one pass over memory instead of ten.
    optimizer = kind(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: rate_at(step, warmup=options.warmup_steps, total=total, schedule=options.schedule),
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Muon(torch.optim.AdamW):
    """Muon for the groups that say so (`muon: True`, matrices), AdamW for the others.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) moves a matrix by its momentum with all
    singular values made about 1, here in the size of AdamW's moves, so that one rate and one decay suit both (Liu et
    al. 2025, https://arxiv.org/abs/2502.16982, equation 4). The same as torch.optim.Muon with `match_rms_adamw`, which
    multiplies in bf16 on any machine: 2.8 times as slow as float32 on a processor without bf16.

    Args:
        dtype: of the products.
    """

    def __init__(self, groups: list[dict[str, Any]], *, dtype: torch.dtype, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["muon"]]
        super().step()
        self.param_groups = groups
        for group in groups:
            if group["muon"]:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._turn(weight, weight.grad, group["lr"], group["weight_decay"])
        return loss

    def _turn(self, weight: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
        state = self.state[weight]
        if not state:  # by AdamW's names, which looks for them where a state is loaded
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(weight))
        momentum = state["exp_avg"].lerp_(gradient, 1 - MOMENTUM)
        move = orthogonal(gradient.lerp(momentum, MOMENTUM).to(self.dtype))  # Nesterov's
        weight.mul_(1 - rate * decay).add_(move, alpha=-0.2 * rate * math.sqrt(max(weight.shape)))


def orthogonal(x: Tensor) -> Tensor:
    """A matrix with its singular values brought near 1 (0.7 to 1.2), by five steps of a Newton-Schulz iteration."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x


def restate(optimizer: torch.optim.Optimizer, schedule: Any, module: Any) -> None:
    """Gives a restored optimiser the rates and decays of the configuration, instead of those of its checkpoint."""
    fresh = module.configure_optimizers()["optimizer"]
    for group, new in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        group.update({name: value for name, value in new.items() if name != "params"})
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    for group, share in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["lr"] = group["initial_lr"] * share(schedule.last_epoch)
