"""One class for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.base import LinearHead
from pipeline.finetuning.options import HeadOptions
from pipeline.models.base import Encoder
from pipeline.models.inputs import Batch
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded
from tasks import classification
from tasks.base import Prediction


class SentenceHead(LinearHead):
    """A linear layer on one vector of a text, or on two texts that the encoder read one by one.

    It sees the encoder's own pooled representation when that is trained; a mix or a biLSTM as the mean over tokens.
    """

    takes: ClassVar[frozenset[str]] = frozenset({"class_weights", "label_smoothing"})

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        matched = options.pairs and not encoder.joint_pairs
        super().__init__(encoder, outputs=outputs, options=options, bias=bias, times=4 if matched else 1)

    def forward(self, encoder: Encoder, batch: Batch, encoded: Encoded) -> Tensor:
        """-> logits (B, C)."""
        return self.classifier(self.dropout(self.vector(encoder, batch, encoded)))

    def vector(self, encoder: Encoder, batch: Batch, encoded: Encoded) -> Tensor:
        """(B, N), of pairs whose texts were read one by one (B, 4 N)."""
        vector = self.represent(encoder, encoded)
        return matching_features(*vector.unflatten(0, (-1, 2)).unbind(1)) if batch["mask"].ndim == 3 else vector

    def represent(self, encoder: Encoder, encoded: Encoded) -> Tensor:
        """(B, N)."""
        if self.mix is None and self.lstm is None:
            return encoder.pooled(encoded)
        mask = encoded.mask[..., None]
        return (self.hidden(encoded) * mask).sum(1) / mask.sum(1)

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[Any], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Indices of classes -> (B,)."""
        return torch.tensor(labels), torch.tensor(len(labels))

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        return classification_loss(outputs, labels, **options)

    def decode(self, outputs: Tensor, batch: Batch) -> list[Prediction]:
        probabilities = outputs.float().softmax(-1).tolist()
        return [Prediction(*row) for row in zip(outputs.argmax(-1).tolist(), probabilities, strict=True)]

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return classification.answer(prediction, names)


def matching_features(u: Tensor, v: Tensor) -> Tensor:
    """(B, 4 D): [u; v; |u - v|; u * v] of two texts (Mou et al. 2016; Conneau et al. 2017)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
