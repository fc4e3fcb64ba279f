"""Sentence pairs of BERT (Devlin et al. 2018, A.2) and ALBERT, pure functions of (tokens, seed, generator)."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import numpy as np

from pipeline.data.rows import SentenceWindows

PairTask = Literal["nsp", "sop", "off"]


class Pair(NamedTuple):
    """Two texts, and what the second is: 0 = it follows the first, 1 = it does not (or they are swapped)."""

    a: np.ndarray
    b: np.ndarray
    label: int
    documents: tuple[int, int]


class DrawnRows(Protocol):
    """Rows of which each draws its texts anew; `length`: most tokens of one, without special tokens."""

    length: int

    def __len__(self) -> int: ...

    def draw(self, index: np.ndarray, rng: np.random.Generator) -> list[Pair]:
        """The texts of rows `index`, alone or in pairs."""


class PairRows:
    """The rows of one epoch: windows of sentences as pairs of texts.

    Args:
        windows: their length is the most tokens of a pair, without special tokens.
        task: `nsp` (Devlin et al. 2018), `sop` (Lan et al. 2019), or `off`: the second text is empty.
        seed: fixes splits for the epoch.
    """

    def __init__(self, windows: SentenceWindows, task: PairTask, *, seed: int) -> None:
        self.windows, self.task, self.seed = windows, task, seed
        self.length = windows.length

    def __len__(self) -> int:
        return max(1, pair_count(self.windows)) if self.task == "nsp" else len(self.windows)

    @property
    def predictions_per_byte(self) -> float:
        """Tokens of the text, each once, per UTF-8 byte."""
        return self.windows.store.tokens_per_byte

    def draw(self, index: np.ndarray, rng: np.random.Generator) -> list[Pair]:
        """The pairs of rows `index` (B,)."""
        windows = self.windows
        if self.task == "off":
            _, begins, ends = windows.bounds(index)
            texts = [windows.store.tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
            return [Pair(text[: windows.length], text[:0], 0, (0, 0)) for text in texts]
        make = sentence_pairs if self.task == "nsp" else swapped_pairs
        return make(windows, index, limit=windows.length, seed=self.seed, rng=rng)


ROWS_PER_TRIPLE = 4


def pair_count(windows: SentenceWindows) -> int:
    """Rows of an epoch with next-sentence prediction: 4 for every 3 windows, see `sentence_pairs`."""
    return len(windows) // 3 * ROWS_PER_TRIPLE


def sentence_pairs(
    windows: SentenceWindows, rows: np.ndarray, *, limit: int, seed: int, rng: np.random.Generator
) -> list[Pair]:
    """Sentence pairs, exactly half of which are not in sequence (Devlin et al. 2018, A.2).

    Windows come in threes, each split at a random sentence into a first and a second part. Two of the three are pairs
    in sequence. The third, chosen by `seed`, is torn apart: its first part gets the second part of a window of
    another document, and its second part the first of another. So half of the rows are random, every window is
    read, and the parts of random pairs begin and end as those of pairs in sequence do: where a random text was cut in
    the middle of a sentence, its last token alone gave the label away in 81 % of the rows of a Wikipedia. One row in
    ten is of fewer sentences, see `_shorter`. What is too long loses tokens at the front of the first text and the end
    of the second, so that pairs in sequence have no gap between them; the original cuts both texts at both ends.

    Args:
        rows: (n,) row numbers below `pair_count(windows)`.
        limit: most tokens of a pair, without special tokens.
        seed: fixes splits for this epoch, so that rows of one window agree whoever asks.
        rng: for what needs no agreement: partners and shorter rows.
    """
    triple, place = rows // ROWS_PER_TRIPLE, rows % ROWS_PER_TRIPLE
    odd = shuffled_digit(triple, seed)  # which window of the three is torn apart
    in_sequence = np.where(place >= odd, place + 1, place)  # places 0, 1: the two others
    window = triple * 3 + np.where(place < 2, in_sequence, odd)
    documents, begins, ends = windows.bounds(window)
    tokens, pairs = windows.store.tokens, []
    for i, short in enumerate(_shorts(len(rows), limit, rng)):
        document = int(documents[i])
        parts, whose = _parts(windows, int(begins[i]), int(ends[i]), short, seed), [document, document]
        if place[i] >= 2:
            away = 3 - int(place[i])  # the part that comes from elsewhere
            length = parts[away][1] - parts[away][0]
            whose[away], parts[away] = _elsewhere(windows, document, length, away, short, seed, rng)
        a, b = (tokens[first:last] for first, last in parts)
        from_a, from_b = excess(len(a), len(b), limit)
        pairs.append(Pair(a[from_a:], b[: len(b) - from_b], int(place[i] >= 2), (whose[0], whose[1])))
    return pairs


def swapped_pairs(
    windows: SentenceWindows, rows: np.ndarray, *, limit: int, seed: int, rng: np.random.Generator
) -> list[Pair]:
    """Sentence-order prediction (Lan et al. 2019, ALBERT): both texts in sequence, half of them swapped.

    What is too long loses tokens at the front or end of each text, at random, as in the original: an end that was
    always the same one would show which text came first.
    """
    documents, begins, ends = windows.bounds(rows)
    first = rng.integers(2) if len(rows) % 2 else 0  # of an odd number half on average
    swap = rng.permutation((np.arange(len(rows)) + first) % 2)
    tokens, pairs = windows.store.tokens, []
    for i, short in enumerate(_shorts(len(rows), limit, rng)):
        document, label = int(documents[i]), int(swap[i])
        parts = _parts(windows, int(begins[i]), int(ends[i]), short, seed)
        a, b = (tokens[first:last] for first, last in (parts[::-1] if label else parts))
        from_a, from_b = excess(len(a), len(b), limit)
        pairs.append(Pair(_trim(a, from_a, rng), _trim(b, from_b, rng), label, (document, document)))
    return pairs


def excess(first: int, second: int, limit: int) -> tuple[int, int]:
    """How many tokens each of two texts loses: one by one from the longer, of two as long from the second."""
    surplus = max(0, first + second - limit)
    until_equal = min(surplus, abs(first - second))
    in_turn = surplus - until_equal
    from_first = (until_equal if first > second else 0) + in_turn // 2
    return from_first, surplus - from_first


def _trim(text: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(count, 0.5)) if count else 0
    return text[front : len(text) - (count - front)]


Short = tuple[int, bool] | None  # tokens that a shorter row has at least, and whether they are the window's last


def _shorts(count: int, limit: int, rng: np.random.Generator) -> list[Short]:
    """For each row whether it is a shorter one: one in ten, of a length that is as likely as any other."""
    chosen, targets = rng.random(count) < 0.1, rng.integers(2, limit + 1, size=count)
    at_end = rng.random(count) < 0.5
    parts = zip(chosen.tolist(), targets.tolist(), at_end.tolist(), strict=True)
    return [(target, last) if short else None for short, target, last in parts]


def _parts(windows: SentenceWindows, begin: int, end: int, short: Short, seed: int) -> list[tuple[int, int]]:
    """Begins and ends of the two texts of a window."""
    if short is not None:
        begin, end = _shorter(windows, begin, end, *short)
    split = _split(windows, begin, end, seed)
    return [(begin, split), (split, end)]


def _shorter(windows: SentenceWindows, begin: int, end: int, target: int, at_end: bool) -> tuple[int, int]:
    """The first or last sentences of a window that together have at least `target` tokens, two of them at least.

    As the original gathers them (Devlin et al. 2018): whole sentences until the target is reached.
    """
    inside = windows.sentence_starts(begin, end)
    if len(inside) < 2:
        return begin, end
    if at_end:
        place = min(int(np.searchsorted(inside, end - target, side="right")) - 1, len(inside) - 2)
        return (int(inside[place]) if place >= 0 else begin), end
    place = max(int(np.searchsorted(inside, begin + target)), 1)
    return begin, (int(inside[place]) if place < len(inside) else end)


def _split(windows: SentenceWindows, begin: int, end: int, seed: int) -> int:
    """A sentence begin inside the window, the same for the same seed; the middle when there is none."""
    inside = windows.sentence_starts(begin, end)
    if not len(inside):
        return (begin + end + 1) // 2
    return int(inside[(begin * 0x9E3779B1 + seed * 0x85EBCA77 >> 7) % len(inside)])


def shuffled_digit(index: np.ndarray, seed: int) -> np.ndarray:
    """A pseudorandom value in {0, 1, 2} for each index."""
    mixed = (index.astype(np.uint64) + np.uint64(seed % (1 << 32) + 1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(3)).astype(np.int64)


TRIES = 6  # windows looked at for a partner


def _elsewhere(
    windows: SentenceWindows, document: int, length: int, which: int, short: Short, seed: int, rng: np.random.Generator
) -> tuple[int, tuple[int, int]]:
    """The first (`which` 0) or second part of a window of another document: that document, and its begin and end.

    Of a few windows, all as likely as any other, the one whose part is most nearly `length` tokens long.
    """
    documents, begins, ends = windows.bounds(rng.integers(len(windows), size=TRIES))
    if (documents == document).all():  # a document that is most of the corpus
        other = int(rng.integers(len(windows.starts) - 2))
        other += other >= document
        first, last = int(windows.first[other]), int(windows.first[other + 1])
        documents, begins, ends = windows.bounds(rng.integers(first, last, size=TRIES))
    others = [
        (other, _parts(windows, begin, end, short, seed)[which])
        for other, begin, end in zip(documents.tolist(), begins.tolist(), ends.tolist(), strict=True)
        if other != document
    ]
    return min(others, key=lambda one: abs(one[1][1] - one[1][0] - length))
