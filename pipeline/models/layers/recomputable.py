"""A block that training may compute twice, to keep less in memory (Chen et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Recomputable(nn.Module):
    """The base of repeated blocks: `forward` names the inputs of `compute`, and hands them to `run`.

    The blocks of a network are found by this class: see training/blocks.py.

    Attributes:
        compute: the block, which each of them defines with its own inputs.
        recompute: whether training keeps only the inputs of the block, and computes the rest again for the gradient.
    """

    compute: Callable[..., Tensor]
    recompute: bool = False

    def run(self, *inputs: Any) -> Tensor:
        """`self.compute(*inputs)`"""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(self.compute, *inputs, use_reentrant=False)
        return self.compute(*inputs)
