"""Several labels for a text, or for a pair of texts: each has a probability of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.sentence import SentenceHead
from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs
from pipeline.models.losses import Loss
from tasks import multilabel
from tasks.base import Prediction


class MultiLabelHead(SentenceHead):
    """The linear layer of a SentenceHead, and a sigmoid for each label; transformers' multi_label_classification."""

    hf_config: ClassVar[dict[str, Any]] = {"problem_type": "multi_label_classification"}
    takes: ClassVar[frozenset[str]] = frozenset({"pair", "layers", "lstm"})

    @classmethod
    def collate(
        cls, encoder: Encoder, labels: Sequence[list[int]], features: Sequence[Feature]
    ) -> tuple[Tensor, Tensor]:
        """Lists of indices -> (B, L) with -1 behind the last one of a text."""
        rows = [torch.tensor(label, dtype=torch.long) for label in labels]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1), torch.tensor(len(labels))

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        """Binary cross entropy of (B, C) and (B, L), the mean over the labels of a text."""
        truth = outputs.new_zeros(len(outputs), outputs.shape[1] + 1, dtype=torch.float32)
        truth = truth.scatter(1, labels.where(labels >= 0, outputs.shape[1]), 1.0)[:, :-1]  # the last one is padding
        losses = F.binary_cross_entropy_with_logits(outputs.float(), truth, reduction="none")
        return Loss(losses.mean(1).sum(), len(labels))

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        threshold, rows = self.options.extra["threshold"], outputs.float().sigmoid().tolist()
        return [Prediction([index for index, p in enumerate(row) if p > threshold], row) for row in rows]

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return multilabel.answer(prediction, names)
