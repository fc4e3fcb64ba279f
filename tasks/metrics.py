"""Metrics of labels, classes and spans, and how a headline writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.bio import spans

if TYPE_CHECKING:
    from torch import Tensor


WITH_ERROR = ("accuracy", "token_accuracy", "pearson", "answer_f1")  # figures whose standard error is `standard_error`


def shown(value: float, digits: int = 3) -> str:
    """With so many digits; a small number, as of squared errors, with two that are not 0."""
    text = f"{value:.{digits}f}"
    return f"{value:.2g}" if value and not float(text) else text


def standard_error(accuracy: float, count: int) -> float:
    """Of a share: sqrt(p (1 - p) / n)."""
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / max(1, count))


def clustered_error(right: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of a share over answers that come in groups, as the words of sentences, which err together.

    Cameron and Miller 2015, of a mean: sqrt(G / (G - 1) * sum_g (right_g - p n_g)^2) / N.

    Args:
        right, counts: right answers, and all, of each group; what is right in part counts in part.
    """
    total, groups = max(1, sum(counts)), len(counts)
    if groups < 2:
        return standard_error(sum(right) / total, total)
    apart = np.asarray(right) - sum(right) / total * np.asarray(counts)
    return math.sqrt(groups / (groups - 1) * float(np.square(apart).sum())) / total


def class_scores(
    gold: Sequence[int], predicted: Sequence[int], classes: int, *, name: str = "accuracy"
) -> dict[str, float]:
    """Accuracy with its standard error, macro F1 and Matthews' correlation.

    Args:
        name: what the accuracy is called.
    """
    from sklearn.metrics import matthews_corrcoef  # torchmetrics' is above 0 where one class is always predicted
    from torchmetrics.functional.classification import multiclass_f1_score

    accuracy = float(np.mean(np.asarray(gold) == np.asarray(predicted)))
    f1 = multiclass_f1_score(as_tensor(predicted), as_tensor(gold), num_classes=classes, average="macro")
    return {
        name: accuracy,
        "standard_error": standard_error(accuracy, len(gold)),
        "macro_f1": float(f1),  # of the classes that are gold or predicted
        "matthews": float(matthews_corrcoef(gold, predicted)) if len({*gold, *predicted}) > 1 else 0.0,
    }


def confusion(gold: Sequence[int], predicted: Sequence[int], classes: int) -> np.ndarray:
    """(C, C): how many of class i were predicted as class j."""
    from torchmetrics.functional.classification import multiclass_confusion_matrix

    return multiclass_confusion_matrix(as_tensor(predicted), as_tensor(gold), num_classes=classes).numpy()


def as_tensor(labels: Sequence[int]) -> Tensor:
    """(N,)"""
    import torch

    return torch.as_tensor(np.asarray(labels, dtype=np.int64))


def headline(metric: str, figures: dict[str, float]) -> str:
    """The metric first, then all others; an accuracy with its standard error."""
    names = [metric, *(name for name in figures if name not in (metric, "standard_error"))]
    shown = {name: f"{name.replace('_', ' ').replace(' f1', ' F1')} {figures[name]:.4f}" for name in names}
    for name in set(WITH_ERROR) & set(names):
        if figures["standard_error"]:  # 0 where all rows are right, or none is: no certainty
            shown[name] += f" ± {figures['standard_error']:.4f} (standard error)"
    return "test " + ", ".join(shown.values()).replace("matthews", "Matthews")


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Precision, recall and F1 of whole spans, exactly as conlleval (Tjong Kim Sang and Buchholz 2000) counts them.

    Args:
        gold: a list of tags for each sentence.
        predicted: the same, of the same lengths.

    Returns:
        `precision`, `recall` and `f1` over all spans, `support` (gold spans), and under the name of each type the
        same for it, but for a type with one of these names. A figure without a span to divide by is 0.

    Raises:
        ValueError: sentences or tags do not match in number.
    """
    total, by_type = span_figures(gold, predicted)
    return {**by_type, **total}


def span_figures(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """As `span_scores`: the figures over all spans, and those of each type."""
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
    return _f1(*total), {kind: _f1(*values) for kind, values in sorted(counts.items())}


def _f1(right: int, predicted: int, gold: int) -> dict[str, float]:
    precision, recall = right / max(1, predicted), right / max(1, gold)
    f1 = 2 * right / max(1, predicted + gold)
    return {"precision": precision, "recall": recall, "f1": f1, "support": gold}
