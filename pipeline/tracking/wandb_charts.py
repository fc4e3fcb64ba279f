"""Charts of a test in Weights & Biases: they can be filtered and laid over each other there, as pictures cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.plots import MOST_LABELS


def charts_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Confusion and precision-recall curves of predictions; none where these are not one of few labels.

    Args:
        rows: lines of predictions.jsonl.
    """
    import wandb

    probabilities = rows[0].get("probabilities") if rows else None
    if not isinstance(probabilities, dict) or not 2 <= len(probabilities) <= MOST_LABELS:
        return {}
    if not all(isinstance(rows[0].get(side), str) for side in ("gold", "label")):  # of a kind with several labels
        return {}
    names = list(probabilities)
    number = {name: index for index, name in enumerate(names)}
    gold, predicted = ([number[row[side]] for row in rows] for side in ("gold", "label"))
    numbers: Any = np.array([[row["probabilities"][name] for name in names] for row in rows])
    confusion = wandb.plot.confusion_matrix(y_true=gold, preds=predicted, class_names=names, title="test: confusion")
    curves = wandb.plot.pr_curve(y_true=gold, y_probas=numbers, labels=names, title="test: precision and recall")
    found = {"charts/confusion": confusion, "charts/precision_recall": curves}
    return {name: chart for name, chart in found.items() if chart is not None}
