"""Masked language modeling, and which text stands next to which (QuickThoughts, Logeswaran and Lee 2018).

Shapes: B texts, T positions, D model size, G texts of a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pipeline.data.rows import SentenceWindows
from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.checks import Check, none
from pipeline.objectives.masked_lm import MaskedLM, trim
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.sentence_pairs import DrawnRows, Pair, PairRows
from pipeline.tokenization.base import Tokenizer

GROUP = 16  # texts, of eight windows: a text is told from those of its group, whatever the batch is split into
BY_LENGTH = 0.25  # the most texts whose length may give their neighbor away


class QuickThoughts(MaskedLM):
    """Masked tokens from all others, and of 15 texts the one that stands next to a text.

    Each window of text is split into two texts, which the model reads apart. Their vectors are those that a head reads
    in fine-tuning (`Encoder.pooled`), so training compares sentences as `pair: compared` does. The probability that
    text j stands next to text i is a softmax over the other texts of its group, of v_i v_j / sqrt(D). Texts of a batch
    that fill no group have masked tokens only. The paper has two encoders, one for each side, no scale, and batches of
    400 sentences.

    Args:
        mask_rate: share of the tokens of a text that are to be predicted.
        whole_word: mask all pieces of a word together.
        first_mask_rate: see `MaskedLM`.
    """

    shown = ("mlm_loss", "mlm_accuracy", "neighbor_loss", "neighbor_accuracy")

    def __init__(self, mask_rate: float = 0.15, whole_word: bool = False, first_mask_rate: float | None = None) -> None:
        super().__init__(
            mask_rate=mask_rate, whole_word=whole_word, next_sentence="off", first_mask_rate=first_mask_rate
        )

    @property
    def num_special(self) -> int:
        """Special tokens of the two texts of a window: [CLS] a [SEP] and [CLS] b [SEP]."""
        return 4

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> NeighborRows:
        return NeighborRows(SentenceWindows(store, length - self.num_special, phase=phase), "off", seed=seed)

    def batch(self, rows: DrawnRows, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        """Windows `index` (B / 2,) as B texts: the two of a window stand next to each other."""
        batch = super().batch(rows, index, tokenizer, rng=rng)
        texts = torch.arange(2 * len(index))
        whole = len(texts) // GROUP * GROUP or len(texts)  # to choose among fewer texts is easier
        labels = ((texts ^ 1) % GROUP).where(texts < whole, -1)
        neighbor = Target(labels=labels, count=torch.tensor(whole))
        return replace(batch, rows=batch.rows.repeat_interleave(2), targets={**batch.targets, "neighbor": neighbor})

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """Whole groups: the loss of a text needs all texts of its own."""
        return trim(batch.part(index, parts, unit=GROUP))

    def losses(self, model: Encoder, encoded: Encoded, batch: Batch) -> dict[str, Loss]:
        labels = batch.targets["neighbor"].labels
        labels = labels[labels >= 0]
        vectors = model.pooled(encoded)[: len(labels)]
        if not len(labels):  # a share of a batch, of what fills no group
            return {**super().losses(model, encoded, batch), "neighbor": Loss(vectors.sum(), 0)}
        group = torch.arange(len(vectors), device=vectors.device) // GROUP
        neighbor = classification_loss(similarities(vectors, group), labels + GROUP * group)
        return {**super().losses(model, encoded, batch), "neighbor": neighbor}

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        yield from super().checks(model, steps, batches)
        apart = sum(int((batch.rows[::2] != batch.rows[1::2]).sum()) for batch in batches)
        yield none("neighbors come from different windows", apart, f"of {sum(map(len, batches)) // 2:,}")
        found = [accuracy_by_length(part.mask.sum(1)) for batch in batches for part in groups_of(batch)]
        share = float(np.mean(found)) if found else 0.0
        detail = f"right for {share:.1%} of texts, at most {BY_LENGTH:.0%} (chance {1 / (GROUP - 1):.1%})"
        yield Check("the length of a text does not show its neighbor", share <= BY_LENGTH, detail)


class NeighborRows(PairRows):
    """Windows of sentences, each as two texts."""

    def draw(self, index: np.ndarray, rng: np.random.Generator) -> list[Pair]:
        """The texts of windows `index` (B / 2,), each with no second text: two of each window, in sequence.

        What is too long loses tokens at the front of the first text and the end of the second one.
        """
        windows, texts = self.windows, []
        for document, begin, end in zip(*(bounds.tolist() for bounds in windows.bounds(index)), strict=True):
            split = halfway(windows, begin, end)
            first = windows.store.tokens[max(begin, split - windows.length) : split]
            second = windows.store.tokens[split : min(end, split + windows.length)]
            texts += [Pair(text, text[:0], 0, (document, document)) for text in (first, second)]
        return texts


def halfway(windows: SentenceWindows, begin: int, end: int) -> int:
    """The sentence begin that is nearest to the middle of a window, or the middle where there is none."""
    inside, middle = windows.sentence_starts(begin, end), (begin + end + 1) // 2
    return int(inside[np.abs(inside - middle).argmin()]) if len(inside) else middle


def similarities(vectors: Tensor, group: Tensor) -> Tensor:
    """(B, D) and the group of each (B,) -> (B, B) logits, -inf for a text itself and those of other groups."""
    with torch.autocast(vectors.device.type, enabled=False):  # bf16 cannot tell large products that are close
        logits = vectors.float() @ vectors.float().T / vectors.shape[1] ** 0.5
    candidates = (group[:, None] == group) & ~torch.eye(len(group), dtype=torch.bool, device=group.device)
    return logits.masked_fill(~candidates, -torch.inf)


def groups_of(batch: Batch) -> list[Batch]:
    """The whole groups of a batch."""
    return [batch.select(slice(low, low + GROUP)) for low in range(0, len(batch) - GROUP + 1, GROUP)]


def accuracy_by_length(lengths: Tensor) -> float:
    """How often the text of the most similar length is the neighbor, a tie of n counted 1 / n.

    Args:
        lengths: (G,) of a group, the two of a window next to each other.
    """
    other = -(lengths[:, None] - lengths).abs().float()
    other.fill_diagonal_(-torch.inf)
    nearest = other == other.amax(1, keepdim=True)
    texts = torch.arange(len(lengths))
    return float((nearest[texts, texts ^ 1] / nearest.sum(1)).mean())
