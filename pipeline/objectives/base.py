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

from pipeline.models.base import Batch, Encoder
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt


@dataclass
class Loss:
    """A sum of losses in nats over `count` predictions.

    Attributes:
        correct: how many of them were right, where that is known; 1 / n of n equally likely labels, but 1 in training
            steps of an LM, for speed (in bf16 one or two predictions of a hundred are ties).
        spelling: nats of spelling the unknown words among them; not trained on, but part of the bits per byte.
    """

    sum: Tensor
    count: int
    correct: Tensor | None = None
    spelling: Tensor | None = None

    def figures(self) -> Tensor:
        """(4,): sum, count, correct and spelling; NaN where it is not known. Nothing here waits for the device."""
        known = self.sum.detach()
        others = (math.nan if part is None else part for part in (self.count, self.correct, self.spelling))
        parts = (part.to(known) if isinstance(part, Tensor) else known.new_full((), part) for part in others)
        return torch.stack([known, *parts])


class Objective(Protocol):
    """The first loss is the language model's: its floor is the unigram entropy."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]: ...

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """What is said beside the losses of a validation.

        Args:
            figures: `NAME_loss` and `NAME_accuracy` of each loss.
            per_byte: predictions that the text asks for, per UTF-8 byte of it.
        """


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
        correct = hits(logits, logits.gather(-1, labels[:, None]), logits.amax(-1, keepdim=True))
    return Loss(loss, len(labels), correct)


def hits(logits: Tensor, asked: Tensor, top: Tensor) -> Tensor:
    """How many of the labels are the likeliest, 1 / n for one of n equally likely: (N, C), of these (N, 1) each."""
    return ((asked >= top) / (logits >= top).sum(-1, keepdim=True)).sum()


CHUNK = 1024  # rows whose logits exist at once


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of -log softmax(hidden weight^T + bias)[labels], with gradients made in the forward pass, chunk by chunk.

    All logits at once would be the largest tensor of the step, written and read several times. The gradient
    of a sum of cross entropies is (softmax - one-hot) times what comes from above, a scalar: so it can be
    made while the chunk's logits are still in the cache. The softmax is computed in float32 and rounded to
    the type of the products, as its gradient would be. Near 1 that rounding is coarse: there the target's loss and
    gradient come from the sum of all others, and elsewhere the loss is the distance to the likeliest token.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, dtype: torch.dtype, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        h, w = hidden.detach().to(dtype), weight.detach().to(dtype)
        b = None if bias is None else bias.detach().to(dtype)
        d_hidden = torch.empty_like(h) if wanted else None
        wide = torch.promote_types(dtype, torch.float32)  # sums over chunks, also where weights are sharded in bf16
        d_weight = torch.zeros_like(weight, dtype=wide) if wanted else None
        d_bias = torch.zeros_like(bias, dtype=wide) if wanted and bias is not None else None
        total, correct = hidden.new_zeros((), dtype=wide), hidden.new_zeros((), dtype=wide)
        every = torch.arange(CHUNK, device=h.device)
        for begin in range(0, len(h), CHUNK):
            rows, target = h[begin : begin + CHUNK], labels[begin : begin + CHUNK, None]
            logits = F.linear(rows, w, b)
            top, asked = logits.amax(-1, keepdim=True), logits.gather(-1, target)
            correct += (asked >= top).sum() if wanted else hits(logits, asked, top)
            p = logits.softmax(-1)
            likely, chosen = p.amax(-1, keepdim=True).to(wide), p.gather(-1, target).to(wide)
            # A sum of bf16 adds up in float32 and is rounded once; asked for float32 it would copy all of p first.
            p[every[: len(p)], target[:, 0]] = 0
            rest = p.sum(-1, keepdim=True).to(wide).clamp(0, 1)  # of the probability
            nats = torch.where(chosen > 0.5, -torch.log1p(-rest), top.to(wide) - asked.to(wide) - likely.log())
            total += nats.sum()
            if d_hidden is not None and d_weight is not None:
                # Now the gradient of the logits.
                p[every[: len(p)], target[:, 0]] = -rest[:, 0].to(dtype)
                torch.mm(p, w, out=d_hidden[begin : begin + CHUNK])
                d_weight += p.t() @ rows
                if d_bias is not None:
                    d_bias += p.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.mark_non_differentiable(correct)
        ctx.hidden_dtype, ctx.weight_dtype = hidden.dtype, weight.dtype
        return total, correct

    @staticmethod
    def backward(ctx: Any, d_total: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        d_bias = None if d_bias is None else (d_bias * d_total).to(ctx.weight_dtype)
        d_weight = (d_weight * d_total).to(ctx.weight_dtype)
        return (d_hidden * d_total).to(ctx.hidden_dtype), d_weight, d_bias, None, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Loss:
    """Cross entropy of logits hidden weight^T + bias without all logits at once: (N, D), (V, D), labels (N,), (V,)."""
    device = hidden.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    with torch.autocast(device, enabled=False):  # it would copy every logit to float32
        total, correct = _LinearCrossEntropy.apply(hidden, weight, bias, labels, dtype, torch.is_grad_enabled())
    return Loss(total, len(labels), correct)


class MaskedLM:
    """Masked LM, and next-sentence prediction when the batch has labels for it (Devlin et al. 2018, 3.1)."""

    family = Bert

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Bert)
        encoded = encoder(batch)
        # Logits only where a token was masked: a seventh of the positions, and the output matrix is large.
        hidden = encoder.before_logits(encoded.layers[-1].flatten(0, 1)[batch["positions"]])
        weight, bias = encoder.word_embedding.weight, encoder.lm_bias
        losses = {"mlm": linear_cross_entropy(hidden, weight, batch["labels"], bias)}
        if "pair_labels" in batch:
            losses["nsp"] = classification_loss(encoder.next_sentence_logits(encoded), batch["pair_labels"])
        return losses

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        return {"perplexity": perplexity(figures["mlm_loss"])}


class CausalLM:
    """Each token from those before it (Radford et al. 2018, equation 1)."""

    family = Gpt

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Gpt)
        hidden = encoder(batch).layers[-1].flatten(0, 1)
        labels = batch["labels"].flatten()
        asked = (labels >= 0).nonzero()[:, 0]
        if len(asked) < len(labels):
            hidden, labels = hidden.index_select(0, asked), labels[asked]
        return {"lm": linear_cross_entropy(hidden, encoder.word_embedding.weight, labels)}

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        loss = figures["lm_loss"]
        return {"perplexity": perplexity(loss), "bits_per_byte": loss * per_byte / math.log(2)}


class BidirectionalLM:
    """Each word from those before it, and from those after it; one softmax for both (Peters et al. 2018, 3.1)."""

    family = Elmo

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Elmo)
        ahead, back = encoder.directions(encoder(batch).layers[-1])
        names = (("forward", "next"), ("backward", "previous"))
        asked = [batch[of] >= 0 for _, of in names]
        hidden = torch.cat([ahead[asked[0]], back[asked[1]]])
        labels = torch.cat([batch[of][mask] for (_, of), mask in zip(names, asked, strict=True)])
        with torch.autocast(hidden.device.type, enabled=False):  # the library's layer does not take two types
            scores = encoder.softmax()(hidden.float(), labels).output.split([int(mask.sum()) for mask in asked])
        return {
            name: Loss(-part.sum(), len(part), spelling=batch[f"spelling/{of}"].sum())
            for (name, of), part in zip(names, scores, strict=True)
        }

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """Bits per byte charge each unknown word its [UNK] and its spelling; spaces between words are free."""
        result = {}
        for name in ("forward", "backward"):
            nats = figures[f"{name}_loss"] + figures[f"{name}_spelling"]
            result[f"{name}_perplexity"] = perplexity(figures[f"{name}_loss"])
            result[f"{name}_bits_per_byte"] = nats * per_byte / math.log(2)
        result["bits_per_byte"] = (result["forward_bits_per_byte"] + result["backward_bits_per_byte"]) / 2
        result["perplexity"] = math.sqrt(result["forward_perplexity"] * result["backward_perplexity"])
        return result


def perplexity(loss: float) -> float:
    """exp(loss), finite for a hopeless one too."""
    return math.exp(min(loss, 50.0))
