"""A kind of task: what its labels are, how they are read, scored, guessed without a model, and reported.

A kind is one file here, a subclass of `Task`, in plain Python; a data set of that kind is a YAML file with its fields.
The network that learns it is the head that the kind names: one file in `pipeline/finetuning/heads`.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tasks import metrics
from tasks.dataset import DataSet, Row, listed
from tasks.discovery import modules_of
from tasks.errors import RowError, TaskError, UserError
from tasks.guess import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Text = str | tuple[str, str] | list[str]


def key_of(text: str) -> str:
    """A text in the composed form of Unicode, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


@dataclass
class Example:
    """A labeled text, pair of texts or list of words.

    `label` is what the kind of task makes of it, and only the kind and its head look inside:

    - one class: an int, the index of its name; tags: a list of them, one for each word; a score: a float.
    - a set of labels: a list of indices, see `tasks.multilabel`.
    - an answer in the text: its characters there, see `tasks.questions`.
    - a target text: a str, which the head tokenizes in `collate` and generates in `decode`.
    """

    text: Text
    label: Any

    @property
    def content(self) -> str | tuple[str, ...]:
        """The text, to compare with others: spaces between words and ways to write an accent make no other text."""
        return key_of(self.text) if isinstance(self.text, str) else tuple(map(key_of, self.text))


@dataclass
class Prediction:
    """A model's label of a text, of the same type as the examples', and its probabilities.

    Attributes:
        probabilities: of one class those of all classes, of tags that of each word's tag; none of a score.
    """

    label: Any
    probabilities: list[float] = field(default_factory=list)


@dataclass
class Scores:
    """Metrics of a part of the data, by name.

    Attributes:
        figures: logged at each validation.
        details: of the test alone, as `PER/f1`.
    """

    figures: dict[str, float]
    details: dict[str, float | str] = field(default_factory=dict)


