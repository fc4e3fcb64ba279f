"""Sets for prompts alone: rows with a right answer, and nothing to train on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.labels import NamedLabels


@dataclass
class Prompted(NamedLabels):
    """Rows of any columns; its prompts name them.

    Args:
        groups: columns by whose values the score is shown too.
    """

    columns: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
