"""Counts of n-grams, and probabilities from them: the smoothings of Chen and Goodman (1998), interpolated down to 1/V.

The n-grams of an order are sorted by context and last token, so that those of one context stand together: a slice. The
context of an n-gram is an n-gram of the order below, and known by its place there.

Shapes: N queries, V vocabulary, n order, M n-grams of an order, C contexts of it (n-grams of the order below).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

Smoothing = Literal["mle", "add-k", "witten-bell", "absolute-discounting", "kneser-ney", "modified-kneser-ney"]
FALLBACK = np.array([0, 0.5, 1.0, 1.5])  # discounts where counts of counts give none, as in KenLM


@dataclass
class Level:
    """The n-grams of one order, sorted by context and last token.

    Attributes:
        tokens: (M,) last token of each.
        starts: (C + 1,) where the n-grams of each context begin, and the end.
        counts: (M,) how often each occurs; below the highest order of Kneser-Ney, after how many distinct tokens.
    """

    tokens: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    def find(self, context: np.ndarray, token: np.ndarray) -> np.ndarray:
        """Contexts and tokens (N,) -> places of the n-grams (N,), -1 where there is none: bisection of all slices."""
        low, end = self.starts[context].astype(np.int64), self.starts[context + 1].astype(np.int64)
        low[context < 0], end[context < 0] = 0, 0
        high = end.copy()
        while (open_ := low < high).any():
            middle = (low + high) // 2
            before = open_ & (self.tokens[np.minimum(middle, len(self.tokens) - 1)] < token)
            low, high = np.where(before, middle + 1, low), np.where(open_ & ~before, middle, high)
        there = low < end
        there[there] = self.tokens[low[there]] == token[there]
        return np.where(there, low, -1)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Values (M,), whole numbers or flags -> their sum in each context (C,)."""
        sums = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=sums[1:])
        return sums[self.starts[1:]] - sums[self.starts[:-1]]


def stream_of(tokens: np.ndarray, starts: np.ndarray, end: int) -> np.ndarray:
    """Texts as one stream with the end of text before each, and behind the last.

    Args:
        tokens: (N,) of all texts.
        starts: (D + 1,) first token of each text, then N.
    """
    stream = np.full(len(tokens) + len(starts), end, dtype=np.int32)
    inside = np.ones(len(stream), dtype=bool)
    inside[starts + np.arange(len(starts))] = False
    stream[inside] = tokens
    return stream


def count(
    stream: np.ndarray,
    *,
    order: int,
    vocab_size: int,
    end: int,
    neighbors: bool,
    passes: Callable[[range], Iterable[int]] = iter,
) -> list[Level]:
    """The n-grams of each order up to `order`, or to that of the longest text; one sort of the stream an order.

    No context reaches beyond the end of text, which is an event like any other. The first one is none.

    Args:
        stream: (L,) texts, with the end of text before each and behind the last.
        neighbors: below the highest order, count the distinct tokens to the left of an n-gram in place of its
            occurrences (Kneser and Ney 1995). What begins a text has no such token, and keeps its occurrences.
        passes: shows progress.
    """
    small = np.int16 if vocab_size <= 1 << 15 else np.int32
    counts = np.bincount(stream[1:], minlength=vocab_size).astype(np.int32)
    levels = [Level(np.arange(vocab_size, dtype=small), np.array([0, vocab_size], dtype=np.int32), counts)]
    here = stream  # (L,) place of the n-gram that ends here; -1: none
    for n in passes(range(2, order + 1)):
        ends = np.flatnonzero((here[:-1] >= 0) & ((stream[:-1] != end) | (n == 2)))  # of contexts
        if not len(ends):  # no text is that long
            break
        unsorted = torch.from_numpy(here[ends] * np.int64(vocab_size) + stream[ends + 1])
        keys, sorting = (part.numpy() for part in torch.sort(unsorted))  # several times as fast as numpy's
        ends = ends[sorting]
        new = np.diff(keys, prepend=-1) != 0
        first = np.flatnonzero(new)
        if neighbors:
            below = levels[-1]
            left = np.bincount(here[ends[first] + 1], minlength=len(below.counts)).astype(np.int32)
            below.counts = np.where(left, left, below.counts)
        contexts, tokens = np.divmod(keys[first], vocab_size)
        starts = np.zeros(len(levels[-1].tokens) + 1, dtype=np.int32)
        np.cumsum(np.bincount(contexts, minlength=len(starts) - 1), out=starts[1:])
        levels.append(Level(tokens.astype(small), starts, np.diff(first, append=len(keys)).astype(np.int32)))
        here = np.full(len(stream), -1, dtype=np.int32)
        here[ends + 1] = np.cumsum(new, dtype=np.int32) - 1
    return levels


def memory_needed(tokens: int, *, order: int, vocab_size: int) -> float:
    """Bytes that counting takes at most: a pass over the stream, and the n-grams of all orders."""
    distinct = [min(tokens, float(vocab_size) ** n) for n in range(1, order + 1)]
    return 64.0 * tokens + sum(10 * count for count in distinct) + sum(20 * count for count in distinct[:-1])


