"""Regression: one number for a text or a pair of texts, as how similar two sentences are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tasks import plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.baselines import joined, tfidf
from tasks.dataset import Row, shortened
from tasks.errors import RowError, TaskError, UserError
from tasks.guess import Table
from tasks.metrics import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAT = 1e-6  # numbers within this share of the largest are all the same: float32 has seven digits
NARROW = 1e-3  # predictions within this share of the range of the training scores are, too


@dataclass
class Regression(Task):
    """A number in the column of the role `target`, and a text, or two of a pair, in those of the other roles.

    A model is trained on the squared error, and its checkpoint chosen by `choose_by`.

    Args:
        target: the role of the number.
        choose_by: the correlation, of values (`pearson`) or ranks (`spearman`), or the mean squared error (`mse`).
    """

    columns: dict[str, str] = field(
        default_factory=lambda: {"sentence1": "sentence1", "sentence2": "sentence2", "score": "score"}
    )
    target: str = "score"
    choose_by: Literal["pearson", "spearman", "mse"] = "pearson"

    kind: ClassVar[str | None] = "regression"
    head: ClassVar[str | None] = "regression"
    answers: ClassVar[str] = "scores"
    pictures: ClassVar[tuple[str, ...]] = ("scatter",)
    template: ClassVar[str] = "choose_by: pearson # or spearman, mse; single texts have no sentence2\n"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.take_columns(self.columns)
        self.range = 0.0  # of the training scores
        if "label" in self.columns and self.target not in self.columns:  # it would be read as a text, which leaks it
            raise TaskError(f"columns must name the number '{self.target}', not 'label'")
        if not self.roles:
            raise TaskError(f"columns must name one of texts beside '{self.target}', or two of pairs")

    def take_columns(self, columns: dict[str, str]) -> None:
        super().take_columns(columns)
        self.roles = tuple(role for role in columns if role != self.target)

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        pair, text = table.pair(), table.text()
        texts = {"sentence1": pair[0], "sentence2": pair[1]} if pair else {"text": text} if text else {}
        number = table.number(*texts.values())
        return {**texts, "score": number} if texts and number is not None else None

    def strata(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        """Tenths of the scores."""
        order = ranks([example.label for example in examples])
        return [int(10 * (rank - 1) / len(order)) for rank in order]

    # ------------------------------------------------------------------ labels

    @property
    def outputs(self) -> list[str]:
        return ["score"]

    def label(self, row: Row) -> float:
        value = self.plain(row, self.target)
        try:
            number = math.nan if "_" in value else float(value)  # which Python allows between digits
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            problem = f"has the score '{shortened(value)}', which is not a finite number"
            raise RowError(row[0], problem, kind="no finite number as score")
        return number

    def check_labels(self, train: Sequence[Example]) -> None:
        self.range = max(example.label for example in train) - min(example.label for example in train)
        if not self.range:
            raise UserError(f"All training rows have the score {train[0].label:g}; there is nothing to learn.")

    def describe_labels(self, train: Sequence[Example]) -> str:
        scores = [example.label for example in train]
        return f"scores from {min(scores):g} to {max(scores):g}, mean {np.mean(scores):.3f}"

    def made_up(self, number: int) -> dict[str, Any]:
        texts = {self.columns[role]: f"text {number} of {role}" for role in self.roles}
        return {**texts, self.columns.get(self.target, self.target): number % 6 / 2}

    # ------------------------------------------------------------------ scores

    @property
    def metric(self) -> str:
        return self.choose_by

    @property
    def mode(self) -> Literal["max", "min"]:
        return "min" if self.choose_by == "mse" else "max"

    @property
    def bound(self) -> float:
        return math.inf if self.choose_by == "mse" else 1.0

    def scores(self, gold: Sequence[float], predicted: Sequence[float]) -> Scores:
        """Both correlations, the standard error of Pearson's, and the mean squared error."""
        pearson = correlation(gold, predicted)
        return Scores(
            {
                "pearson": pearson,
                "standard_error": correlation_error(pearson, len(gold)),
                "spearman": correlation(ranks(gold), ranks(predicted)),
                "mse": float(np.mean(np.square(np.subtract(gold, predicted)))),
            }
        )

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """Word overlap of pairs, a bag of words of single texts; and the error of the training part's mean."""
        known, gold = [example.label for example in train], [example.label for example in test]
        errors = self.scores(gold, [float(np.mean(known))] * len(gold)).figures
        if self.choose_by == "mse" or not isinstance(train[0].text, tuple):
            guesses = {"bag_of_words": ridge([joined(e.text) for e in train], known, [joined(e.text) for e in test])}
        else:
            guesses = {"word_overlap": [overlap(*example.text) for example in test]}
        found = self.metric_of(gold, guesses)
        return {**found, "mean" if self.choose_by == "mse" else "mean/mse": errors["mse"]}  # it correlates with nothing

    def is_degenerate(self, predicted: Sequence[float]) -> bool:
        return is_flat(predicted) or max(predicted) - min(predicted) < NARROW * self.range

    # ------------------------------------------------------------------ report

    def headline(self, figures: dict[str, float]) -> str:
        return (
            f"test Pearson {figures['pearson']:.4f} ± {figures['standard_error']:.4f} (standard error), "
            f"Spearman {figures['spearman']:.4f}, mean squared error {shown(figures['mse'], 4)}"
        )

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"text": example.text, "gold": example.label, "score": prediction.label}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """The lines with the largest errors."""
        order = sorted(rows, key=lambda row: -abs(row["score"] - row["gold"]))
        return ["text", "gold", "score"], [[str(row["text"]), row["gold"], row["score"]] for row in order]

    def plots(self, examples: Sequence[Example], predicted: Sequence[float]) -> dict[str, Figure]:
        axes, gold = plots.axes(5, 5), [example.label for example in examples]
        axes.scatter(gold, predicted, s=8, alpha=0.4)
        axes.axline((min(gold), min(gold)), slope=1, color="grey", linewidth=0.8)
        axes.set_xlabel("true score")
        axes.set_ylabel("predicted score")
        return {"scatter": axes.figure}


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's; 0 where one side is constant, and it is not defined."""
    x, y = (np.asarray(side, dtype=np.float64) - np.mean(side) for side in (a, b))
    size = math.sqrt(float(x @ x) * float(y @ y))
    defined = size > 0 and not is_flat(a) and not is_flat(b)
    return float(np.clip(float(x @ y) / size, -1, 1)) if defined else 0.0  # rounding exceeds 1


def is_flat(values: Sequence[float]) -> bool:
    """Whether the numbers are the same, but for rounding."""
    return bool(np.ptp(values) <= FLAT * np.abs(values).max())


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    from scipy.stats import rankdata

    return rankdata(values).tolist()


def correlation_error(pearson: float, count: int) -> float:
    """That of atanh(r) is 1 / sqrt(n - 3) (Fisher 1921), so that of r about (1 - r^2) / sqrt(n - 3)."""
    return (1 - pearson**2) / math.sqrt(max(1, count - 3))


def overlap(first: str, second: str) -> float:
    """The share of the words of two texts that both have (Dice 1945), whatever their case."""
    a, b = (set(text.lower().split()) for text in (first, second))
    return 2 * len(a & b) / max(1, len(a) + len(b))


def ridge(texts: Sequence[str], scores: Sequence[float], new: Sequence[str]) -> list[float]:
    """Scores by ridge regression on TF-IDF of words and word pairs; where there are no words, the mean."""
    from sklearn.linear_model import Ridge

    if not any(text.split() for text in texts):
        return [float(np.mean(scores))] * len(new)
    vectorizer = tfidf()
    return Ridge().fit(vectorizer.fit_transform(texts), scores).predict(vectorizer.transform(new)).tolist()
