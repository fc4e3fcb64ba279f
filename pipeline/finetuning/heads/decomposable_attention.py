"""Tokens of a text beside those of another: aligned and compared, and summed to a vector (Parikh et al. 2016).

Shapes: B batch, S and T tokens of the texts, N size of a token's vector, H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.models.layers.dropout import Dropout

HIDDEN = 200  # H, as in the paper


class _Comparison(nn.Module):
    """What attends and compares (section 3), on vectors that an encoder gives instead of word embeddings.

    So, as Chen et al. (2017, 3.2) have it for such vectors, tokens are aligned by their own dot products, which find
    equal words from the first step on, and are compared by difference and product too. The vectors are normalized, as
    encoders differ in their size. Special tokens take part, as the paper's NULL: a token that is like none of the other
    text has one to attend to.

    Args:
        size: N.
        dropout: on the input of each layer.
    """

    def __init__(self, size: int, *, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.compare = feed_forward(4 * size, dropout=dropout)


class AlignedTokens(_Comparison):
    """Each token of a text beside what it is like in another."""

    def forward(self, a: Tensor, b: Tensor, mask_b: Tensor) -> Tensor:
        """Tokens (B, S, N), each beside its like in a text of tokens (B, T, N), true in the mask (B, T): (B, S, H)."""
        a, b = self.norm(a), self.norm(b)
        return self.compare(matching_features(a, aligned(similarities(a, b), b, mask_b)))


class DecomposableAttention(_Comparison):
    """Two texts as one vector: attend, compare, aggregate."""

    def __init__(self, size: int, *, dropout: float) -> None:
        super().__init__(size, dropout=dropout)
        self.aggregate = feed_forward(2 * HIDDEN, dropout=dropout)

    def forward(self, a: Tensor, b: Tensor, mask_a: Tensor, mask_b: Tensor) -> Tensor:
        """Tokens (B, S, N) and (B, T, N), true in the masks (B, S) and (B, T) -> (B, H)."""
        a, b = self.norm(a), self.norm(b)
        scores = similarities(a, b)
        compared_a = self.compared(a, aligned(scores, b, mask_b), mask_a)
        compared_b = self.compared(b, aligned(scores.transpose(1, 2), a, mask_a), mask_b)
        return self.aggregate(torch.cat([compared_a, compared_b], -1))

    def compared(self, text: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        """Equations 3 and 4: tokens beside what they are aligned with, (B, S, N) both, summed over the text: (B, H)."""
        return (self.compare(matching_features(text, other)) * mask[..., None]).sum(1)


def similarities(a: Tensor, b: Tensor) -> Tensor:
    """Scaled dot products (B, S, T) of tokens (B, S, N) and (B, T, N)."""
    return a @ b.transpose(1, 2) / a.shape[-1] ** 0.5


def aligned(scores: Tensor, other: Tensor, mask: Tensor) -> Tensor:
    """Equation 2: scores (B, S, T) of the tokens of another text (B, T, N) -> its part like each token, (B, S, N)."""
    shares = scores.float().masked_fill(~mask[:, None], torch.finfo(torch.float32).min).softmax(-1)
    return shares.to(other.dtype) @ other


def matching_features(u: Tensor, v: Tensor) -> Tensor:
    """(..., 4 N): [u; v; |u - v|; u * v] of two vectors (..., N) (Mou et al. 2016; Conneau et al. 2017)."""
    return torch.cat([u, v, (u - v).abs(), u * v], -1)


def feed_forward(size: int, *, dropout: float) -> nn.Sequential:
    """(..., size) -> (..., H): two layers with ReLU."""
    return nn.Sequential(
        Dropout(dropout), nn.Linear(size, HIDDEN), nn.ReLU(), Dropout(dropout), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
    )
