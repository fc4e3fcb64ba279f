"""Texts -> features: token ids that fit into a length, as rows of batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.console.progress import progress
from pipeline.models.base import Encoder
from pipeline.models.inputs import Text, count, first_segment_length

PORTION = 2_000_000  # characters that are tokenized at a time
Cut = Literal["head", "tail", "both"]


@dataclass
class Feature:
    """One row of a batch: a text, or a window of one.

    Attributes:
        text: number of the text.
        ids: as the encoder's `collate` takes them.
        was_cut: whether a part of the text is missing.
        window: what a head that reads long texts in windows keeps of this one.
    """

    text: int
    ids: Any
    was_cut: bool = False
    window: Any = None

    def __len__(self) -> int:
        return count(self.ids)


def cut_texts(encoder: Encoder, texts: Sequence[Text], *, max_length: int, cut: Cut) -> list[Feature]:
    """Texts or pairs, cut to `max_length` positions with the special tokens."""
    result = list[Feature]()
    with progress(total=len(texts), desc="tokenize", unit="text", leave=False, delay=1) as bar:
        for part in portions(texts):  # in whole length only some at a time
            for ids in encoder.tokenize(part):
                short = shorten(ids, encoder, max_length, cut)
                result.append(Feature(len(result), short, was_cut=count(short) < count(ids)))
            bar.update(len(part))
    return result


def portions(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """The texts in order, in portions of at most PORTION characters, or of one text."""
    begin = characters = 0
    for number, text in enumerate(texts):
        size = len(text) if isinstance(text, str) else sum(map(len, text))
        if number > begin and characters + size > PORTION:
            yield texts[begin:number]
            begin, characters = number, 0
        characters += size
    if begin < len(texts):
        yield texts[begin:]


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
