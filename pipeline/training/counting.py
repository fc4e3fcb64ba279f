"""Pretraining by counting: no gradient, no steps, no checkpoints; one pass, and one validation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import torch

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.objectives.base import Objective
from pipeline.tokenization.base import Tokenizer
from pipeline.training.corpus_data import CorpusData
from pipeline.training.hardware import memory
from pipeline.training.pretraining import Pretraining


class Counting(Pretraining):
    """Counts the training part of a corpus, and validates.

    Args:
        encoder: class and sizes; it is built when the tokenizer is known.
        objective: makes the rows of the validation; the data module has the same one.
        arpa: also write `model.arpa.gz`, the text format that other programs read.
        seed: of nothing, since nothing is drawn.
    """

    is_counting = True

    def __init__(
        self, *, encoder: Callable[[Tokenizer], Encoder], objective: Objective, arpa: bool, seed: int = 0
    ) -> None:
        nothing: Any = None  # updates weights
        super().__init__(encoder=encoder, objective=objective, embeddings="random", optimization=nothing, seed=seed)
        self.arpa = arpa

    def build(self, data: CorpusData) -> None:
        super().build(data)
        self.encoder.check_fit(len(data.train.tokens), memory())

    def learn(self, trainer: lightning.Trainer, data: Any, checkpoint: Path | None) -> None:
        assert isinstance(data, CorpusData)
        self.begin_counting(trainer)
        store = data.train
        self.tokens_seen += len(store.tokens) + len(store.documents) - 1  # each document has an end
        self.parameter_count = self.encoder.fit(store.tokens, store.document_starts)
        try:
            trainer.validate(self, data, verbose=False)
        except UserError as error:  # it has learned what it could
            self.print(f"Warning: there is no validation. {error}")
            self.sums.take("val", torch.Tensor.clone)
