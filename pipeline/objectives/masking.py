"""Masks of BERT (Devlin et al. 2018, A.1), a pure function of (tokens, generator).

Shapes: B rows, T positions, V vocabulary, M masked positions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


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
    """(T,) bool: words in random order until `wanted` pieces; a word that would exceed it is skipped."""
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
