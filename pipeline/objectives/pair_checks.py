"""Checks of next-sentence pairs: half are random, and only their meaning shows which."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.rows import SentenceWindows
from pipeline.objectives.checks import Check, none, share
from pipeline.objectives.sentence_pairs import Pair, pair_count, sentence_pairs

MOST_PAIRS = 4000  # of an epoch


def pair_checks(windows: SentenceWindows, labels: Sequence[Tensor]) -> Iterator[Check]:
    """Of pairs drawn from `windows`, in the cuts of the first epoch and of a later one.

    Args:
        labels: (B,) each, of real batches.
    """
    of_batches = torch.cat(list(labels))
    yield share("random next sentences", int(of_batches.sum()), len(of_batches), 0.5)
    drawn: list[Pair] = []
    for phase in (0, windows.length - 8):
        cut = SentenceWindows(windows.store, windows.length, phase)
        rows = np.arange(min(pair_count(cut), MOST_PAIRS))
        drawn += sentence_pairs(cut, rows, limit=cut.length, seed=0, rng=np.random.default_rng(0))
    inside = sum(pair.label == 1 and pair.documents[0] == pair.documents[1] for pair in drawn)
    yield none("random sentences come from the same document", inside, f"of {sum(p.label for p in drawn):,}")
    most = 0.53 + 4 * 0.5 / math.sqrt(max(1, len(drawn) // 2))  # four standard errors over a little
    for name, sign in SIGNS.items():
        accuracy = accuracy_by(sign, drawn)
        detail = f"right in {accuracy:.1%} of rows, at most {most:.1%}"
        yield Check(f"{name} does not show random sentences", accuracy < most, detail)


SIGNS: dict[str, Callable[[Pair], Any]] = {  # by which a model must not recognize a random pair
    "the first token of the second text": lambda pair: pair.b[:1].tolist(),
    "the last token of the second text": lambda pair: pair.b[-1:].tolist(),
    "the length of both texts": lambda pair: [(len(pair.a) + len(pair.b)) // 8, len(pair.b) // 16],
}


def accuracy_by(sign: Callable[[Pair], Any], pairs: list[Pair]) -> float:
    """How often a sign alone predicts the label of a pair: learned from half of the pairs, tested on the other half."""
    pairs = random.Random(0).sample(pairs, len(pairs))  # the places of a triple are alike
    counts: dict[str, Counter[int]] = {}
    for pair in pairs[::2]:
        counts.setdefault(str(sign(pair)), Counter())[pair.label] += 1
    correct = []
    for pair in pairs[1::2]:
        seen = counts.get(str(sign(pair)))
        correct.append(float(seen.most_common(1)[0][0] == pair.label) if seen else 0.5)
    return sum(correct) / max(1, len(correct))
