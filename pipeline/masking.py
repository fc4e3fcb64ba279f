"""Masks and sentence pairs of BERT (Devlin et al. 2018, A.1), as pure functions of (tokens, generator).

Shapes: B batch, T positions, V vocabulary, M masked positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.windows import Windows


class Masked(NamedTuple):
    """Inputs with some tokens hidden: `ids` (B, T); `positions` (M,) into the flattened (B * T); `labels` (M,)."""

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray


def mask_tokens(
    ids: np.ndarray,
    maskable: np.ndarray,
    lengths: np.ndarray,
    rng: np.random.Generator,
    *,
    rate: float,
    mask_id: int,
    replacements: np.ndarray,
    continues_word: np.ndarray | None = None,
) -> Masked:
    """Chooses round(rate * length) tokens a row; of these 80 % become [MASK], 10 % a random token.

    At least one a row; but none where none may be, or where whole words are wanted and all are too long.

    Args:
        ids: (B, T) token ids.
        maskable: (B, T) bool: neither special tokens nor padding.
        lengths: (B,) tokens of each row, special ones included (as in the original), padding not.
        rate: share of the row's length.
        replacements: ids from which random tokens are drawn (no special ones).
        continues_word: (V,) bool; when given, words are chosen whole: all pieces of a word or none.
    """
    wanted = np.maximum(1, np.round(rate * lengths)).astype(int)
    wanted = np.minimum(wanted, maskable.sum(1))
    if continues_word is None:
        keys = np.where(maskable, rng.random(ids.shape), np.inf)
        order = keys.argsort(1).argsort(1)
        chosen = order < wanted[:, None]
    else:
        chosen = np.zeros(ids.shape, dtype=bool)
        for row in range(len(ids)):
            chosen[row] = _whole_words(continues_word[ids[row]], maskable[row], int(wanted[row]), rng)
    positions = np.flatnonzero(chosen)
    flat = ids.reshape(-1).copy()
    labels = flat[positions]
    action = rng.random(len(positions))
    random_tokens = replacements[rng.integers(len(replacements), size=len(positions))]
    flat[positions] = np.where(action < 0.8, mask_id, np.where(action < 0.9, random_tokens, labels))
    return Masked(flat.reshape(ids.shape), positions, labels)


def _whole_words(continues: np.ndarray, maskable: np.ndarray, wanted: int, rng: np.random.Generator) -> np.ndarray:
    """(T,) bool: words in random order until `wanted` pieces; a word that would exceed it is passed over."""
    begins = np.flatnonzero(maskable & (~continues | ~np.roll(maskable, 1)))
    chosen = np.zeros(len(maskable), dtype=bool)
    for begin in rng.permutation(begins):
        end = begin + 1
        while end < len(maskable) and maskable[end] and continues[end]:
            end += 1
        if end - begin <= wanted:
            chosen[begin:end] = True
            wanted -= end - begin
        if not wanted:
            break
    return chosen


class Pair(NamedTuple):
    """Two texts, and what the second is: 0 = it goes on from the first, 1 = it does not (or they are swapped)."""

    a: np.ndarray
    b: np.ndarray
    label: int
    documents: tuple[int, int]


ROWS_PER_TRIPLE = 4


def pair_count(windows: Windows) -> int:
    """Rows of an epoch with next-sentence prediction: 4 for every 3 windows, see `sentence_pairs`."""
    return len(windows) // 3 * ROWS_PER_TRIPLE


def sentence_pairs(
    windows: Windows, rows: np.ndarray, *, limit: int, seed: int, rng: np.random.Generator
) -> list[Pair]:
    """Sentence pairs, exactly half of which are not in sequence (Devlin et al. 2018, A.2).

    Windows come in threes, each split at a random sentence into a first and a second part. Two of the three are pairs
    in sequence. The third, chosen by `seed`, is torn apart: its first part gets the second part of a window of
    another document, and its second part the first of another. So half of the rows are random, every token is
    shown, and the parts of random pairs begin and end as those of pairs in sequence do: where a random text was cut in
    the middle of a sentence, its last token alone told the label in 81 % of the rows of a Wikipedia. One row in ten is
    cut to a random shorter length; the longer text loses tokens at its front or end, at random.

    Args:
        rows: (n,) row numbers below `pair_count(windows)`.
        limit: most tokens of a pair, without special tokens.
        seed: fixes splits for this epoch, so that rows of one window agree whoever asks.
        rng: for what needs no agreement: partners and truncation.
    """
    triple, place = rows // ROWS_PER_TRIPLE, rows % ROWS_PER_TRIPLE
    odd = shuffled_digit(triple, seed)  # which window of the three is torn apart
    in_sequence = np.where(place >= odd, place + 1, place)  # places 0, 1: the two others
    window = triple * 3 + np.where(place < 2, in_sequence, odd)
    documents, begins, ends = windows.bounds(window)
    tokens, pairs = windows.store.tokens, []
    for i in range(len(rows)):
        document, begin, end = int(documents[i]), int(begins[i]), int(ends[i])
        split = _split(windows, begin, end, seed)
        parts, whose = [(begin, split), (split, end)], [document, document]
        if place[i] >= 2:
            away = 3 - int(place[i])  # the part that comes from elsewhere
            whose[away], parts[away] = _elsewhere(windows, document, parts[away], away, seed, rng)
        a, b = (tokens[first:last] for first, last in parts)
        pairs.append(Pair(*truncate_pair(a, b, _target(limit, rng), rng), int(place[i] >= 2), (whose[0], whose[1])))
    return pairs


def swapped_pairs(windows: Windows, rows: np.ndarray, *, limit: int, seed: int, rng: np.random.Generator) -> list[Pair]:
    """Sentence-order prediction (Lan et al. 2019, ALBERT): both texts in sequence, half of them swapped."""
    documents, begins, ends = windows.bounds(rows)
    swap = rng.permutation(np.arange(len(rows)) % 2)
    pairs = []
    for document, begin, end, label in zip(
        documents.tolist(), begins.tolist(), ends.tolist(), swap.tolist(), strict=True
    ):
        split = _split(windows, begin, end, seed)
        texts = (windows.store.tokens[begin:split], windows.store.tokens[split:end])
        a, b = texts[::-1] if label else texts
        pairs.append(Pair(*truncate_pair(a, b, _target(limit, rng), rng), label, (document, document)))
    return pairs


def truncate_pair(a: np.ndarray, b: np.ndarray, limit: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Takes tokens one by one from the longer text, each from its front or its end at random."""
    excess = len(a) + len(b) - limit
    if excess <= 0:
        return a, b
    longer, shorter = max(len(a), len(b)), min(len(a), len(b))
    first = min(excess, longer - shorter)  # all from the longer, until both are equal; then in turn
    rest = excess - first
    from_a = (first if len(a) >= len(b) else 0) + (rest + 1) // 2
    from_b = excess - from_a
    return _trim(a, from_a, rng), _trim(b, from_b, rng)


