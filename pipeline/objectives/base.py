"""What encoders are pretrained on: (encoder, batch) -> named losses, each a sum with its count.

A loss is summed over its tokens and divided by their number in the whole optimiser step, so that one batch
of 32, four of 8 and two processes of 16 give the same gradient.
"""

from __future__ import annotations

import math
from typing import Protocol

from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.models.inputs import Batch
from pipeline.models.losses import Loss, classification_loss


class Objective(Protocol):
    """The first loss is the language model's: its floor is the unigram entropy."""

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]: ...

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """What is said beside the losses of a validation.

        Args:
            figures: `NAME_loss` and `NAME_accuracy` of each loss.
            per_byte: predictions that the text asks for, per UTF-8 byte of it.
        """


class MaskedLM:
    """Masked LM, and next-sentence prediction when the batch has labels for it (Devlin et al. 2018, 3.1)."""

    family = Bert

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Bert)
        encoded = encoder(batch)
        # Logits only where a token was masked: a seventh of the positions, and the output matrix is large.
        losses = {"mlm": encoder.token_loss(encoded.layers[-1].flatten(0, 1)[batch["positions"]], batch["labels"])}
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
        return {"lm": encoder.token_loss(hidden, labels)}

    def report(self, figures: dict[str, float], *, per_byte: float) -> dict[str, float]:
        loss = figures["lm_loss"]
        return {"perplexity": perplexity(loss), "bits_per_byte": loss * per_byte / math.log(2)}


class BidirectionalLM:
    """Each word from those before it, and from those after it; one softmax for both (Peters et al. 2018, 3.1)."""

    family = Elmo

    def __call__(self, encoder: Encoder, batch: Batch) -> dict[str, Loss]:
        assert isinstance(encoder, Elmo)
        labels = [batch["next"], batch["previous"]]
        losses = encoder.token_losses(encoder(batch).layers[-1], labels)
        for loss, of in zip(losses, ("next", "previous"), strict=True):
            loss.spelling = batch[f"spelling/{of}"].sum()
        return dict(zip(("forward", "backward"), losses, strict=True))

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
