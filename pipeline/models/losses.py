"""Sums of losses with their counts: cross entropy, and chunked cross entropy of a linear output layer.

Shapes: N predictions, D model size, C classes, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Loss:
    """A sum of losses in nats over `count` predictions.

    Attributes:
        correct: how many of them are correct, where that is known; a tie of n labels counts 1 / n, but 1 in training
            steps of an LM, for speed (in bf16 one or two predictions of a hundred are ties).
        spelling: nats of spelling the unknown words among them; not trained on, but part of the bits per byte.
    """

    sum: Tensor
    count: int
    correct: Tensor | None = None
    spelling: Tensor | None = None

    def statistics(self) -> Tensor:
        """(4,): sum, count, correct and spelling; NaN for what is not known. Nothing here waits for the device."""
        total = self.sum.detach()
        others = (math.nan if part is None else part for part in (self.count, self.correct, self.spelling))
        parts = (part.to(total) if isinstance(part, Tensor) else total.new_full((), part) for part in others)
        return torch.stack([total, *parts])


def classification_loss(
    logits: Tensor, labels: Tensor, *, weights: Tensor | None = None, smoothing: float = 0.0
) -> Loss:
    """Cross entropy in float32: logits (N, C), labels (N,).

    Args:
        weights: (C,) of the classes.
        smoothing: share of the probability that is spread over all classes (Szegedy et al. 2016).
    """
    loss = F.cross_entropy(logits.float(), labels, weight=weights, label_smoothing=smoothing, reduction="sum")
    with torch.no_grad():  # the maximum alone takes a third of the time of its index
        correct = num_correct(logits, logits.gather(-1, labels[:, None]), logits.amax(-1, keepdim=True))
    return Loss(loss, len(labels), correct)


def divergence(logits: Tensor, truth: Tensor, *, temperature: float) -> Loss:
    """C^2 KL(p || q), p and q the softmax of `truth` and of `logits`, both (N, V), over a temperature C.

    The factor keeps gradients of one size whatever C is (Hinton et al. 2015, 2.1). `correct` is where both have the
    same one first; a training step leaves it out, since it takes nearly half of the time of the loss.
    """
    logits, truth = logits.float(), truth.float()
    same = None if torch.is_grad_enabled() else (logits.argmax(-1) == truth.argmax(-1)).sum()
    log_q, log_p = ((part / temperature).log_softmax(-1) for part in (logits, truth))
    total = temperature**2 * F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    return Loss(total, len(logits), same)


def num_correct(logits: Tensor, of_label: Tensor, top: Tensor) -> Tensor:
    """How many labels have the largest logit, 1 / n for a tie of n.

    Args:
        logits: (N, C).
        of_label: (N, 1) logits of the labels.
        top: (N, 1) largest logits.
    """
    return ((of_label >= top) / (logits >= top).sum(-1, keepdim=True)).sum()


CHUNK = 1024  # predictions whose logits exist at the same time


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of -log softmax(hidden weight^T + bias)[labels], with gradients computed in the forward pass, chunk by chunk.

    All logits at once would be the largest tensor of the step, written and read several times. The gradient
    of a sum of cross entropies is (softmax - one-hot) times the incoming gradient, a scalar: so it can be
    computed while the chunk's logits are still in the cache. The softmax is computed in float32 and rounded to
    the type of the products, as its gradient would be; in float16 only the gradient is. Near 1 that rounding is
    coarse: there the target's loss and gradient come from the sum of all others, and elsewhere the loss is the
    distance to the likeliest token.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, dtype: torch.dtype, train: bool
    ) -> tuple[Tensor, Tensor]:
        h, w = hidden.detach().to(dtype), weight.detach().to(dtype)
        b = None if bias is None else bias.detach().to(dtype)
        d_hidden = torch.empty_like(h) if train else None
        wide = torch.promote_types(dtype, torch.float32)  # sums over chunks, also where weights are sharded in bf16
        d_weight = torch.zeros_like(weight, dtype=wide) if train else None
        d_bias = torch.zeros_like(bias, dtype=wide) if train and bias is not None else None
        total, correct = hidden.new_zeros((), dtype=wide), hidden.new_zeros((), dtype=wide)
        every = torch.arange(CHUNK, device=h.device)
        for begin in range(0, len(h), CHUNK):
            rows, target = h[begin : begin + CHUNK], labels[begin : begin + CHUNK, None]
            logits = F.linear(rows, w, b)
            top, of_label = logits.amax(-1, keepdim=True), logits.gather(-1, target)
            correct += (of_label >= top).sum() if train else num_correct(logits, of_label, top)
            # Rounded to float16, what is left beside a sure prediction would be 0.
            p = logits.softmax(-1, dtype=wide if dtype == torch.float16 else None)
            p_top, p_label = p.amax(-1, keepdim=True).to(wide), p.gather(-1, target).to(wide)
            # A sum of bf16 adds up in float32 and is rounded once; with dtype=float32 it would copy all of p first.
            p[every[: len(p)], target[:, 0]] = 0
            rest = p.sum(-1, keepdim=True).to(wide).clamp(0, 1)  # of the probability
            nats = torch.where(p_label > 0.5, -torch.log1p(-rest), top.to(wide) - of_label.to(wide) - p_top.log())
            total += nats.sum()
            if d_hidden is not None and d_weight is not None:
                # From here on p is the gradient of the logits.
                p[every[: len(p)], target[:, 0]] = -rest[:, 0].to(p.dtype)
                p = p.to(dtype)
                torch.mm(p, w, out=d_hidden[begin : begin + CHUNK])
                d_weight += p.t() @ rows
                if d_bias is not None:
                    d_bias += p.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(correct)
        ctx.hidden_dtype, ctx.weight_dtype = hidden.dtype, weight.dtype
        return total, correct

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        d_bias = None if d_bias is None else (d_bias * d_total).to(ctx.weight_dtype)
        d_weight = (d_weight * d_total).to(ctx.weight_dtype)
        return (d_hidden * d_total).to(ctx.hidden_dtype), d_weight, d_bias, None, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None, *, smoothing: float = 0.0
) -> Loss:
    """Cross entropy of logits hidden weight^T + bias without all logits at once: (N, D), (V, D), labels (N,), (V,).

    Args:
        smoothing: s, share of the probability that is spread over all V (Szegedy et al. 2016). That adds s times the
            logit of the label minus the mean logit, which needs no logits either.
    """
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):  # it would copy every logit to float32
        total, correct = _LinearCrossEntropy.apply(hidden, weight, bias, labels, dtype, torch.is_grad_enabled())
        if smoothing:
            margins = hidden.to(weight.dtype) * (F.embedding(labels, weight) - weight.mean(0))
            biases = 0.0 if bias is None else (bias[labels] - bias.mean()).sum()
            total = total + smoothing * (margins.sum(dtype=total.dtype) + biases)
    return Loss(total, len(labels), correct)
