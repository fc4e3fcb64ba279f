"""Text infilling and sentence permutation of BART (Lewis et al. 2020, 2.2), pure functions of (tokens, generator).

Shapes: N tokens of a text, S spans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Infilled(NamedTuple):
    """A text with spans replaced by masks: `ids` (N',); `begins` (S,) of the spans in the text; `lengths` (S,)."""

    ids: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray


def infill(
    tokens: np.ndarray, rng: np.random.Generator, *, mask_rate: float, mean_span: float, mask_id: int
) -> Infilled:
    """Replaces spans of tokens (N,) by one mask each; a span of length 0 inserts one.

    Exactly mask_rate * N tokens are hidden, and S is their number / mean_span, both rounded up or down at random so
    that they are right on average. S lengths of a Poisson distribution whose sum is known are a multinomial draw, so
    that no last span is cut to fit. Spans lie anywhere, with a token between any two.
    """
    hidden = round_randomly(mask_rate * len(tokens), rng)
    count = min(max(round_randomly(hidden / mean_span, rng), int(hidden > 0)), len(tokens) - hidden + 1)
    lengths = rng.multinomial(hidden, np.full(count, 1 / count)) if count else np.zeros(0, dtype=np.int64)
    gaps = np.sort(rng.permutation(len(tokens) - hidden + 1)[:count])  # before which of the tokens that stay
    begins = gaps + np.cumsum(lengths) - lengths
    edges = np.zeros(len(tokens) + 1, dtype=np.int64)
    np.add.at(edges, begins, 1)
    np.add.at(edges, begins + lengths, -1)
    stay = np.cumsum(edges[:-1]) == 0
    return Infilled(np.insert(tokens[stay], gaps, mask_id), begins, lengths)


def permute(tokens: np.ndarray, inner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The sentences of a text (N,) in random order.

    Args:
        inner: where sentences begin, but for the first.
    """
    parts = np.split(tokens, inner)
    return np.concatenate([parts[i] for i in rng.permutation(len(parts))])


def round_randomly(value: float, rng: np.random.Generator) -> int:
    """Up or down, so that the mean is the value."""
    return int(value + rng.random())
