"""Scaled dot-product attention (Vaswani et al. 2017, 3.2.1), and the one place that chooses its kernel.

Shapes: B batch, T positions, H heads, d size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.layers.dropout import Dropout

# Positions; above, the memory of the (T, T) scores decides. With dropout the fused kernel is slow: at 1,024 a step of
# 4x256 takes 413 ms with plain products instead of 1,164.
CPU_EXPLICIT_UP_TO, WITH_DROPOUT = 512, 1024


def check_heads(size: int, heads: int) -> None:
    """Raises: UserError, a model of that size cannot have so many heads."""
    if heads < 1 or size % heads:
        raise UserError(f"The model size ({size}) must be a multiple of the number of heads ({heads}).")


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


def padding_bias(mask: Tensor) -> Tensor | None:
    """(B, T) bool, true for real tokens -> (B, 1, 1, T) that keeps attention off padding; None without padding."""
    if mask.device.type == "cpu" and bool(mask.all()):
        return None
    return bias_of(mask)[:, None, None, :]


def narrowing_bias(batch: Mapping[str, Tensor], before: int) -> Tensor | None:
    """Keeps attention to what `attend` (B, T, T) names, or within `documents` (B, T); None without either.

    Args:
        before: S tokens that were read earlier, which all may see.

    Returns:
        (B, 1, T, S + T), or (B, 1, T, T) of documents, which have none before them.
    """
    if "attend" in batch:
        return bias_of(F.pad(batch["attend"], (before, 0), value=True)[:, None])
    if "documents" in batch:
        return bias_of(batch["documents"][:, None, :, None] == batch["documents"][:, None, None, :])
    return None


def bias_of(visible: Tensor) -> Tensor:
    """(...) bool, true for what is seen -> (...) float: 0 there, and what makes its weight 0 elsewhere."""
    return torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, -1e9)
