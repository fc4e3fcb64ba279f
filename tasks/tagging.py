"""Sequence labelling: a list of words, one tag for each; spans of words (names, chunks) as BIO tags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tasks.base import Example, Row, Task, is_plain_list, shortened
from tasks.bio import bio_tags, to_bio
from tasks.errors import TaskError, UserError

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
            raise TaskError("a tagging task has no labels of rows to ignore")
        if not {"words", "tags"} <= set(self.conll):
            raise TaskError("conll has the numbers of two columns, words and tags")
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
