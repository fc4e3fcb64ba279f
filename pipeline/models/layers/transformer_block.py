"""The Transformer block (Vaswani et al. 2017) that BERT and GPT share.

Shapes: B batch, T positions, D model size, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.models.generation import KeyValues
from pipeline.models.layers.attention import attention
from pipeline.models.layers.dropout import Dropout


class Block(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection.

    Args:
        size: D.
        heads: H.
        inner_size: width of the feed-forward network.
        dropout: rate on the output of both parts.
        attention_dropout: rate on the attention weights.
        eps: of the layer norms.
        norm: `post` (BERT and the 2018 GPT: after the residual sum) or `pre` (GPT-2: before each part).
        activation: `gelu` (erf) or `gelu_new` (tanh).

    Attributes:
        recompute: whether training keeps only the input of the block, and computes the rest again for the gradient.
    """

    recompute: bool = False

    def __init__(
        self,
        *,
        size: int,
        heads: int,
        inner_size: int,
        dropout: float,
        attention_dropout: float,
        eps: float,
        norm: str,
        activation: str,
    ) -> None:
        super().__init__()
        self.heads, self.pre = heads, norm == "pre"
        self.approximate = "tanh" if activation == "gelu_new" else "none"
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.up = nn.Linear(size, inner_size)
        self.down = nn.Linear(inner_size, size)
        self.norm_attention = nn.LayerNorm(size, eps=eps)
        self.norm_feed_forward = nn.LayerNorm(size, eps=eps)
        self.dropout = Dropout(dropout)
        self.attention_dropout = Dropout(attention_dropout)

    def attend(self, x: Tensor, bias: Tensor | None, causal: bool, past: KeyValues | None) -> Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = past.extend(k, v)
        mixed = attention(q, k, v, bias, self.attention_dropout, causal=causal)
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, size)))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.gelu(self.up(x), approximate=self.approximate)))

    def forward(self, x: Tensor, bias: Tensor | None, *, causal: bool = False, past: KeyValues | None = None) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        if self.recompute and self.training and torch.is_grad_enabled():
            return checkpoint(self.compute, x, bias, causal, past, use_reentrant=False)  # type: ignore[return-value]
        return self.compute(x, bias, causal, past)

    def compute(self, x: Tensor, bias: Tensor | None, causal: bool, past: KeyValues | None) -> Tensor:
        if self.pre:
            x = x + self.attend(self.norm_attention(x), bias, causal, past)
            return x + self.feed_forward(self.norm_feed_forward(x))
        x = self.norm_attention(x + self.attend(x, bias, causal, past))
        return self.norm_feed_forward(x + self.feed_forward(x))
