"""Several labels for a text or a pair of texts, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tasks import plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.baselines import joined, labels_of_bags
from tasks.dataset import Row, as_list, is_missing, is_plain_list
from tasks.errors import RowError, TaskError
from tasks.guess import Table
from tasks.labels import NamedLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class MultiLabel(NamedLabels, Task):
    """A set of labels in the column `label`: a list, or names with a separator between them; it may be empty.

    A label is a sorted list of indices.

    Args:
        separator: between the names.
        threshold: a label is given where its probability is above it, from 0 to 1.
    """

    columns: dict[str, str] = field(default_factory=lambda: {"text": "text", "label": "label"})
    separator: str = ","
    threshold: float = 0.5

    kind: ClassVar[str | None] = "multilabel"
    head: ClassVar[str | None] = "multilabel"
    roles: tuple[str, ...] = ("text",)
    pictures: ClassVar[tuple[str, ...]] = ("labels",)
    template: ClassVar[str] = """\
separator: "," # between the labels of a text; lists need none
threshold: 0.5 # a label is given where its probability is above it
"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.separator.strip():
            raise TaskError("separator is empty; it stands between the labels of a text, as a comma")
        if not 0 < self.threshold < 1:
            raise TaskError(f"threshold is {self.threshold}; it is a probability, above 0 and below 1")

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        text = table.text()
        several = [column.name for column in table.labels(text or "") if column.is_label_set]
        return {"text": text, "label": several[0]} if text is not None and len(several) == 1 else None

    @property
    def head_options(self) -> dict[str, Any]:
        return {"extra": {"threshold": self.threshold}}

    def strata(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        return [tuple(example.label[:1]) for example in examples]  # of all labels most sets would be alone

    # ------------------------------------------------------------------ labels

    def names(self, row: Row) -> list[str]:
        value = as_list(row[1][self.named_column(row, "label")])
        if isinstance(value, list) and not is_plain_list(value):
            raise RowError(row[0], f"has {str(value)[:40]} as its labels, which are no names", kind="labels of no name")
        parts = value if isinstance(value, list) else [] if is_missing(value) else str(value).split(self.separator)
        return self.named(row, [part for part in parts if str(part).strip()])

    def label(self, row: Row) -> list[int]:
        return sorted(set(self.indices(row)))

    def made_up(self, number: int) -> dict[str, Any]:
        names = list(self.labels or {}) or ["one", "three", "two"]
        both = [names[index % len(names)] for index in (number, number + 1)]
        texts = {self.columns.get(role, role): f"text {number} of {role}" for role in self.roles}
        return {**texts, self.columns.get("label", "label"): self.separator.join(sorted(both, key=names.index))}

    def indicators(self, labels: Sequence[Sequence[int]]) -> np.ndarray:
        """(N, C): whether text n has label c."""
        found = np.zeros((len(labels), len(self.label_names)), dtype=np.int64)
        for row, indices in zip(found, labels, strict=True):
            row[list(indices)] = 1
        return found

    # ------------------------------------------------------------------ scores

    @property
    def metric(self) -> str:
        return "micro_f1"

    def scores(self, gold: Sequence[list[int]], predicted: Sequence[list[int]]) -> Scores:
        """F1 of all labels of all texts, its mean over labels, and the share of texts with just the right labels.

        The mean is over labels that a text has or was given.
        """
        from sklearn.metrics import precision_recall_fscore_support

        truth, given = self.indicators(gold), self.indicators(predicted)
        *_, micro, _ = precision_recall_fscore_support(truth, given, average="micro", zero_division=0)
        parts = precision_recall_fscore_support(truth, given, average=None, zero_division=0)
        seen = (truth | given).any(0)
        figures = {
            "micro_f1": float(micro),
            "macro_f1": float(parts[2][seen].mean()) if seen.any() else 0.0,
            "exact_match": float((truth == given).all(1).mean()),
        }
        names = ("precision", "recall", "f1", "support")
        details: dict[str, Any] = {
            f"{label}/{name}": values[index].item()
            for index, label in enumerate(self.label_names)
            for name, values in zip(names, parts, strict=True)
        }
        return Scores(figures, details)

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The most frequent labels for all texts, and a bag of words for each label."""
        known, gold = [example.label for example in train], [example.label for example in test]
        texts = [[joined(example.text) for example in part] for part in (train, test)]
        guesses = {
            "majority": [self.constant(known)] * len(test),
            "bag_of_words": labels_of_bags(texts[0], self.indicators(known), texts[1], threshold=self.threshold),
        }
        return self.metric_of(gold, guesses)

    def constant(self, known: Sequence[list[int]]) -> list[int]:
        """The best answer for all texts: as many of the most frequent labels as have the highest F1 on these.

        With n labels for each of N texts it is 2 x hits / (n N + labels).
        """
        counts = Counter(index for label in known for index in label).most_common()
        if not counts:
            return []
        hits = np.cumsum([count for _, count in counts])
        f1 = 2 * hits / (np.arange(1, len(counts) + 1) * len(known) + hits[-1])
        return sorted(index for index, _ in counts[: int(f1.argmax()) + 1])

    # ------------------------------------------------------------------ report

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        gold = [self.label_names[index] for index in example.label]
        return {"text": example.text, "gold": gold, **answer(prediction, self.label_names)}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """The texts with the most wrong and missing labels."""
        wrong = [(len(set(row["gold"]) ^ set(row["labels"])), row) for row in rows]
        wrong.sort(key=lambda pair: -pair[0])
        cells = [[str(row["text"]), ", ".join(row["gold"]), ", ".join(row["labels"])] for count, row in wrong if count]
        return ["text", "gold", "labels"], cells

    def plots(self, examples: Sequence[Example], predicted: Sequence[list[int]]) -> dict[str, Figure]:
        from sklearn.metrics import f1_score

        gold, given = self.indicators([example.label for example in examples]), self.indicators(predicted)
        f1 = f1_score(gold, given, average=None, zero_division=0).tolist()
        scores = dict(zip(self.label_names, zip(f1, gold.sum(0).tolist(), strict=True), strict=True))
        return plots.f1_bars("labels", scores, y_label="label (texts that have it)")


def answer(prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
    """Predicted labels as `predict` and `predictions.jsonl` write them."""
    probabilities = dict(zip(names, prediction.probabilities, strict=True))
    return {"labels": [names[index] for index in prediction.label], "probabilities": probabilities}
