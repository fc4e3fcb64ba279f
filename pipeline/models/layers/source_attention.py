"""Attention of a recurrent decoder over the states of a source: dot products (Luong et al. 2015) or additive (Bahdanau
et al. 2015).

Shapes: S sources, T positions of a source, R rows that are written, side by side those of a source, U positions of the
target, D model size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pipeline.models.layers.attention import padding_bias
from pipeline.models.layers.memory import Memory


class DotAttention(nn.Module):
    """score(s, h) = s . h (Luong et al. 2015, section 3.1: global attention, `dot`); no weights."""

    def __init__(self, size: int) -> None:  # as AdditiveAttention, which needs the size
        super().__init__()

    def keys(self, source: Tensor) -> Tensor:
        """(S, T, D) -> (S, T, D): what depends on the source alone."""
        return source

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(S, N, D), (S, T, D) -> (S, N, T)."""
        return queries @ keys.transpose(1, 2)


class AdditiveAttention(nn.Module):
    """score(s, h) = v . tanh(W s + U h) (Bahdanau et al. 2015, appendix A.1.2)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(size, size, bias=False)
        self.key = nn.Linear(size, size)
        self.score = nn.Linear(size, 1, bias=False)

    def keys(self, source: Tensor) -> Tensor:
        """(S, T, D) -> (S, T, D): what depends on the source alone."""
        return self.key(source)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(S, N, D), (S, T, D) -> (S, N, T)."""
        return self.score(torch.tanh(self.query(queries)[:, :, None] + keys[:, None]))[..., 0]


Attention = DotAttention | AdditiveAttention
ATTENTIONS: dict[str, type[Attention]] = {
    "dot": DotAttention,
    "additive": AdditiveAttention,
}


def memory_of(attention: Attention, source: Tensor, mask: Tensor) -> Memory:
    """The states of sources (S, T, D), which `mask` (S, T) says are no padding -> keys and values, of one head."""
    pair = attention.keys(source)[:, None], source[:, None]
    return Memory([pair], padding_bias(mask), torch.arange(len(source), device=source.device))


def attend(attention: Attention | None, queries: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """(R, U, D) -> contexts (R, U, D), the mean of a source by weight, and the weights (R, U, T)."""
    assert attention is not None
    (keys, values), bias = memory.keys_values[0], memory.bias
    keys, values = keys[:, 0], values[:, 0]
    grouped = queries.reshape(len(keys), -1, queries.shape[-1])
    scores = attention.scores(grouped, keys).float()
    weights = (scores if bias is None else scores + bias[:, 0]).softmax(-1)
    contexts = weights.to(values.dtype) @ values
    return contexts.view(*queries.shape[:2], -1), weights.view(*queries.shape[:2], -1)
