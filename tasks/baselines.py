"""Models without any pretraining, to be beaten: learned from the training part alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.bio import to_bio

MOST_WEIGHTS = 10_000_000  # of a logistic regression: about 300 bytes for each


def joined(text: Any) -> str:
    """A text, a pair or a list of words as one string."""
    return text if isinstance(text, str) else " ".join(text)


def tfidf() -> Any:
    """TF-IDF of words and word pairs."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\S+")


def bag_of_words(texts: Sequence[str], classes: Sequence[int], asked: Sequence[str]) -> list[int] | None:
    """Classes by logistic regression on TF-IDF of words and word pairs; where there are none, the most frequent.

    None: there are more than MOST_WEIGHTS classes times words and word pairs.
    """
    from sklearn.linear_model import LogisticRegression

    vectorizer = tfidf()
    [(frequent, _), *others] = Counter(classes).most_common()
    if not others or not any(text.split() for text in texts):  # nothing to learn
        return [frequent] * len(asked)
    vectors = vectorizer.fit_transform(texts)
    if (len(others) + 1) * vectors.shape[1] > MOST_WEIGHTS:
        return None
    model = LogisticRegression(C=10, max_iter=300).fit(vectors, classes)
    return [int(label) for label in model.predict(vectorizer.transform(asked))]


def labels_of_bags(
    texts: Sequence[str], known: Any, asked: Sequence[str], *, threshold: float
) -> list[list[int]] | None:
    """Sets of labels by a logistic regression for each label on TF-IDF of words and word pairs.

    None: there are more than MOST_WEIGHTS labels times words and word pairs.

    Args:
        known: (N, C), whether a text has a label.
        threshold: a label is given where its probability is above it.
    """
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    always = np.flatnonzero(known.all(0)).tolist()
    found: list[list[int]] = [list(always) for _ in asked]
    if not any(text.split() for text in texts):
        return found
    vectorizer = tfidf()
    vectors, new = vectorizer.fit_transform(texts), vectorizer.transform(asked)
    if known.shape[1] * vectors.shape[1] > MOST_WEIGHTS:
        return None
    for label in np.flatnonzero(known.any(0) & ~known.all(0)).tolist():
        model = LogisticRegression(C=10, solver="liblinear").fit(vectors, known[:, label])
        for text in np.flatnonzero(model.predict_proba(new)[:, 1] > threshold).tolist():
            found[text].append(label)
    return [sorted(labels) for labels in found]


def known_spans(words: list[str], known: dict[tuple[str, ...], Counter[str]]) -> list[str]:
    """BIO tags of the longest spans that the training part had, from left to right."""
    longest = max(map(len, known), default=0)
    tags, i = ["O"] * len(words), 0
    while i < len(words):
        for size in range(min(longest, len(words) - i), 0, -1):
            if types := known.get(tuple(words[i : i + size])):
                kind = types.most_common(1)[0][0]
                tags[i : i + size] = [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
                i += size - 1
                break
        i += 1
    return to_bio(tags)
