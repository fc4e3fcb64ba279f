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
    """Chooses round(rate * length) tokens a row, at least one; of these 80 % become [MASK], 10 % a random token.

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

    Windows come in threes. Two of the three are each split at a random sentence into a pair in sequence. The
    third, chosen by `seed`, is split too, but each part gets a partner from another document: so half of
    the rows are random, and what a random pair cut off is used as the first text of the next row. The partner
    is about as long as the part it replaces, and whole sentences too, so that neither its length nor its end gives
    the label away. One row in ten is
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
    pairs = []
    for i in range(len(rows)):
        document, begin, end = int(documents[i]), int(begins[i]), int(ends[i])
        split = _split(windows, begin, end, seed)
        tokens = windows.store.tokens
        if place[i] < 2:
            a, b, label, other = tokens[begin:split], tokens[split:end], 0, document
        else:
            own, away = ((begin, split), (split, end)) if place[i] == 2 else ((split, end), (begin, split))
            other, start, stop = _elsewhere(windows, document, away[1] - away[0], rng)
            a, b, label = tokens[own[0] : own[1]], tokens[start:stop], 1
        pairs.append(Pair(*truncate_pair(a, b, _target(limit, rng), rng), label, (document, other)))
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


TRIES = 4  # places looked at for a partner


def _elsewhere(windows: Windows, document: int, length: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """(document, begin, end) of whole sentences of a document other than `document`, about `length` tokens.

    Of a few places the one that fits best. Cut in the middle of a sentence, its last token alone would tell a random
    pair in 81 % of the rows of a Wikipedia, and a model learns that and little else.
    """
    other = int(rng.integers(len(windows.starts) - 2))
    other += other >= document
    low, high = int(windows.starts[other]), int(windows.starts[other + 1])
    sentences = windows.store.sentences
    first, last = np.searchsorted(sentences, [low, max(low, high - length)], side="right")
    begins = sentences[rng.integers(first - 1, last, TRIES)]
    after = np.searchsorted(sentences, begins + length)
    over = np.where(after < len(sentences), sentences[np.minimum(after, len(sentences) - 1)], high).clip(max=high)
    under = sentences[after - 1].clip(max=high)
    nearer = (under > begins) & (begins + length - under < over - begins - length)
    ends = np.where(nearer, under, over)
    best = int(np.abs(ends - begins - length).argmin())
    return other, int(begins[best]), int(ends[best])