def _trim(text: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    front = int(rng.binomial(count, 0.5)) if count else 0
    return text[front : len(text) - (count - front)]


def _target(limit: int, rng: np.random.Generator) -> int:
    return int(rng.integers(2, limit + 1)) if rng.random() < 0.1 else limit


def _split(windows: Windows, begin: int, end: int, seed: int) -> int:
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
    windows: Windows, document: int, part: tuple[int, int], which: int, seed: int, rng: np.random.Generator
) -> tuple[int, tuple[int, int]]:
    """The first (`which` 0) or second part of a window of another document: that document, and its begin and end.

    Of a few windows, all as likely as any other, the one whose part is most nearly as long as `part`.
    """
    documents, begins, ends = windows.bounds(rng.integers(len(windows), size=TRIES))
    if (documents == document).all():  # a document that is most of the corpus
        other = int(rng.integers(len(windows.starts) - 2))
        other += other >= document
        first, last = int(windows.first[other]), int(windows.first[other + 1])
        documents, begins, ends = windows.bounds(rng.integers(first, last, size=TRIES))
    found = []
    for other, begin, end in zip(documents.tolist(), begins.tolist(), ends.tolist(), strict=True):
        split = _split(windows, begin, end, seed)
        found.append((other, (begin, split) if which == 0 else (split, end)))
    length = part[1] - part[0]
    others = [one for one in found if one[0] != document]
    return min(others, key=lambda one: abs(one[1][1] - one[1][0] - length))
