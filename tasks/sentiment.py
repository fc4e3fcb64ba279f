"""Sentence classification: one text, one label."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.base import Task


@dataclass
class Sentiment(Task):
    """A text in the column `text`, its class in the column `label`."""

    columns: dict[str, str] = field(default_factory=lambda: {"text": "text", "label": "label"})

    roles = ("text",)
