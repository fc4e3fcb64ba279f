"""Accuracies by group in the metrics of a zero-shot run, and published ones beside them (see metric_names)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OURS, THEIRS = "zeroshot/", "published/"
PARTS = ("template_", "shots_")  # of a run, in the place of a column
MOST = 20  # groups of a column that are shown side by side


def by_column(metrics: Mapping[str, Any], prefix: str = OURS) -> dict[str, dict[str, float]]:
    """Column -> its values -> accuracy of the rows with that value.

    Args:
        prefix: of the run's own figures, or of those of a published model.
    """
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        column, _, group = name.removeprefix(prefix).partition("/")
        if name.startswith(prefix) and group and not column.startswith(PARTS):
            found.setdefault(column, {})[group] = value
    return found


def published(metrics: Mapping[str, Any], group: str = "") -> dict[str, float]:
    """Model -> accuracy that was published for the same rows, or for those of a group, as /COLUMN/VALUE."""
    models = [name.removeprefix(THEIRS) for name in metrics if name.startswith(THEIRS) and name.count("/") == 1]
    return {model: metrics[f"{THEIRS}{model}{group}"] for model in models}
