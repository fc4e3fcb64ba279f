"""Sets that are asked by prompts alone: rows with a right answer, and nothing to train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tasks.base import Task


@dataclass
class Prompted(Task):
    """Rows of any columns; its prompts name them.

    Args:
        groups: columns by whose values the score is shown too.
    """

    columns: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)

    head: ClassVar[str] = "none"
