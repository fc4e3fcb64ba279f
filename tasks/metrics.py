"""Metrics of labels, classes and spans, and how a headline writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.bio import spans


def standard_error(accuracy: float, count: int) -> float:
    """Of a share: sqrt(p (1 - p) / n)."""
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / max(1, count))


def class_scores(
    gold: Sequence[int], predicted: Sequence[int], classes: int, *, name: str = "accuracy"
) -> dict[str, float]:
    """Accuracy with its standard error, macro F1 and Matthews' correlation.

    Args:
        name: what the accuracy is called.
    """
    from sklearn.metrics import matthews_corrcoef  # torchmetrics' is above 0 where one class is always predicted

    accuracy = float(np.mean(np.asarray(gold) == np.asarray(predicted)))
    return {
        name: accuracy,
        "standard_error": standard_error(accuracy, len(gold)),
        "macro_f1": macro_f1(gold, predicted, classes),
        "matthews": float(matthews_corrcoef(gold, predicted)) if len({*gold, *predicted}) > 1 else 0.0,
    }


def confusion(gold: Sequence[int], predicted: Sequence[int], classes: int) -> np.ndarray:
    """(C, C): how many of class i were predicted as class j."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(counts, (np.asarray(gold), np.asarray(predicted)), 1)
    return counts


def macro_f1(gold: Sequence[int], predicted: Sequence[int], classes: int) -> float:
    """Mean F1 of the classes that are gold or predicted; in float32, as torchmetrics computes it."""
    counts = confusion(gold, predicted, classes)
    sizes = (counts.sum(0) + counts.sum(1)).astype(np.float32)
    f1 = (2 * counts.diagonal()).astype(np.float32)[sizes > 0] / sizes[sizes > 0]
    return float((f1 / np.float32(len(f1))).sum(dtype=np.float32))


def headline(metric: str, figures: dict[str, float]) -> str:
    """The metric first, then all others; an accuracy with its standard error."""
    names = [metric, *(name for name in figures if name not in (metric, "standard_error"))]
    shown = {name: f"{name.replace('_', ' ').replace(' f1', ' F1')} {figures[name]:.4f}" for name in names}
    for name in {"accuracy", "token_accuracy"} & set(names):
        shown[name] += f" ± {figures['standard_error']:.4f} (standard error)"
    return "test " + ", ".join(shown.values()).replace("matthews", "Matthews")


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of whole spans, exactly as conlleval (Tjong Kim Sang and Buchholz 2000) counts them.

    Args:
        gold, predicted: a list of tags for each sentence, of the same lengths.

    Returns:
        `precision`, `recall` and `f1` over all spans, `support` (gold spans), and under the name of each type the
        same for it. A figure without a span to divide by is 0.

    Raises:
        ValueError: sentences or tags do not match in number.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} sentences of gold tags, {len(predicted)} of predicted ones")
    counts: dict[str, list[int]] = {}  # type -> right, predicted, gold
    for number, (ours, theirs) in enumerate(zip(gold, predicted, strict=True)):
        if len(ours) != len(theirs):
            raise ValueError(f"sentence {number} has {len(ours)} gold tags and {len(theirs)} predicted ones")
        sides = set(spans(ours)), set(spans(theirs))
        for place, side in enumerate((sides[0] & sides[1], sides[1], sides[0])):
            for kind, _, _ in side:
                counts.setdefault(kind, [0, 0, 0])[place] += 1
    total = [sum(values) for values in zip(*counts.values(), strict=True)] or [0, 0, 0]
    return {**_f1(*total), **{kind: _f1(*values) for kind, values in sorted(counts.items())}}


def _f1(right: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = right / max(1, predicted), right / max(1, gold)
    f1 = 2 * right / max(1, predicted + gold)
    return {"precision": precision, "recall": recall, "f1": f1, "support": gold}
