"""Pair classification: two texts, one label, as in natural language inference."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.base import Task


@dataclass
class Entailment(Task):
    """Texts in the columns `premise` and `hypothesis`, the class of the pair in the column `label`."""

    columns: dict[str, str] = field(
        default_factory=lambda: {"premise": "premise", "hypothesis": "hypothesis", "label": "label"}
    )

    roles = ("premise", "hypothesis")
