"""Fine-tuning of a network that no folder holds: fresh weights, and a tokenizer of the task's own training texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pipeline.data.tokenizer_builder import TokenizerOptions, interruptible
from pipeline.models.base import Encoder
from pipeline.models.outputs import LoadReport
from pipeline.presets.arms import ArmName
from pipeline.tokenization.base import Tokenizer
from pipeline.training.finetuning import FineTuning
from pipeline.training.optimizers import Optimization
from pipeline.training.recipe import Recipe
from pipeline.training.task_data import TaskData


class FromScratch(FineTuning):
    """Fine-tuning without an encoder folder.

    Args:
        optimization, warmup_share, recipe, seed: as of FineTuning.
        encoder: class and sizes of the network, as its file in configs/pretrain has them.
        tokenizer: how the tokenizer is made.
        arm: one with fresh weights.
    """

    def __init__(
        self,
        *,
        optimization: Optimization,
        warmup_share: float,
        recipe: Recipe,
        encoder: Callable[[Tokenizer], Encoder],
        tokenizer: TokenizerOptions,
        arm: ArmName = "scratch",
        seed: int = 0,
    ) -> None:
        super().__init__(optimization=optimization, warmup_share=warmup_share, recipe=recipe, arm=arm, seed=seed)
        self.make_encoder, self.tokenizer = encoder, tokenizer

    def source(self, folder: Path | None, data: TaskData | None) -> tuple[Encoder, LoadReport]:
        """A network with fresh weights; where its tokenizer knows languages, those of a translation too."""
        assert data is not None
        options, columns = self.tokenizer, data.task.columns
        if options.languages and data.task.parallel:
            known = [*options.languages, columns["source"], columns["target"]]
            options = replace(options, languages=list(dict.fromkeys(known)))
        tokenizer = options.load() or interruptible(options.train, data.training_texts())
        encoder = self.make_encoder(tokenizer)
        own = (name for name in encoder.export_state() if name.startswith(encoder.pretraining_tensors))
        encoder.untrained = frozenset(own)  # unless the task trains them
        return encoder, LoadReport(loaded=[], new=[], unused=[])
