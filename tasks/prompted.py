"""Sets for prompts alone: rows with a right answer, and nothing to train on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tasks.errors import TaskError
from tasks.labels import NamedLabels


@dataclass
class Published:
    """Accuracies that others have published, by group.

    Args:
        column: that says which group a row is of.
        rows: of a group: the figures hold for all of them.
        models: names, in the order of the accuracies.
        accuracies: group -> accuracy of each model.
    """

    column: str
    rows: int
    models: list[str]
    accuracies: dict[str, list[float]]

    def __post_init__(self) -> None:
        """Raises: TaskError, a group has not a figure for each model."""
        for name, figures in self.accuracies.items():
            if len(figures) != len(self.models):
                raise TaskError(f"published has {len(figures)} figures of {name}, for {len(self.models)} models")


@dataclass
class Prompted(NamedLabels):
    """Rows of any columns; its prompts name them.

    Args:
        groups: columns by whose values the score is shown too, where rows have them; `file`: the file of a row.
        published: figures to compare with.
    """

    columns: dict[str, str] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    published: Published | None = None
