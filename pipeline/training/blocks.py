"""The repeated blocks of a network: compiled, or computed twice to save memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from pipeline.errors import UserError


def blocks_of(model: nn.Module) -> list[Any]:
    """The modules that know `recompute` (see layers/transformer_block.py)."""
    return [module for module in model.modules() if hasattr(module, "recompute")]


@contextlib.contextmanager
def prepared(model: nn.Module, *, compiled: bool, recomputed: bool, backend: str = "inductor") -> Iterator[None]:
    """Within it the blocks of a model are compiled by torch.compile, or their activations are computed twice.

    Args:
        compiled: one block is compiled, and its code used for all: a whole network would take minutes.
        recomputed: keep only the input of a block, and compute the rest again in the backward pass (Chen et al. 2016).

    Raises:
        UserError: the model has no such blocks.
    """
    blocks = blocks_of(model)
    if (compiled or recomputed) and not blocks:
        what = "compile" if compiled else "activation_checkpointing"
        raise UserError(f"This model has no Transformer blocks, which {what} is for; leave {what} out.")
    for block in blocks:
        block.recompute = recomputed
        if compiled:
            block.compile(backend=backend)
    try:
        yield
    finally:
        for block in blocks:
            block.recompute = False
            block._compiled_call_impl = None  # as before Module.compile: samples and scores have other shapes
