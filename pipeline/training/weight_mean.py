"""The mean of the weights over the end of a run (Izmailov et al. 2018; Vaswani et al. 2017, 6.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

# In a checkpoint, beside the state that training continues from.
WEIGHTS, COUNT, SPAN = "mean_weights", "mean_count", "mean_span"


class WeightMean:
    """The running mean of the trained weights of a module over its last steps.

    Validation, the best checkpoint and what is saved in the end are of the mean; training goes on with its own weights.

    Attributes:
        count: steps in the mean.
        span: the share of the run and its steps that the mean is of.
        in_module: whether the module holds the mean.
        other: name -> the mean; while the module holds the mean, the weights of training.
    """

    def __init__(self) -> None:
        self.count, self.in_module = 0, False
        self.span: list[float] | None = None
        self.other: dict[str, Tensor] = {}

    def add(self, module: nn.Module) -> None:
        """Adds the weights after a step."""
        weights = {name: weight.detach() for name, weight in trained(module).items()}
        if not self.count:
            self.other = {name: weight.clone() for name, weight in weights.items()}
        # Those of a checkpoint are on the processor.
        self.other = {name: self.other[name].to(weight.device) for name, weight in weights.items()}
        self.count += 1
        torch._foreach_lerp_(list(self.other.values()), list(weights.values()), 1 / self.count)

    @torch.no_grad()
    def swap(self, module: nn.Module) -> None:
        """Exchanges the weights of the module and the mean, once there is one."""
        if not self.count:
            return
        for name, weight in trained(module).items():
            held = weight.detach().clone()
            weight.copy_(self.other[name])
            self.other[name].copy_(held)
        self.in_module = not self.in_module

    @contextlib.contextmanager
    def put_into(self, module: nn.Module) -> Iterator[None]:
        """Inside, the module holds the mean, once there is one."""
        self.swap(module)
        try:
            yield
        finally:
            self.swap(module)

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Puts the mean into a checkpoint; its `state_dict` has the weights that training continues from."""
        if not self.count:
            return
        state, other = checkpoint["state_dict"], self.other
        if self.in_module:
            other = {name: state[name] for name in self.other}
            checkpoint["state_dict"] = {**state, **under_all_names(self.other, state)}
        checkpoint[WEIGHTS], checkpoint[COUNT], checkpoint[SPAN] = other, self.count, self.span

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Continues the mean of a checkpoint."""
        self.count, self.in_module, self.span = checkpoint.get(COUNT, 0), False, checkpoint.get(SPAN)
        self.other = {name: weight.clone() for name, weight in checkpoint.get(WEIGHTS, {}).items()}


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def final_weights(checkpoint: dict[str, Any]) -> dict[str, Tensor]:
    """The weights that a run has made, of the state of a checkpoint: the mean, where there is one."""
    state = checkpoint["state_dict"]
    return {**state, **under_all_names(checkpoint.get(WEIGHTS, {}), state)}


def under_all_names(weights: dict[str, Tensor], state: dict[str, Any]) -> dict[str, Tensor]:
    """Weights, each under every name that its tensor has in a state: one that two modules share has two."""
    names: dict[tuple[int, torch.Size], list[str]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            names.setdefault((value.data_ptr(), value.shape), []).append(name)
    return {
        alias: weight
        for name, weight in weights.items()
        for alias in (name, *names.get((state[name].data_ptr(), state[name].shape), ()))
    }
