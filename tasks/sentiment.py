"""Sentence classification: one text, one label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tasks.classification import Classification
from tasks.guess import Table


@dataclass
class Sentiment(Classification):
    """A text in the column `text`, its class in the column `label`."""

    columns: dict[str, str] = field(default_factory=lambda: {"text": "text", "label": "label"})

    kind: ClassVar[str | None] = "sentence"
    roles: tuple[str, ...] = ("text",)

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        text = table.text()
        label = None if text is None else table.label(text)
        return {"text": text, "label": label} if text is not None and label is not None else None
