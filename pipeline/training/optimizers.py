"""Optimizers: AdamW and Muon, with parameter groups by layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from pipeline.errors import UserError, check_choice
from pipeline.training.schedules import rate_at

MOMENTUM = 0.95  # of Muon


ScheduleName = Literal["linear", "cosine", "constant", "wsd", "inverse_sqrt"]
OptimizerName = Literal["adamw", "muon"]


@dataclass
class Optimization:
    """AdamW (Loshchilov and Hutter 2017) or Muon (Jordan et al. 2024), with warm-up and decay.

    Args:
        learning_rate: the highest, at the end of the warm-up.
        warmup_steps: w optimizer steps of linear warm-up; step s (from 0) has (s + 1) / (w + 1) of the peak.
        schedule: decay after the warm-up, see `rate_at`; `linear`, `cosine` and `wsd` would reach zero at the step
            after the last one.
        weight_decay: of matrices; biases and norms have none.
        betas: of AdamW: how slowly the means of gradients and of their squares change.
        eps: of AdamW: added to the divisor of an update, against division by zero.
        layer_decay: ratio of a layer's rate to that of the layer above (1: all equal).
        encoder_rate: ratio of the rate of the encoder's top layer to that of what is above the encoder: a head of
            fresh weights wants a higher rate than weights that pretraining has found.
        optimizer: `adamw`, or `muon` for the matrices of the layers and AdamW for all other parameters: embeddings,
            ELMo's character network, biases, norms, heads.
        cautious_decay: of Muon: weight decay only where the update makes a weight smaller too (Chen et al. 2025,
            https://arxiv.org/abs/2510.12402).
        average_share: share of the run, at its end, over which weights are averaged (see weight_mean); 0: none.
    """

    learning_rate: float
    warmup_steps: int
    schedule: ScheduleName
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    layer_decay: float = 1.0
    encoder_rate: float = 1.0
    optimizer: OptimizerName = "adamw"
    cautious_decay: bool = False
    average_share: float = 0.0

    def __post_init__(self) -> None:
        check_choice("model.optimization.schedule", self.schedule, get_args(ScheduleName))
        check_choice("model.optimization.optimizer", self.optimizer, get_args(OptimizerName))
        for name, is_valid, what in (
            ("learning_rate", self.learning_rate > 0, "above 0"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("betas", all(0 <= beta < 1 for beta in self.betas), "two numbers from 0 to below 1"),
            ("eps", self.eps > 0, "above 0"),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
            ("encoder_rate", 0 < self.encoder_rate < math.inf, "above 0"),
            ("average_share", 0 <= self.average_share <= 1, "a share, from 0 to 1"),
        ):
            if not is_valid:
                raise UserError(f"model.optimization.{name} is {getattr(self, name)}; it must be {what}.")
        if self.cautious_decay and self.optimizer != "muon":
            raise UserError("model.optimization.cautious_decay is of Muon: set model.optimization.optimizer to muon.")


def build(
    options: Optimization,
    layers: list[list[nn.Parameter]],
    rest: Iterable[nn.Parameter],
    *,
    total: int,
    decay_parameters: set[int],
    half: bool,
    fused: bool = True,
) -> Any:
    """An optimizer and its schedule per step, as Lightning's `configure_optimizers` returns them.

    Args:
        layers: parameters of the encoder from the embeddings to the top.
        rest: parameters above the encoder (heads), at the full rate.
        total: optimizer steps of the whole run.
        decay_parameters: ids of the parameters with weight decay; their shapes cannot tell where they are sharded.
        half: whether the run computes in bf16.
        fused: one pass over memory instead of about ten; not with fp16, whose gradients are unscaled before clipping.
    """
    groups: list[dict[str, Any]] = []
    by_muon = {id(parameter) for layer in layers[1:] for parameter in layer if parameter.dim() == 2}
    if options.optimizer == "adamw":
        by_muon.clear()
    for depth, parameters in enumerate(reversed([*layers, list(rest)])):
        rate = options.learning_rate
        if depth:  # of the encoder
            rate *= options.encoder_rate * options.layer_decay ** (depth - 1)
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        for muon, decayed in ((True, True), (False, True), (False, False)):
            chosen = [p for p in trainable if (id(p) in by_muon, id(p) in decay_parameters) == (muon, decayed)]
            if chosen:
                decay = options.weight_decay * decayed
                groups.append({"params": chosen, "lr": rate, "weight_decay": decay, "muon": muon})
    dtype = torch.bfloat16 if half else torch.float32
    kind = partial(Muon, dtype=dtype, cautious=options.cautious_decay) if by_muon else torch.optim.AdamW
    optimizer = kind(groups, lr=options.learning_rate, betas=options.betas, eps=options.eps, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: rate_at(step, warmup=options.warmup_steps, total=total, schedule=options.schedule),
    )
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Muon(torch.optim.AdamW):
    """Muon for parameter groups with `muon: True` (matrices), AdamW for other parameters.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) updates a matrix by its orthogonalized
    momentum, scaled to the RMS of AdamW's updates, so that one learning rate and one decay suit both (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982, equation 4). The updates equal those of torch.optim.Muon with `match_rms_adamw`,
    which multiplies in bf16 on any machine: on a processor without bf16 2.8 times slower than float32.

    Args:
        dtype: of the matrix products.
        cautious: decay only what the update makes smaller too.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, dtype: torch.dtype, cautious: bool = False, **adamw: Any
    ) -> None:
        super().__init__(groups, **adamw)
        self.dtype, self.cautious = dtype, cautious

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["muon"]]
        super().step()
        self.param_groups = groups
        chosen = [(p, group) for group in groups if group["muon"] for p in group["params"] if p.grad is not None]
        for (weight, group), update in zip(chosen, self._updates([weight for weight, _ in chosen]), strict=True):
            self._apply(weight, update, group["lr"], group["weight_decay"])
        return loss

    def _updates(self, weights: list[Tensor]) -> Iterator[Tensor]:
        """The orthogonalized momentum of each matrix.

        On a GPU those of one shape are made together, since small products wait for Python; on a processor this is no
        faster (docs/recipes.md).
        """
        if not weights or apart(weights[0]):
            yield from (newton_schulz(self._momentum(weight)) for weight in weights)
            return
        momenta = [self._momentum(weight) for weight in weights]
        updates: dict[int, Tensor] = {}
        for shape in {momentum.shape for momentum in momenta}:
            places = [place for place, momentum in enumerate(momenta) if momentum.shape == shape]
            updates |= dict(zip(places, newton_schulz(torch.stack([momenta[place] for place in places])), strict=True))
        yield from (updates[place] for place in range(len(weights)))

    def _momentum(self, weight: Tensor) -> Tensor:
        """Nesterov's, in the type of the products."""
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None
        if not state:  # AdamW's names: it expects them when a state is loaded
            state.update(step=torch.zeros(()), exp_avg=torch.zeros_like(weight))
        return gradient.lerp(state["exp_avg"].lerp_(gradient, 1 - MOMENTUM), MOMENTUM).to(self.dtype)

    def _apply(self, weight: Tensor, update: Tensor, rate: float, decay: float) -> None:
        if self.cautious:
            weight.sub_(weight * (update * weight > 0), alpha=rate * decay)
        else:
            weight.mul_(1 - rate * decay)
        weight.add_(update, alpha=-0.2 * rate * math.sqrt(max(weight.shape)))


def apart(weight: Tensor) -> bool:
    """Whether matrices are orthogonalized one by one."""
    return not weight.is_cuda


def newton_schulz(x: Tensor) -> Tensor:
    """Orthogonalizes matrices (R, C) or (N, R, C) approximately, by five Newton-Schulz iterations.

    Singular values are then 0.7 to 1.2.
    """
    if x.shape[-2] > x.shape[-1]:
        return newton_schulz(x.mT).mT
    add_product = torch.addmm if x.ndim == 2 else torch.baddbmm
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = add_product(x, add_product(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x
