"""Bidirectional language modeling: each word from those before it, and from those after it (Peters et al. 2018, 3.1).

The corpus is one stream of spelled words, cut into rows of the same length. Shapes: B rows, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.data.rows import WordBlocks
from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder
from pipeline.models.layers.char_cnn import BEGIN, END
from pipeline.models.layers.spelled_words import UNKNOWN, collate_words, output_class
from pipeline.models.losses import Loss
from pipeline.objectives.base import Objective, perplexity
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.causal_lm import shifted
from pipeline.objectives.checks import Check, none
from pipeline.objectives.samples import Table, guessed_words
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import MAX_CHARACTERS

DIRECTIONS = ("forward", "backward")  # names of the losses
MOST_COUNTED, COUNTED_LENGTH = 8000, 128  # rows and words of each, from which the unigram baseline is counted
MOST_LOOKED_UP = 2000  # rows from which the share of unknown words is counted


class BidirectionalLM(Objective):
    """Each word from those before it, and from those after it.

    Args:
        stateful: rows continue those of the step before, and so does the forward state of the model. Not the backward
            one: it has read the text before, which the backward direction predicts.
    """

    requires = frozenset({"bidirectional"})
    main = "forward"
    shown = ("forward_loss", "backward_loss", "perplexity", "bits_per_byte")

    def __init__(self, stateful: bool = False) -> None:
        super().__init__()
        self.consecutive = stateful

    @classmethod
    def compared_losses(cls) -> tuple[str, ...]:
        return DIRECTIONS

    @property
    def model_options(self) -> dict[str, Any]:
        return {"max_characters": MAX_CHARACTERS}

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> WordBlocks:
        return WordBlocks(store, length, begin=BEGIN, end=END, phase=phase)

    def batch(self, rows: WordBlocks, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        """The targets are classes of the softmax (B, T), -1 for none."""
        around = rows(index)
        inner = [row[1:-1] for row in around]
        inputs = collate_words(inner, tokenizer.outputs, max_characters=MAX_CHARACTERS)
        shared = {"characters": inputs.pop("characters")}
        targets = {}
        for name, shift in zip(DIRECTIONS, (2, 0), strict=True):
            words = [row[shift : shift + len(own)] for row, own in zip(around, inner, strict=True)]
            targets[name] = _target(words, tokenizer, width=inputs["mask"].shape[1])
        return Batch(inputs=inputs, targets=targets, rows=torch.from_numpy(index), shared=shared)

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        encoded = model(batch.inputs | batch.shared, batch.state)
        if self.consecutive:
            batch.state = encoded.state
        losses = model.token_losses(encoded.layers[-1], [batch.targets[name].labels for name in DIRECTIONS])
        for name, loss in zip(DIRECTIONS, losses, strict=True):
            loss.spelling = batch.targets[name].spelling_sum
        return dict(zip(DIRECTIONS, losses, strict=True))

    def baselines(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        counts = self._class_counts(store, tokenizer, MOST_COUNTED)
        p = counts[counts > 0] / max(1, counts.sum())
        return math.log(len(counts)), float(-(p * np.log(p)).sum())

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        counts = self._class_counts(store, tokenizer, MOST_LOOKED_UP)
        return float(counts[UNKNOWN] / max(1, counts.sum()))

    def _class_counts(self, store: TokenStore, tokenizer: Tokenizer, rows: int) -> np.ndarray:
        """How often each class is a label, in at most `rows` rows spread over the corpus."""
        blocks = self.rows(store, tokenizer, length=COUNTED_LENGTH, phase=0, seed=0)
        counts = np.zeros(len(tokenizer.outputs) + 3)
        for row in blocks(np.unique(np.linspace(0, len(blocks) - 1, rows).astype(np.int64))):
            for word in row[1:-1]:
                counts[output_class(word, tokenizer.outputs)] += 1
        return counts

    def report(self, metrics: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """Bits per byte charge each unknown word its [UNK] and its spelling; spaces between words are free."""
        result = {}
        for name in DIRECTIONS:
            nats = metrics[f"{name}_loss"] + metrics[f"{name}_spelling"]
            result[f"{name}_perplexity"] = perplexity(metrics[f"{name}_loss"])
            result[f"{name}_bits_per_byte"] = nats * per_byte / math.log(2)
        result["bits_per_byte"] = (result["forward_bits_per_byte"] + result["backward_bits_per_byte"]) / 2
        result["perplexity"] = math.sqrt(result["forward_perplexity"] * result["backward_perplexity"])
        return result

    def fresh_loss(self, model: Encoder, batch: Batch, uniform: float) -> float:
        """An adaptive softmax guesses evenly in each of its parts, not over all words: so it does for a zero vector."""
        scores = model.logits(torch.zeros(1, model.size))[0, 0]
        return -float(scores[batch.targets["forward"].labels.flatten()].mean())

    def samples(self, model: Encoder, store: TokenStore) -> Table:
        return guessed_words(model, store)

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        for name, shift, of in (("forward", 1, "the next words"), ("backward", -1, "the words before")):
            wrong = sum(shifted(batch.inputs["input_ids"], batch.targets[name].labels, shift) for batch in batches)
            yield none(f"{name} labels are {of}", wrong, "are not")


def _target(rows: list[list[bytes]], tokenizer: Tokenizer, *, width: int) -> Target:
    """The classes of the words of each row, and the nats of spelling the unknown ones."""
    labels, nats = np.full((len(rows), width), -1), 0.0
    for number, words in enumerate(rows):
        classes = [output_class(word, tokenizer.outputs) for word in words]
        labels[number, : len(classes)] = classes
        nats += sum(
            tokenizer.spelling_nats[list(word)].sum() + tokenizer.spelling_nats[256]
            for word, index in zip(words, classes, strict=True)
            if index == UNKNOWN
        )
    return Target(
        labels=torch.from_numpy(labels),
        count=torch.tensor((labels >= 0).sum()),
        spelling=torch.full((len(rows),), nats / len(rows), dtype=torch.float64),
    )
