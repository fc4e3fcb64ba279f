"""The Transformer block (Vaswani et al. 2017) that BERT and GPT share.

Shapes: B batch, T positions, D model size, H heads.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models.generation import KeyValues

# Positions; above, the memory of the (T, T) scores decides. With dropout the fused kernel is slow: at 1,024 a step of
# 4x256 takes 413 ms with plain products instead of 1,164.
CPU_EXPLICIT_UP_TO, WITH_DROPOUT = 512, 1024


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014).

    On a CPU `nn.Dropout` draws one random number an element on one thread, a quarter of a small model's
    step. Here one 64-bit draw serves four elements: 16 bits each, so the rate is exact to 1/65,536. The draws are
    NumPy's, four times as fast as torch's; their seed is torch's, so `torch.manual_seed` decides as usual.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UserError(f"dropout must be at least 0 and below 1, not {p}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or torch.compiler.is_compiling():  # it cannot compare 16-bit integers
            return F.dropout(x, self.p)
        bits = np.random.SFC64(int(torch.randint(2**63 - 1, ()))).random_raw((x.numel() + 3) // 4)
        keep = bits.view(np.uint16)[: x.numel()] >= round(self.p * 65536)
        scale = torch.tensor(1 / (1 - self.p), dtype=x.dtype)
        # Kept elements get the bits of the scale: six times as fast as torch turns booleans to bfloat16.
        integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        mask = torch.from_numpy(keep * scale.view(1).view(integer).numpy())
        return x * mask.view(x.dtype).view(x.shape)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: Dropout, *, causal: bool = False
) -> Tensor:
    """softmax(q k^T / sqrt(d) + bias) v, all (B, H, T, d); `bias` broadcasts to (B, H, T, T).

    `causal`: a query sees the keys up to its own position; fewer queries than keys are the last ones.

    The one place that chooses the kernel. On a CPU at these lengths two plain products beat
    `scaled_dot_product_attention`, which with dropout takes its slow path there; elsewhere it wins.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    dropped = dropout.training and dropout.p > 0
    explicit = q.device.type == "cpu" and keys <= (WITH_DROPOUT if dropped else CPU_EXPLICIT_UP_TO)
    if causal and queries > 1 and (explicit or bias is not None or queries < keys):
        future = torch.full((queries, keys), -1e9, device=q.device).triu_(keys - queries + 1)
        bias, causal = future if bias is None else bias + future, False
    if explicit:
        # Autocast would copy the scores to float32, in which softmax adds up anyway.
        with torch.autocast("cpu", enabled=False):
            scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
            if bias is not None:
                scores = scores + bias.to(scores.dtype)
            return dropout(scores.softmax(-1)) @ v
    rate = dropout.p if dropout.training else 0.0
    mask = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=rate, is_causal=causal and queries > 1)


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
        if self.pre:
            x = x + self.attend(self.norm_attention(x), bias, causal, past)
            return x + self.feed_forward(self.norm_feed_forward(x))
        x = self.norm_attention(x + self.attend(x, bias, causal, past))
        return self.norm_feed_forward(x + self.feed_forward(x))


def padding_bias(mask: Tensor) -> Tensor | None:
    """(B, T) bool, true for real tokens -> (B, 1, 1, T) that keeps attention off padding; None without padding."""
    if mask.device.type == "cpu" and bool(mask.all()):
        return None
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -1e9)[:, None, None, :]
