"""Metrics that torchmetrics lacks, and how they are written down."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any


def standard_error(accuracy: float, count: int) -> float:
    """Of a share: sqrt(p (1 - p) / n)."""
    return math.sqrt(max(0.0, accuracy * (1 - accuracy)) / max(1, count))


def majority(labels: Sequence[str]) -> float:
    """Accuracy of always giving the most frequent label."""
    return max(Counter(labels).values()) / len(labels)


def bag_of_words(train: Sequence[Any], test: Sequence[Any]) -> float | None:
    """Test accuracy of logistic regression on TF-IDF of words and word pairs; None without scikit-learn.

    Args:
        train, test: examples with `text` and `label`.
    """
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        return None
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")
    features = vectorizer.fit_transform(example.text for example in train)
    model = LogisticRegression(C=10, max_iter=300).fit(features, [example.label for example in train])
    return float(model.score(vectorizer.transform(example.text for example in test), [e.label for e in test]))
