"""Sentence classification: one text, one label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.base import Example, Task


@dataclass
class Sentiment(Task):
    """A text in the column `text`, its class in the column `label`."""

    columns: dict[str, str] = field(default_factory=lambda: {"text": "text", "label": "label"})

    def example(self, row: Mapping[str, Any], label: int) -> Example:
        return Example(text=str(row[self.columns["text"]]).strip(), label=label)
