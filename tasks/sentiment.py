"""Sentence classification: one text, one label."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tasks.classification import Classification


@dataclass
class Sentiment(Classification):
    """A text in the column `text`, its class in the column `label`."""

    columns: dict[str, str] = field(default_factory=lambda: {"text": "text", "label": "label"})

    kind: ClassVar[str | None] = "sentence"
    roles: ClassVar[tuple[str, ...]] = ("text",)
