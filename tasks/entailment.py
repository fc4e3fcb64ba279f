"""Pair classification: two texts, one label, as in natural language inference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.base import Example, Task


@dataclass
class Entailment(Task):
    """Texts in the columns `premise` and `hypothesis`, the class of the pair in the column `label`."""

    columns: dict[str, str] = field(
        default_factory=lambda: {"premise": "premise", "hypothesis": "hypothesis", "label": "label"}
    )

    def example(self, row: Mapping[str, Any], label: int) -> Example:
        premise, hypothesis = (str(row[self.columns[role]]).strip() for role in ("premise", "hypothesis"))
        return Example(text=(premise, hypothesis), label=label)
