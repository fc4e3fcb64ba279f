"""The small networks that a task puts on an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.encoders.base import Batch, Encoded, Encoder
from pipeline.encoders.transformer import Dropout


class ScalarMix(nn.Module):
    """gamma * sum_k softmax(w)_k * layer_k (Peters et al. 2018, equation 1).

    Args:
        layers: how many layers are mixed.
        dropout: rate at which a layer is left out of a training step's mix, so that none is relied on alone.
    """

    def __init__(self, layers: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def shares(self) -> dict[str, float]:
        """What each layer counts, and gamma."""
        shares = {f"layer_{k}": float(w) for k, w in enumerate(self.weights.detach().softmax(0))}
        return {**shares, "gamma": float(self.gamma.detach())}

    def forward(self, layers: list[Tensor]) -> Tensor:
        """[(B, T, D)] -> (B, T, D)."""
        weights: Tensor = self.weights
        if self.training and self.dropout:
            out = torch.rand(len(weights), device=weights.device) < self.dropout
            weights = weights.masked_fill(out & ~out.all(), -1e9)  # not all of them
        return self.gamma * torch.einsum("k,kbtd->btd", weights.softmax(0), torch.stack(layers))


class SentenceHead(nn.Module):
    """Dropout and a linear layer on the representation of a text, or of a pair of texts.

    Args:
        encoder: gives the sizes and, when it is fine-tuned, its own pooled representation.
        classes: number of labels.
        dropout: before the linear layer.
        mix: use the mean over tokens of a scalar mix of all layers: for a frozen encoder, whose top layer and
            pooler were shaped by pretraining alone.
        mix_dropout: of the scalar mix.
        pairs: whether there are two texts.
    """

    def __init__(
        self, encoder: Encoder, *, classes: int, dropout: float, mix: bool, mix_dropout: float, pairs: bool
    ) -> None:
        super().__init__()
        self.mix = ScalarMix(len(encoder.layer_groups()), dropout=mix_dropout) if mix else None
        self.dropout = Dropout(dropout)
        compared = pairs and not encoder.joins_pairs
        self.classifier = nn.Linear(encoder.size * (4 if compared else 1), classes)
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, encoder: Encoder, batch: Batch) -> Tensor:
        """-> logits (B, classes)."""
        vector = self.represent(encoder, encoder(batch))
        second = {name.removeprefix("second/"): value for name, value in batch.items() if name.startswith("second/")}
        if second:
            vector = compare(vector, self.represent(encoder, encoder(second)))
        return self.classifier(self.dropout(vector))

    def represent(self, encoder: Encoder, encoded: Encoded) -> Tensor:
        """(B, D)."""
        if self.mix is None:
            return encoder.pooled(encoded)
        mask = encoded.mask[..., None]
        return (self.mix(encoded.layers) * mask).sum(1) / mask.sum(1)


def compare(u: Tensor, v: Tensor) -> Tensor:
    """(B, 4 D): [u; v; |u - v|; u v] of texts that were read apart (Mou et al. 2016; Conneau et al. 2017)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)
