"""Metrics that torchmetrics lacks, and how they are written down."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.bio import spans


def standard_error(accuracy: float, count: int) -> float:
    """Of a share: sqrt(p (1 - p) / n)."""
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / max(1, count))


def majority(labels: Sequence[Any]) -> float:
    """Accuracy of always giving the most frequent label."""
    return max(Counter(labels).values()) / len(labels)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a sample (n - 1); 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def paired_gain(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float | None]:
    """Mean of the differences of runs with the same seed, and half of its 95 % interval (Student's t, paired).

    None in place of the interval for a single pair.
    """
    from scipy.stats import t

    mean, deviation = mean_and_deviation([a - b for a, b in zip(ours, theirs, strict=True)])
    if len(ours) < 2:
        return mean, None
    return mean, float(t.ppf(0.975, len(ours) - 1)) * deviation / math.sqrt(len(ours))


def bag_of_words(texts: Sequence[str], classes: Sequence[int], asked: Sequence[str]) -> list[int]:
    """Classes by logistic regression on TF-IDF of words and word pairs; where there are none, the most frequent."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")
    [(frequent, _), *others] = Counter(classes).most_common()
    if not others or not any(text.split() for text in texts):  # nothing to learn
        return [frequent] * len(asked)
    model = LogisticRegression(C=10, max_iter=300).fit(vectorizer.fit_transform(texts), classes)
    return [int(label) for label in model.predict(vectorizer.transform(asked))]


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
