"""Pair classification: two texts, one label, as in natural language inference."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tasks.classification import Classification
from tasks.guess import Table


@dataclass
class Entailment(Classification):
    """Texts in the columns `premise` and `hypothesis`, the class of the pair in the column `label`."""

    columns: dict[str, str] = field(
        default_factory=lambda: {"premise": "premise", "hypothesis": "hypothesis", "label": "label"}
    )

    kind: ClassVar[str | None] = "pair"
    roles: tuple[str, ...] = ("premise", "hypothesis")

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        pair = table.pair()
        label = None if pair is None else table.label(*pair)
        return dict(zip(("premise", "hypothesis", "label"), (*pair, label), strict=True)) if pair and label else None
