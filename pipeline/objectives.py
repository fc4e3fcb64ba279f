"""What encoders are pretrained on: (encoder, batch) -> named losses, each a sum with its count.

A loss is summed over its tokens and divided by their number in the whole optimiser step, so that one batch
of 32, four of 8 and two processes of 16 give the same gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.encoders.base import Batch, Encoder
from pipeline.encoders.bert import Bert
from pipeline.encoders.gpt import Gpt


@dataclass
class Loss:
    """A sum of losses in nats over `count` predictions, `correct` of which were right."""

    sum: Tensor
    count: Tensor
    correct: Tensor


class Objective(Protocol):
    """The first loss is the language model's: its floor is the unigram entropy."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]: ...

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """What is said beside the losses of a validation.

        Args:
            figures: `NAME_loss` and `NAME_accuracy` of each loss.
            per_byte: predictions that the text asks for, per UTF-8 byte of it.
        """


def classification_loss(logits: Tensor, labels: Tensor) -> Loss:
    """Cross entropy in float32: logits (N, C), labels (N,)."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    with torch.no_grad():  # the maximum alone takes a third of the time of its index
        correct = (logits.gather(-1, labels[:, None])[:, 0] >= logits.amax(-1)).sum()
    return Loss(loss, torch.tensor(len(labels), device=labels.device), correct)


CHUNK = 1024  # rows whose logits exist at once


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of -log softmax(hidden weight^T)[labels], with gradients made in the forward pass, chunk by chunk.

    All logits at once would be the largest tensor of the step, written and read several times. The gradient
    of a sum of cross entropies is (softmax - one-hot) times what comes from above, a scalar: so it can be
    made while the chunk's logits are still in the cache.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        h, w = hidden.detach().to(dtype), weight.detach().to(dtype)
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        d_hidden = torch.empty_like(h) if wanted else None
        d_weight = torch.zeros_like(weight) if wanted else None
        total, correct = hidden.new_zeros((), dtype=torch.float32), labels.new_zeros(())
        for begin in range(0, len(h), CHUNK):
            rows, target = h[begin : begin + CHUNK], labels[begin : begin + CHUNK, None]
            logits = (rows @ w.t()).float()
            top = logits.amax(-1, keepdim=True)
            chosen = logits.gather(-1, target)
            correct += (chosen >= top).sum()
            logits.sub_(top).exp_()
            norm = logits.sum(-1, keepdim=True)
            total += (norm.log() + top - chosen).sum()
            if d_hidden is not None and d_weight is not None:
                grad = logits.div_(norm)
                grad.scatter_add_(-1, target, torch.full_like(chosen, -1.0))
                grad = grad.to(dtype)
                torch.mm(grad, w, out=d_hidden[begin : begin + CHUNK])
                d_weight += grad.t() @ rows
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.mark_non_differentiable(correct)
        ctx.hidden_dtype = hidden.dtype
        return total, correct

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        d_hidden, d_weight = ctx.saved_tensors
        return (d_hidden * d_total).to(ctx.hidden_dtype), d_weight * d_total, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Loss:
    """Cross entropy of logits hidden weight^T without all logits at once: (N, D), (V, D), labels (N,)."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    total, correct = _LinearCrossEntropy.apply(hidden, weight, labels, dtype)
    return Loss(total, torch.tensor(len(labels), device=labels.device), correct)


class MaskedLM:
    """Masked LM, and next-sentence prediction when the batch has labels for it (Devlin et al. 2018, 3.1)."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Bert)
        encoded = encoder(batch)
        # Logits only where a token was masked: a seventh of the positions, and the output matrix is large.
        hidden = encoded.layers[-1].flatten(0, 1)[batch["positions"]]
        losses = {"mlm": classification_loss(encoder.logits(hidden), batch["labels"])}
        if "pair_labels" in batch:
            losses["nsp"] = classification_loss(encoder.next_sentence_logits(encoded), batch["pair_labels"])
        return losses

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        return {"perplexity": perplexity(figures["mlm_loss"])}


class CausalLM:
    """Each token from those before it (Radford et al. 2018, equation 1)."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Gpt)
        hidden = encoder(batch).layers[-1].flatten(0, 1)
        labels = batch["labels"].flatten()
        if (asked := labels >= 0).logical_not().any():
            hidden, labels = hidden[asked], labels[asked]
        return {"lm": linear_cross_entropy(hidden, encoder.word_embedding.weight, labels)}

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        loss = figures["lm_loss"]
        return {"perplexity": perplexity(loss), "bits_per_byte": loss * per_byte / math.log(2)}


def perplexity(loss: float) -> float:
    """exp(loss), finite for a hopeless one too."""
    return math.exp(min(loss, 50.0))
