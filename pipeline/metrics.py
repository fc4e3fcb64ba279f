"""Metrics of spans, and of several runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from tasks.bio import spans
from tasks.metrics import WITH_ERROR, span_scores, standard_error

__all__ = [
    "ROUNDING",
    "WITH_ERROR",
    "Difference",
    "majority",
    "mean_and_deviation",
    "sign",
    "span_scores",
    "spans",
    "standard_error",
]


ROUNDING = 1e-9  # differences of scores below it are those of their sums


def sign(mode: str | None) -> int:
    """By what a score is multiplied so that more is better: -1 where `mode` is `min`, else 1."""
    return -1 if mode == "min" else 1


def majority(labels: Sequence[Any]) -> float:
    """Accuracy of always giving the most frequent label."""
    return max(Counter(labels).values()) / len(labels)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a sample (n - 1); 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign, which one of nothing lacks."""
    return f"{value:+.{digits}f}" if round(value, digits) else f"{0:.{digits}f}"


@dataclass(frozen=True)
class Difference:
    """A mean difference of paired runs, those of one seed.

    Args:
        half: of its 95 % interval (Student's t, paired); None where nothing says how much runs differ by chance: for a
            single pair, and where the differences are all the same, as those of few test rows often are.
        p: of the paired t-test, two-sided; None of a single pair, and 1 where the differences are all the same.
    """

    mean: float
    half: float | None
    p: float | None

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> Self:
        mean, deviation = mean_and_deviation([a - b for a, b in zip(ours, theirs, strict=True)])
        if deviation <= ROUNDING * max(map(abs, [*ours, *theirs])):
            return cls(mean, None, None if len(ours) == 1 else 1.0)
        from scipy.stats import ttest_rel

        test = ttest_rel(ours, theirs)
        return cls(mean, float(test.confidence_interval(0.95).high) - mean, float(test.pvalue))

    @property
    def text(self) -> str:
        """As +0.050 [+0.032, +0.068]."""
        interval = "" if self.half is None else f" [{signed(self.mean - self.half)}, {signed(self.mean + self.half)}]"
        return f"{signed(self.mean)}{interval}"