@dataclass
class Task(DataSet, ABC):
    """A data set of one kind. The class variables and methods below are what a kind has to say.

    Attributes:
        kind: its name, as in `make new-task KIND=`; None of a class that others build on.
        template: lines of a new data set's YAML file that this kind alone has.
        answers: what a model that has learned it gives, in the plural.
        pictures: the names of its plots.
        formats: kinds of files that a new data set's YAML file speaks of.
    """

    kind: ClassVar[str | None] = None
    answers: ClassVar[str] = "labels"
    pictures: ClassVar[tuple[str, ...]] = ()
    template: ClassVar[str] = ""
    formats: ClassVar[str] = ".tsv or .csv with a header, .jsonl, .parquet"

    @classmethod
    def default_columns(cls) -> dict[str, str]:
        """The columns of a data set whose YAML file names none."""
        [columns] = [field for field in fields(cls) if field.name == "columns"]
        return columns.default_factory() if columns.default_factory is not MISSING else {}

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        """Its columns in a table whose YAML file names none; None where it is not clear which they are.

        By default those of `default_columns`, where the table has them.
        """
        columns = cls.default_columns()
        return columns if columns and set(columns.values()) <= {*table.names} else None

    @classmethod
    def guess_fields(cls, table: Table) -> dict[str, Any] | None:
        """What the YAML file of a new data set says of such a table; None where that is not clear."""
        columns = cls.guess_columns(table)
        return None if columns is None else {"columns": columns}

    def strata(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        """What the parts of a data set shall have in the same shares, as classes; rows are split by it."""
        return [None] * len(examples)

    def group(self, example: Example) -> Hashable:
        """What the examples have in common that stay together where a part is split off: their text."""
        return example.content

    # ------------------------------------------------------------------ labels

    @property
    def outputs(self) -> list[str]:
        """Names of the numbers that the head gives for a text, or for each word."""
        return self.label_names

    @property
    def head_options(self) -> dict[str, Any]:
        """What of the head's options follows from the task; under `extra` what only this kind's head knows."""
        return {}

    def check_label_names(self) -> None:
        """Raises: UserError, there are too few."""

    def take_outputs(self, names: Sequence[str]) -> None:
        """Reads labels as those that a trained model gives, from now on.

        Raises:
            UserError: it gives others.
        """
        if [*names] != self.outputs:
            raise UserError(f"The task has {listed(self.outputs)}, and the model gives {listed(names)}.")

    @abstractmethod
    def label(self, row: Row) -> Any:
        """The label of a row.

        Raises:
            UserError: it is missing, or is none; names the row.
        """

    def example(self, row: Row) -> Example:
        """A row as an example.

        Raises:
            UserError: other than one text or two, which a kind of task joins by overriding `example`.
        """
        label = self.label(row)
        texts = [self.plain(row, role) for role in self.roles]
        if not any(texts):
            raise RowError(row[0], "has an empty text; take the row out, or fill it in", kind="an empty text")
        if len(texts) not in (1, 2):
            raise UserError(f"A task of {len(texts)} texts needs a method `example` that says how they are joined.")
        return Example(text=texts[0] if len(texts) == 1 else (texts[0], texts[1]), label=label)

    def examples(self, rows: Iterable[Row]) -> list[Example]:
        """Rows as examples, without those to be ignored.

        Raises:
            UserError: a column is missing, or a label is unknown; names the row.
        """
        return [self.example(row) for row in rows if not self.is_ignored(row)]

    @abstractmethod
    def check_labels(self, train: Sequence[Example]) -> None:
        """Raises: UserError, all training labels are the same, so that there is nothing to learn."""

    @abstractmethod
    def describe_labels(self, train: Sequence[Example]) -> str:
        """The labels in a few words, as `labels negative, positive`."""

    @abstractmethod
    def made_up(self, number: int) -> dict[str, Any]:
        """A row as a file could have it, the `number`-th of several with different labels, to try a data set with."""

    # ------------------------------------------------------------------ scores

    @property
    @abstractmethod
    def metric(self) -> str:
        """The figure that chooses the checkpoint and heads the report."""

    @property
    def mode(self) -> Literal["max", "min"]:
        """Whether more or less of the metric is better."""
        return "max"

    @property
    def bound(self) -> float:
        """The largest size that the metric can have."""
        return 1.0

    @abstractmethod
    def scores(self, gold: Sequence[Any], predicted: Sequence[Any]) -> Scores:
        """Metrics of predicted labels, text by text."""

    @abstractmethod
    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The metric of simple models, learned from `train` and scored on `test`.

        A name with a slash, as `mean/mse`, is of another metric, and is not compared with the task's.
        """

    def metric_of(self, gold: Sequence[Any], guesses: Mapping[str, Sequence[Any] | None]) -> dict[str, float]:
        """The metric of predicted labels, by name: what `baselines` returns; without those that could not be made."""
        made = {name: predicted for name, predicted in guesses.items() if predicted is not None}
        return {name: self.scores(gold, predicted).figures[self.metric] for name, predicted in made.items()}

    def is_degenerate(self, predicted: Sequence[Any]) -> bool:
        """Whether all texts have the same answer."""
        return all(label == predicted[0] for label in predicted)

    def has_one_answer(self, gold: Sequence[Any], predicted: Sequence[Any]) -> bool:
        """Whether a model gives all texts one answer, though their right answers differ."""
        return len(gold) > 1 and self.is_degenerate(predicted) and not self.is_degenerate(gold)

    # ------------------------------------------------------------------ report

    def headline(self, figures: dict[str, float]) -> str:
        """The scores of a test in one line."""
        return metrics.headline(self.metric, figures)

    @abstractmethod
    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """A line of `predictions.jsonl`."""

    @abstractmethod
    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """Lines of `predictions.jsonl`, the most wrong first: columns and rows of a table, which shows 100."""

    def plots(self, examples: Sequence[Example], predicted: Sequence[Any]) -> dict[str, Figure]:
        """Plots of a test, by the names of their files, from its examples and the predicted labels."""
        return {}


def kinds() -> dict[str, type[Task]]:
    """The kinds of task in this package, by name."""
    modules = modules_of("tasks")
    classes = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    found: dict[str, type[Task]] = {}
    for cls in classes:
        if issubclass(cls, Task) and cls.kind and "kind" in vars(cls) and found.setdefault(cls.kind, cls) is not cls:
            other = found[cls.kind]
            raise TaskError(
                f"{other.__module__} and {cls.__module__} define the same kind '{cls.kind}': give one of them another."
            )
    return found
