"""The Transformer block (Vaswani et al. 2017): of an encoder, of a causal model, and with cross-attention of a decoder.

Shapes: B batch, T positions, S sources, D model size, H heads, d size of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.models.layers.attention import attention
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues
from pipeline.models.layers.memory import Memory
from pipeline.models.layers.recomputable import Recomputable

STD = 0.02  # of weights at the start (Radford et al. 2018, Devlin et al. 2018)


def relu2(x: Tensor) -> Tensor:
    """The square of a ReLU (So et al. 2021)."""
    return F.relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": relu2,
    "swish": F.silu,
}


class Block(Recomputable):
    """Self-attention, cross-attention in a decoder, and a feed-forward network, each with a residual connection.

    Args:
        size: D.
        heads: H.
        inner_size: width of the feed-forward network.
        dropout: rate on the output of each part.
        attention_dropout: rate on the attention weights.
        eps: of the layer norms.
        norm: `post` (BERT and the 2018 GPT: after the residual sum) or `pre` (GPT-2: before each part).
        activation: one of ACTIVATIONS; `gelu` is that of erf, `gelu_new` that of tanh.
        cross: whether it attends to a memory too.
    """

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
        cross: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.pre = heads, norm == "pre"
        self.activation = ACTIVATIONS[activation]
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.up = nn.Linear(size, inner_size)
        self.down = nn.Linear(inner_size, size)
        self.norm_attention = nn.LayerNorm(size, eps=eps)
        self.norm_feed_forward = nn.LayerNorm(size, eps=eps)
        self.dropout = Dropout(dropout)
        self.attention_dropout = Dropout(attention_dropout)
        if cross:
            self.cross_q = nn.Linear(size, size)
            self.cross_kv = nn.Linear(size, 2 * size)
            self.cross_out = nn.Linear(size, size)
            self.norm_cross = nn.LayerNorm(size, eps=eps)

    def zero_outputs(self) -> None:
        """Sets to zero what each part adds to the residual stream, so that the block starts as the identity or norm.

        Source: Bachlechner et al. 2020; Yang et al. 2022, https://arxiv.org/abs/2203.03466, D.2.
        """
        for part in (self.out, self.down):
            nn.init.zeros_(part.weight)

    def attend(
        self, x: Tensor, bias: Tensor | None, causal: bool, past: KeyValues | None, layer: int, only: Tensor | None
    ) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self_attention(q, k, v, bias, self.attention_dropout, causal=causal, past=past, layer=layer)
        return self.dropout(self.out(picked(mixed, only)))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The top of an encoder (S, T, D) -> keys and values of cross-attention, (S, H, T, d) each."""
        rows, length, _ = source.shape
        k, v = self.cross_kv(source).view(rows, length, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        return k, v

    def attend_memory(self, x: Tensor, memory: Memory, layer: int) -> Tensor:
        """Rows that read the same source are further queries of it: no source is copied for its hypotheses."""
        keys, values = memory.keys_values[layer]
        rows, length, size = x.shape
        q = self.cross_q(x).view(len(keys), -1, self.heads, size // self.heads).transpose(1, 2)
        mixed = attention(q, keys, values, memory.bias, self.attention_dropout)
        return self.dropout(self.cross_out(mixed.transpose(1, 2).reshape(rows, length, size)))

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(self.activation(self.up(x))))

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None,
        *,
        causal: bool = False,
        past: KeyValues | None = None,
        memory: Memory | None = None,
        layer: int = 0,
        only: Tensor | None = None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            bias: of self-attention, see `attention`.
            past: keys and values of the tokens before; those of x are added.
            memory: what a decoder attends to.
            layer: the number of this block in both.
            only: (N,) positions b T + t whose output is asked for; the result has these alone, (N, D). Keys and values
                are of all positions, the rest is saved. Not beside a memory.
        """
        return self.run(x, bias, causal, past, memory, layer, only)

    def compute(
        self,
        x: Tensor,
        bias: Tensor | None,
        causal: bool,
        past: KeyValues | None,
        memory: Memory | None,
        layer: int,
        only: Tensor | None,
    ) -> Tensor:
        if self.pre:
            x = picked(x, only) + self.attend(self.norm_attention(x), bias, causal, past, layer, only)
            if memory is not None:
                x = x + self.attend_memory(self.norm_cross(x), memory, layer)
            return x + self.feed_forward(self.norm_feed_forward(x))
        x = self.norm_attention(picked(x, only) + self.attend(x, bias, causal, past, layer, only))
        if memory is not None:
            x = self.norm_cross(x + self.attend_memory(x, memory, layer))
        return self.norm_feed_forward(x + self.feed_forward(x))


def self_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    dropout: Dropout,
    *,
    causal: bool,
    past: KeyValues | None,
    layer: int,
) -> Tensor:
    """Queries, keys and values of the same positions, (B, H, T, d) each -> (B, T, H d).

    Keys and values may have fewer heads, each of which serves as many heads of queries (Ainslie et al. 2023).

    Args:
        bias: see `attention`.
        past: those of the positions before; k and v are added as those of block `layer`.
    """
    batch, heads, length, width = q.shape
    if past is not None:
        k, v = past.extend(layer, k, v)
        if len(k) < batch:  # rows that share keys are further queries
            q = q.reshape(len(k), -1, heads, width).transpose(1, 2)
    if k.shape[1] < heads:
        k, v = (part.repeat_interleave(heads // k.shape[1], 1) for part in (k, v))
    mixed = attention(q, k, v, bias, dropout, causal=causal and length > 1)
    return mixed.transpose(1, 2).reshape(batch, length, heads * width)


def picked(x: Tensor, only: Tensor | None) -> Tensor:
    """(B, T, D) -> (N, D), the positions that are asked for; all of x without them."""
    return x if only is None else x.flatten(0, 1)[only]


def initialize(model: nn.Module) -> None:
    """Normal weights of linear layers and embeddings, and zero biases (Radford et al. 2018, Devlin et al. 2018)."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])


def narrow_residual(blocks: nn.ModuleList) -> None:
    """Smaller weights where blocks add to the residual stream: its variance does not grow with depth (Radford et al.
    2019, 2.3).
    """
    for block in blocks:
        for part in (cast(nn.Linear, block.out), cast(nn.Linear, block.down)):
            nn.init.normal_(part.weight, std=STD / math.sqrt(2 * len(blocks)))


def scattered(top: Tensor, only: Tensor | None, below: Tensor) -> Tensor:
    """What a block gives of different positions (N, D) -> (B, T, D) as `below`; NaN elsewhere, so that no loss can read
    it unseen.
    """
    if only is None:
        return top
    return top.new_full(below.shape, torch.nan).flatten(0, 1).index_copy(0, only, top).view(below.shape)
