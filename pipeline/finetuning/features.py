"""Texts -> what a head reads: ids that are cut or windowed to the encoder's room, and padded batches of them."""

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
class Item:
    """One row of a batch: a text, or a window of one.

    Attributes:
        text: number of the text.
        ids: as the encoder's `collate` takes it.
        asked: for words, which of the text's are asked for here.
        word_of: for each of the ids, which of these it belongs to, -1 for none.
        was_cut: whether something of the text was left out.
    """

    text: int
    ids: Any
    asked: range = range(0)
    word_of: list[int] = field(default_factory=list)
    was_cut: bool = False

    def __len__(self) -> int:
        return count(self.ids)


def items_of(encoder: Encoder, texts: Sequence[Text], *, by_word: bool, room: int, cut: Cut) -> list[Item]:
    """Texts or pairs, cut to `room` positions, special ones included; lists of words if `by_word`, windowed to it."""
    if by_word:
        return [item for number, words in enumerate(texts) for item in _windows(encoder, number, words, room - 2)]  # type: ignore[arg-type]
    result = []
    for number, ids in enumerate(encoder.tokenize(texts)):
        short = shorten(ids, room, cut, joined=encoder.joint_pairs)
        result.append(Item(number, short, was_cut=count(short) < count(ids)))
    return result


def _windows(encoder: Encoder, number: int, words: Sequence[str], room: int) -> list[Item]:
    if not words:
        return []
    pieces = encoder.word_pieces(words)
    cut = any(len(word) > room for word in pieces)
    pieces = [word[:room] for word in pieces]
    result = []
    for window, asked in word_windows([len(word) for word in pieces], room):
        ids = [piece for i in window for piece in pieces[i]]
        word_of = [i - asked.start if i in asked else -1 for i in window for _ in pieces[i]]
        result.append(Item(number, ids, asked, word_of, was_cut=cut))
    return result


def shorten(ids: Any, room: int, cut: Cut, *, joined: bool) -> Any:
    """Ids of a text, or a pair of them, cut to what fits between the special tokens.

    Args:
        cut: keep the `head`, the `tail`, or of `both` a quarter of the room from the head and the rest from the tail
            (Sun et al. 2019, 5.3.1).
        joined: whether a pair is one sequence; then the longer text is cut first.
    """
    if not isinstance(ids, tuple):
        return _cut(ids, room - 2, cut)
    first, second = ids
    sizes = (room - 2, room - 2)
    if joined:
        left = first_segment_length(len(first), len(second), room - 3)
        sizes = (left, room - 3 - left)
    return tuple(_cut(side, size, cut) for side, size in zip(ids, sizes, strict=True))


def _cut(ids: Sequence[Any], size: int, cut: Cut) -> Sequence[Any]:
    if len(ids) <= size:
        return ids
    head = {"head": size, "tail": 0, "both": size // 4}[cut]
    return [*ids[:head], *ids[len(ids) - (size - head) :]]


def collate(encoder: Encoder, items: Sequence[Item]) -> Batch:
    """A padded batch; for words with `word_of` (B, T)."""
    batch = encoder.collate_for_head([item.ids for item in items])
    if items[0].word_of:
        words = torch.full(batch["mask"].shape, -1)
        for row, item in enumerate(items):  # every encoder puts one special token in front
            words[row, 1 : len(item.word_of) + 1] = torch.tensor(item.word_of)
        batch["word_of"] = words
    return batch