@dataclass
class Smoothed:
    """A level with what its smoothing needs: p(w | h) = (count - discount) / whole + rest * p(w | shorter h).

    Attributes:
        discount: (4,) by the count: 0, 1, 2, more.
        whole: (C,) denominator of a context; 0: nothing follows it.
        rest: (C,) share of a context that the shorter context distributes.
    """

    level: Level
    discount: np.ndarray
    whole: np.ndarray
    rest: np.ndarray

    def shares(self, places: np.ndarray, context: np.ndarray) -> np.ndarray:
        """What n-grams (N,) keep of their contexts' probability, 0 where the place is -1."""
        counts = np.where(places >= 0, self.level.counts[places], 0)
        return (counts - self.discount[np.minimum(counts, 3)]) / self.whole[context]


def smoothed(level: Level, smoothing: Smoothing, vocab_size: int, *, k: float, discount: float | None) -> Smoothed:
    """Denominators and rests of a level.

    Args:
        k: is added to each count by `add-k`.
        discount: is subtracted from each count; None: as counts of counts have it.
    """
    counts, none = level.counts, np.zeros(4)
    total = level.sums(counts).astype(np.float64)
    if smoothing == "mle":
        return Smoothed(level, none, total, np.zeros(len(total)))
    if smoothing == "add-k":
        return Smoothed(level, none, total + k * vocab_size, k * vocab_size / (total + k * vocab_size))
    if smoothing == "witten-bell":
        types = level.sums(counts > 0)
        return Smoothed(level, none, total + types, types / np.maximum(total + types, 1))
    discounts = _discounts(counts, modified=smoothing == "modified-kneser-ney")
    if discount is not None:
        discounts = np.array([0, *[discount] * 3])
    held = sum(discounts[i] * level.sums(counts == i if i < 3 else counts > 2) for i in (1, 2, 3))
    return Smoothed(level, discounts, total, held / np.maximum(total, 1))


def _discounts(counts: np.ndarray, *, modified: bool) -> np.ndarray:
    """(4,) by the count, 0, 1, 2, more: Chen and Goodman (1998), section 3."""
    n1, n2, n3, n4 = (int((counts == i).sum()) for i in (1, 2, 3, 4))
    if not n1 or not n2 or (modified and not (n3 and n4)):
        return FALLBACK if modified else FALLBACK[[0, 1, 1, 1]]
    y = n1 / (n1 + 2 * n2)
    if not modified:
        return np.array([0, y, y, y])
    found = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return found if (found[1:] > 0).all() else FALLBACK


class Probabilities:
    """Probabilities of next tokens, given histories.

    Args:
        levels: of orders 1, 2, ...; none: every token is equally likely.
        k, discount: see `smoothed`.
    """

    def __init__(
        self, levels: list[Level], smoothing: Smoothing, vocab_size: int, *, k: float, discount: float | None
    ) -> None:
        self.levels = [smoothed(level, smoothing, vocab_size, k=k, discount=discount) for level in levels]
        self.even = 1 / vocab_size
        self.unigram = np.full(vocab_size, self.even)
        if levels:
            lowest, context = self.levels[0], np.zeros(vocab_size, dtype=np.int64)
            self.unigram = lowest.shares(np.arange(vocab_size), context) + lowest.rest[0] * self.even
        self.shortened = smoothing != "add-k"  # whether the shorter context has the rest; else all tokens, evenly

    def _contexts(self, history: np.ndarray) -> Iterator[tuple[Smoothed, np.ndarray, np.ndarray, np.ndarray]]:
        """Each order above 1 with the rows whose contexts there are known (R,), these contexts (R,), and the rows with
        a history of that length.
        """
        for length in range(1, len(self.levels)):
            place = history[:, -length].astype(np.int64)
            for order, back in enumerate(range(length - 1, 0, -1), start=2):
                place = self.levels[order - 1].level.find(place, history[:, -back])
            level = self.levels[length]
            rows = np.flatnonzero((place >= 0) & (level.whole[place] > 0))
            yield level, rows, place[rows], history[:, -length] >= 0

    def of(self, history: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Probabilities (N,) of tokens (N,) after histories (N, n - 1), which are -1 before the text begins."""
        p = self.unigram[tokens]
        for level, rows, at, reaching in self._contexts(history):
            if not self.shortened:
                p[reaching] = self.even
            p[rows] = level.shares(level.level.find(at, tokens[rows]), at) + level.rest[at] * p[rows]
        return p

    def distributions(self, history: np.ndarray) -> np.ndarray:
        """(N, V) probabilities of all tokens after histories (N, n - 1): a slice of each order is added."""
        p = np.tile(self.unigram, (len(history), 1))
        for level, rows, at, reaching in self._contexts(history):
            begin, end = (level.level.starts[place].astype(np.int64) for place in (at, at + 1))
            sizes = end - begin
            places = np.arange(sizes.sum()) + (end - np.cumsum(sizes)).repeat(sizes)
            if not self.shortened:
                p[reaching] = self.even
            p[rows] *= level.rest[at, None]
            p[rows.repeat(sizes), level.level.tokens[places]] += level.shares(places, at.repeat(sizes))
        return p
