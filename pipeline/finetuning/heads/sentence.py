"""One class for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.base import LinearHead
from pipeline.finetuning.heads.decomposable_attention import HIDDEN, DecomposableAttention, matching_features
from pipeline.finetuning.options import HeadOptions
from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs, sides
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded, mean_of
from tasks import classification
from tasks.base import Prediction


class SentenceHead(LinearHead):
    """A linear layer on one vector of a text or of a pair of texts.

    It sees the encoder's own pooled representation when that is trained; a mix or a biLSTM as the mean over tokens.
    Two texts that the encoder reads one by one are compared by their representations, or token by token (`attended`).
    """

    takes: ClassVar[frozenset[str]] = frozenset({"class_weights", "label_smoothing", "pair", "layers", "lstm"})

    def __init__(self, encoder: Encoder, *, outputs: int, options: HeadOptions, bias: bool = True) -> None:
        size, reading = self.size_of(encoder, options), options.pair if options.pairs else None
        seen = {"compared": 4 * size, "attended": HIDDEN}.get(reading or "", size)
        super().__init__(encoder, outputs=outputs, options=options, bias=bias, seen=seen)
        attended = reading == "attended"
        self.attention = DecomposableAttention(size, dropout=options.dropout) if attended else None

    @classmethod
    def is_plain(cls, options: HeadOptions) -> bool:
        """Not where the texts of a pair are read one by one: no class of transformers has such a head."""
        return super().is_plain(options) and options.pair not in ("compared", "attended")

    def forward(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """-> logits (B, C)."""
        return self.classifier(self.dropout(self.vector(encoder, batch, encoded)))

    def vector(self, encoder: Encoder, batch: Inputs, encoded: Encoded) -> Tensor:
        """What the linear layer sees: (B, N), of compared texts (B, 4 N), of attended ones (B, H)."""
        if self.attention is not None:
            return self.attention(*sides(self.hidden(encoded)), *sides(encoded.mask))
        vector = self.represent(encoder, encoded)
        return matching_features(*sides(vector)) if batch["mask"].ndim == 3 else vector

    @property
    def reads_pooled(self) -> bool:
        return self.mix is None and self.lstm is None and self.attention is None

    def represent(self, encoder: Encoder, encoded: Encoded) -> Tensor:
        """(B, N)."""
        if self.reads_pooled:
            return encoder.pooled(encoded)
        return mean_of(self.hidden(encoded), encoded.mask)

    @classmethod
    def collate(cls, encoder: Encoder, labels: Sequence[Any], features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
        """Indices of classes -> (B,)."""
        return torch.tensor(labels), torch.tensor(len(labels))

    def loss(self, outputs: Tensor, labels: Tensor, **options: Any) -> Loss:
        return classification_loss(outputs, labels, **options)

    def decode(self, outputs: Tensor, batch: Inputs) -> list[Prediction]:
        probabilities = outputs.float().softmax(-1).tolist()
        return [Prediction(*row) for row in zip(outputs.argmax(-1).tolist(), probabilities, strict=True)]

    def answer(self, text: Any, prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
        return classification.answer(prediction, names)
