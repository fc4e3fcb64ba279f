"""What encoders are pretrained on: (encoder, batch) -> named losses, each a sum with its count.

A loss is summed over its tokens and divided by their number in the whole optimiser step, so that one batch
of 32, four of 8 and two processes of 16 give the same gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.encoders.base import Batch, Encoder
from pipeline.encoders.bert import Bert


@dataclass
class Loss:
    """A sum of losses in nats over `count` predictions, `correct` of which were right."""

    sum: Tensor
    count: Tensor
    correct: Tensor


class Objective(Protocol):
    """The first loss is the language model's: its floor is the unigram entropy, its exponential the perplexity."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]: ...


def classification_loss(logits: Tensor, labels: Tensor) -> Loss:
    """Cross entropy in float32: logits (N, C), labels (N,)."""
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    with torch.no_grad():  # the maximum alone takes a third of the time of its index
        correct = (logits.gather(-1, labels[:, None])[:, 0] >= logits.amax(-1)).sum()
    return Loss(loss, torch.tensor(len(labels), device=labels.device), correct)


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
