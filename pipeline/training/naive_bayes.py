"""Fine-tuning by counting: the texts of each label at once, and Bayes' rule; no gradient, no steps, no checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning

from pipeline.finetuning.heads.naive_bayes import NaiveBayesHead
from pipeline.finetuning.options import PLAIN
from pipeline.models.base import Encoder
from pipeline.models.outputs import LoadReport
from pipeline.presets.arms import ArmName
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.training.finetuning import FineTuning
from pipeline.training.recipe import Recipe
from pipeline.training.task_data import TaskData

RECIPE = Recipe(**PLAIN, dropout=0, mix_dropout=0, lm_weight=0, unfreeze_share=0, reinit_layers=0)


class NaiveBayes(FineTuning):
    """Counts the training texts of each label, and validates.

    Args:
        encoder: class and settings of the models of the labels.
        arm: `full` alone: nothing is pretrained, so nothing can be left out.
        seed: of the rows, where `data.train_rows` chooses some.
    """

    is_counting = True

    def __init__(self, *, encoder: Callable[[Tokenizer], Encoder], arm: ArmName = "full", seed: int = 0) -> None:
        nothing: Any = None  # updates weights
        super().__init__(optimization=nothing, warmup_share=0, recipe=RECIPE, arm=arm, seed=seed)
        self.make_encoder = encoder

    def source(self, folder: Path | None, data: TaskData | None) -> tuple[Encoder, LoadReport]:
        """A model that has counted nothing, with the tokenizer of a folder; None: one that cuts texts into bytes."""
        tokenizer = ByteBpe.of_bytes() if folder is None else tokenizers.load(folder)
        return self.make_encoder(tokenizer), LoadReport(loaded=[], new=[], unused=[])

    def learn(self, trainer: lightning.Trainer, data: Any, checkpoint: Path | None) -> None:
        assert isinstance(data, TaskData)
        assert isinstance(self.model.head, NaiveBayesHead)
        self.begin_counting(trainer)
        features = data.features["train"]
        self.tokens_seen += sum(map(len, features))
        labels = [example.label for example in data.examples["train"]]
        self.parameter_count = self.model.head.fit(features, labels)
        trainer.validate(self, data, verbose=False)
