"""Sequence labelling: a list of words, one tag for each; spans of words (names, chunks) as BIO tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from pipeline import UserError
from tasks.base import Example, Row, Task, is_plain_list, shortened
from tasks.prompts import WrongTask

Span = tuple[str, int, int]  # type, first word, last word
MARKS = ("B-", "I-", "E-", "S-")


@dataclass
class Tagging(Task):
    """Lists in the columns `words` and `tags`, or what spaces separate; files in CoNLL columns have numbers instead.

    Args:
        conll: role -> number of the column, from 0, in files of CoNLL columns.
        spans: whether tags mark spans. They are read as BIO, IOB1 or IOBES and are BIO from then on.
    """

    columns: dict[str, str] = field(default_factory=lambda: {"words": "words", "tags": "tags"})
    conll: dict[str, int] = field(default_factory=lambda: {"words": 0, "tags": 1})
    spans: bool = True

    head: ClassVar[str] = "token"
    roles: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore:
            raise WrongTask("a tagging task has no labels of rows to ignore")
        if not {"words", "tags"} <= set(self.conll):
            raise WrongTask("conll has the numbers of two columns, words and tags")
        if self.spans:
            self.label_names = bio_tags(self.label_names)

    @property
    def metric(self) -> str:
        return "span_f1" if self.spans else "token_accuracy"

    def learn_labels(self, rows: Sequence[Row]) -> None:
        super().learn_labels(rows)
        if self.spans:
            self.label_names = bio_tags(self.label_names)

    def column(self, row: Row, role: str) -> list[str]:
        place, columns = row
        if 0 in columns:  # CoNLL columns
            if (number := self.conll[role]) not in columns:
                raise UserError(f"{place} has only {len(columns)} columns; the {role} should be in column {number}.")
            return columns[number]
        value = super().column(row, role)
        if isinstance(value, str):
            return value.split()
        if not is_plain_list(value):
            raise UserError(f"{place} has {str(value)[:40]} as its {role}, which is no list of them.")
        return [str(part) for part in value]

    def names(self, row: Row) -> list[str]:
        tags = self.named(row, self.column(row, "tags"))
        if self.spans and (wrong := [tag for tag in tags if tag != "O" and tag[:2] not in MARKS]):
            said = "which is no tag of BIO or IOBES; set spans: false for plain tags"
            raise UserError(f"{row[0]} has the tag '{shortened(wrong[0])}', {said}.")
        return to_bio(tags) if self.spans else tags

    def example(self, row: Row, known: dict[str, int]) -> Example:
        words, tags = self.column(row, "words"), self.indices(row, known)
        if len(words) != len(tags):
            raise UserError(f"{row[0]} has {len(words)} words but {len(tags)} tags.")
        return Example(text=words, label=tags)


def bio_tags(tags: Sequence[str]) -> list[str]:
    """All tags that the span types of `tags` can need: O, and B and I of each type."""
    types = dict.fromkeys(tag[2:] for tag in tags if tag != "O")
    return ["O", *(f"{mark}-{kind}" for kind in types for mark in "BI")]


def spans(tags: Sequence[str]) -> list[Span]:
    """Spans of tags in BIO, IOB1 or IOBES, with malformed sequences read as conlleval reads them.

    A span ends before O, before another type, before B and S, and after E and S; where one ends or nothing was
    open, any tag but O begins one: so an I without a B before it begins a span.
    """
    found: list[Span] = []
    before, open_type, begin = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        breaks = prefix in ("O", "B", "S") or before in ("E", "S") or kind != open_type
        if before != "O" and breaks:
            found.append((open_type, begin, i - 1))
        if prefix != "O" and (before == "O" or breaks):
            begin, open_type = i, kind
        before = prefix
    return found


def to_bio(tags: Sequence[str]) -> list[str]:
    """Tags of any of these schemes -> BIO."""
    result = ["O"] * len(tags)
    for kind, first, last in spans(tags):
        result[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return result
