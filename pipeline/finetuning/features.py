"""Texts -> features: token ids that are cut or windowed to a length, and padded batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from pipeline.data.rows import word_windows
from pipeline.models.base import Encoder
from pipeline.models.inputs import Batch, Text, count, first_segment_length

Cut = Literal["head", "tail", "both"]


@dataclass
class Feature:
    """One row of a batch: a text, or a window of one.

    Attributes:
        text: number of the text.
        ids: as the encoder's `collate` takes them.
        target_words: of a list of words, those that this window has predictions for.
        word_ids: for each of the ids the target word that it is a piece of, counted from 0; -1 for none.
        was_cut: whether a part of the text is missing.
    """

    text: int
    ids: Any
    target_words: range = range(0)
    word_ids: list[int] = field(default_factory=list)
    was_cut: bool = False

    def __len__(self) -> int:
        return count(self.ids)


def features_of(encoder: Encoder, texts: Sequence[Text], *, by_word: bool, max_length: int, cut: Cut) -> list[Feature]:
    """Texts or pairs, cut to `max_length` positions with the special tokens; lists of words, if `by_word`, windowed."""
    if by_word:
        most = max_length - encoder.special.count()
        return [feature for number, words in enumerate(texts) for feature in _windows(encoder, number, words, most)]  # type: ignore[arg-type]
    result = []
    for number, ids in enumerate(encoder.tokenize(texts)):
        short = shorten(ids, encoder, max_length, cut)
        result.append(Feature(number, short, was_cut=count(short) < count(ids)))
    return result


def _windows(encoder: Encoder, number: int, words: Sequence[str], most: int) -> list[Feature]:
    """Overlapping windows of a list of words, of at most `most` pieces each; every word is a target of one."""
    if not words:
        return []
    pieces = encoder.word_pieces(words)
    cut = any(len(word) > most for word in pieces)
    pieces = [word[:most] for word in pieces]
    result = []
    for window, targets in word_windows([len(word) for word in pieces], most):
        ids = [piece for i in window for piece in pieces[i]]
        word_ids = [i - targets.start if i in targets else -1 for i in window for _ in pieces[i]]
        result.append(Feature(number, ids, targets, word_ids, was_cut=cut))
    return result


def shorten(ids: Any, encoder: Encoder, max_length: int, cut: Cut) -> Any:
    """Ids of a text, or a pair of them, cut to what fits between the special tokens.

    Args:
        cut: keep the `head`, the `tail`, or of `both` a quarter of the length from the head and the rest from the tail
            (Sun et al. 2019, 5.3.1). Of a pair that is one sequence the longer text is cut first.
    """
    single = max_length - encoder.special.count()
    if not isinstance(ids, tuple):
        return _cut(ids, single, cut)
    first, second = ids
    sizes = (single, single)
    if encoder.joint_pairs:
        both = max_length - encoder.special.count(2)
        left = first_segment_length(len(first), len(second), both)
        sizes = (left, both - left)
    return tuple(_cut(side, size, cut) for side, size in zip(ids, sizes, strict=True))


def _cut(ids: Sequence[Any], size: int, cut: Cut) -> Sequence[Any]:
    if len(ids) <= size:
        return ids
    head = {"head": size, "tail": 0, "both": size // 4}[cut]
    return [*ids[:head], *ids[len(ids) - (size - head) :]]


def collate(encoder: Encoder, features: Sequence[Feature]) -> Batch:
    """A padded batch; of windows of words with `word_ids` (B, T)."""
    batch = encoder.collate_for_head([feature.ids for feature in features])
    if features[0].word_ids:
        words, begin = torch.full(batch["mask"].shape, -1), encoder.special.prefix
        for row, feature in enumerate(features):
            words[row, begin : begin + len(feature.word_ids)] = torch.tensor(feature.word_ids)
        batch["word_ids"] = words
    return batch
