"""Classification: one label for a text or a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tasks import metrics, plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.baselines import bag_of_words, joined
from tasks.dataset import Row
from tasks.guess import MOST_CLASSES, Table
from tasks.labels import NamedLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class Classification(NamedLabels, Task):
    """One of several classes; a label is the index of its name, in the column `label`."""

    head: ClassVar[str | None] = "sentence"
    pictures: ClassVar[tuple[str, ...]] = ("confusion",)
    template: ClassVar[str] = """\
# labels: {"0": negative, "1": positive} # value in the files: name of the label; else whatever the training part has
"""

    @classmethod
    def guess_fields(cls, table: Table) -> dict[str, Any] | None:
        fields = super().guess_fields(table)
        if fields is not None:
            values = table.values(fields["columns"]["label"])
            fields |= {"labels": {value: value for value in values}} if len(values) <= MOST_CLASSES else {}
        return fields

    def strata(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        return [example.label for example in examples]

    def label(self, row: Row) -> int:
        return self.indices(row)[0]

    def indices_of(self, label: int) -> list[int]:
        return [label]

    def made_up(self, number: int) -> dict[str, Any]:
        values = list(self.labels or {}) or ["one", "two", "three"]
        texts = {self.columns.get(role, role): f"text {number} of {role}" for role in self.roles}
        return {**texts, self.columns.get("label", "label"): values[number % len(values)]}

    @property
    def metric(self) -> str:
        return "accuracy"

    def scores(self, gold: Sequence[int], predicted: Sequence[int]) -> Scores:
        """Accuracy with its standard error, macro F1 and Matthews' correlation."""
        return Scores(metrics.class_scores(gold, predicted, len(self.label_names)))

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The most frequent class, a bag of words, and for pairs one of the second texts alone."""
        classes, gold = [example.label for example in train], [example.label for example in test]
        texts = {"bag_of_words": [[joined(example.text) for example in part] for part in (train, test)]}
        if isinstance(train[0].text, tuple):
            texts["hypothesis_only"] = [[example.text[1] for example in part] for part in (train, test)]
        [(frequent, _)] = Counter(classes).most_common(1)
        guesses: dict[str, list[int] | None] = {"majority": [frequent] * len(test)}
        guesses |= {name: bag_of_words(known, classes, new) for name, (known, new) in texts.items()}
        return self.metric_of(gold, guesses)

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"text": example.text, "gold": self.label_names[example.label], **answer(prediction, self.label_names)}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """The wrong answers with the largest probability."""
        wrong = sorted((row for row in rows if row["gold"] != row["label"]), key=lambda row: -row["probability"])
        cells = [[str(row["text"]), row["gold"], row["label"], row["probability"]] for row in wrong]
        return ["text", "gold", "label", "probability"], cells

    def plots(self, examples: Sequence[Example], predicted: Sequence[int]) -> dict[str, Figure]:
        return plots.confusion([example.label for example in examples], predicted, self.label_names)


def answer(prediction: Prediction, names: Sequence[str]) -> dict[str, Any]:
    """A predicted class as `predict` and `predictions.jsonl` write it."""
    probabilities = dict(zip(names, prediction.probabilities, strict=True))
    label = names[prediction.label]
    return {"label": label, "probability": probabilities[label], "probabilities": probabilities}
