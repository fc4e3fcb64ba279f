"""One number for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.sentence import SentenceHead
from pipeline.models.base import Encoded, Encoder, Inputs
from pipeline.models.losses import Loss
from tasks.base import Prediction


class RegressionHead(SentenceHead):
    """A linear layer on the vector of a text that a SentenceHead sees; trained on the squared error."""

    hf_config: ClassVar[dict[str, Any]] = {"problem_type": "regression", "num_labels": 1}
    takes: ClassVar[frozenset[str]] = frozenset({"pair", "layers", "lstm"})

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[float], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Numbers -> (B,)."""
        return torch.tensor(labels, dtype=torch.float32), torch.tensor(len(labels))

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> scores (B, 1), in float32: between 4 and 5 bfloat16 knows 32 numbers."""
        vector = self.dropout(self.vector(encoder, batch, encoded))
        with torch.autocast(vector.device.type, enabled=False):
            return self.classifier(vector.float())

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        """Squared error of (B, 1) and (B,)."""
        return Loss((outputs[:, 0] - labels).square().sum(), len(labels))

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        return [Prediction(score) for score in outputs[:, 0].tolist()]

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return {"score": prediction.label}
