"""The repeated blocks of a network: compiled, or computed twice to save memory."""

from __future__ import annotations

from typing import Any

import lightning
from torch import nn

from pipeline.errors import UserError
from pipeline.models.layers.recomputable import Recomputable

VARIANTS = 16  # of a block: in training or not, with padding or not, some positions or all, lengths fixed or not


def blocks_of(model: nn.Module) -> list[Recomputable]:
    return [module for module in model.modules() if isinstance(module, Recomputable)]


def check_blocks(model: nn.Module, *, compiled: bool, recomputed: bool) -> None:
    """Raises: UserError, the model has no blocks to compile or recompute."""
    if (compiled or recomputed) and not blocks_of(model):
        what = "compile" if compiled else "activation_checkpointing"
        raise UserError(f"This model has no Transformer blocks, which {what} is for; leave {what} out.")


def compile_blocks(model: nn.Module, **options: Any) -> None:
    """Compiles the blocks, for more than torch's 8 variants: what is beyond would run uncompiled."""
    from torch._dynamo import config

    config.recompile_limit = max(VARIANTS, config.recompile_limit)
    for block in blocks_of(model):
        block.compile(**options)


class RecomputedBlocks(lightning.Callback):
    """Keeps only the input of each block, and computes the rest again in the backward pass (Chen et al. 2016)."""

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        for block in blocks_of(module.trained):
            block.recompute = True

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        for block in blocks_of(module.trained):
            block.recompute = False


class CompiledBlocks(lightning.Callback):
    """Compiles the blocks by torch.compile: one is compiled, and its code serves all; a whole network takes minutes.

    The top block is compiled once more where only some of its positions are asked for.

    From the second batch on, since `Speed` counts the operations of the first one, and nothing compiles meanwhile. When
    the training ends they are as before: samples and scores have other shapes.
    """

    def __init__(self, backend: str = "inductor") -> None:
        self.backend, self.compiled = backend, False

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *args: Any) -> None:
        if not self.compiled:
            self.compiled = True
            compile_blocks(module.trained, backend=self.backend)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        for block in blocks_of(module.trained):
            block._compiled_call_impl = None  # as before Module.compile
