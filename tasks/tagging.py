"""Sequence labeling: a list of words, one tag for each; spans of words (names, chunks) as BIO tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tasks import metrics, plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.baselines import known_spans
from tasks.bio import bio_tags, spans, to_bio
from tasks.dataset import Row, as_list, is_plain_list, shortened
from tasks.errors import RowError, TaskError
from tasks.guess import Table
from tasks.labels import NamedLabels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = ("B-", "I-", "E-", "S-")


@dataclass
class Tagging(NamedLabels, Task):
    """Lists in the columns `words` and `tags`, or what spaces separate; files in CoNLL columns have numbers instead.

    A label is a list of indices, one for each word.

    Args:
        conll: role -> number of the column, from 0, in files of CoNLL columns.
        spans: whether tags mark spans. They are read as BIO, IOB1 or IOBES and are BIO from then on.
    """

    columns: dict[str, str] = field(default_factory=lambda: {"words": "words", "tags": "tags"})
    conll: dict[str, int] = field(default_factory=lambda: {"words": 0, "tags": 1})
    spans: bool = True

    kind: ClassVar[str | None] = "tagging"
    head: ClassVar[str | None] = "token"
    answers: ClassVar[str] = "tags"
    pictures: ClassVar[tuple[str, ...]] = ("types", "confusion")
    roles: tuple[str, ...] = ("words",)
    formats: ClassVar[str] = ".tsv or .csv with a header, .jsonl, .parquet, CoNLL columns"
    template: ClassVar[str] = """\
conll: {words: 0, tags: 1} # in files of CoNLL columns: their numbers, from 0
spans: true # tags of spans (B-, I-, O), scored by F1 of spans; false: plain tags, scored by accuracy
# labels: {"0": O, "1": B-x, "2": I-x} # value in the files: name of the label; else whatever the training part has
"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ignore:
            raise TaskError("a tagging task has no labels of rows to ignore")
        if not {"words", "tags"} <= set(self.conll):
            raise TaskError("conll has the numbers of two columns, words and tags")
        if self.spans:
            self.label_names = bio_tags(self.label_names)

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        found = table.words_and_tags()
        return None if found is None else dict(zip(("words", "tags"), found, strict=True))

    @classmethod
    def guess_fields(cls, table: Table) -> dict[str, Any] | None:
        """Of CoNLL columns the numbers of two: of ten those of CoNLL-U, else the first and the last."""
        if 0 in table.names:
            if (count := len(table.names)) < 2:
                return None
            words, last = (1, 3) if count == 10 else (0, count - 1)
            if not is_bio(_values(table, last)) and is_bio(_values(table, 0)):
                words, last = count - 1, 0
            fields: dict[str, Any] = {"conll": {"words": words, "tags": last}}
            tags = _values(table, last)
        elif (found := super().guess_fields(table)) is not None:
            fields, column = found, found["columns"]["tags"]
            values = [row[column] for row in table.rows if row.get(column) is not None]
            tags = {str(tag) for value in values for tag in (value.split() if isinstance(value, str) else value)}
        else:
            return None
        return {**fields, "spans": is_bio(tags)}

    # ------------------------------------------------------------------ labels

    @property
    def head_options(self) -> dict[str, Any]:
        return {"spans": self.spans}

    def learn_labels(self, rows: Sequence[Row]) -> None:
        super().learn_labels(rows)
        if self.spans:
            self.label_names = bio_tags(self.label_names)

    def column(self, row: Row, role: str) -> list[str]:
        place, columns = row
        if 0 in columns:  # CoNLL columns
            if (number := self.conll[role]) not in columns:
                problem = f"has only {len(columns)} columns; the {role} should be in column {number}"
                raise RowError(place, problem, kind="too few columns")
            return columns[number]
        value = as_list(super().column(row, role))
        if isinstance(value, str):
            return value.split()
        if not is_plain_list(value):
            raise RowError(
                place, f"has {str(value)[:40]} as its {role}, which is not a list of them", kind=f"no {role}"
            )
        return [str(part) for part in value]

    def names(self, row: Row) -> list[str]:
        tags = self.named(row, self.column(row, "tags"))
        if self.spans and (wrong := [tag for tag in tags if tag != "O" and tag[:2] not in MARKS]):
            hint = "which is not a BIO or IOBES tag; set spans: false for plain tags"
            raise RowError(row[0], f"has the tag '{shortened(wrong[0])}', {hint}", kind="a tag of another scheme")
        return to_bio(tags) if self.spans else tags

    def label(self, row: Row) -> list[int]:
        return self.indices(row)

    def example(self, row: Row) -> Example:
        words, tags = self.column(row, "words"), self.label(row)
        if not all(word.strip() for word in words):
            raise RowError(row[0], "has an empty word", kind="an empty word")
        if len(words) != len(tags):
            problem = f"has {len(words)} words but {len(tags)} tags"
            raise RowError(row[0], problem, kind="more or fewer tags than words")
        return Example(text=words, label=tags)

    def made_up(self, number: int) -> dict[str, Any]:
        values = list(self.labels or {}) or ["O", "B-x", "I-x"]
        tag = values[number % len(values)]
        return {self.columns["words"]: ["some", "few", "words"], self.columns["tags"]: [tag, values[0], tag]}

    # ------------------------------------------------------------------ scores

    @property
    def metric(self) -> str:
        return "span_f1" if self.spans else "token_accuracy"

    def scores(self, gold: Sequence[list[int]], predicted: Sequence[list[int]]) -> Scores:
        """F1 of spans, in all and by type, with token accuracy; of plain tags as of classes, word by word."""
        sides = [label for labels in gold for label in labels], [label for labels in predicted for label in labels]
        figures = metrics.class_scores(*sides, len(self.label_names), name="token_accuracy")
        if not self.spans:
            right = [sum(map(int.__eq__, *pair)) for pair in zip(gold, predicted, strict=True)]
            return Scores({**figures, "standard_error": metrics.clustered_error(right, [*map(len, gold)])})
        total, by_type = metrics.span_figures(self._tags(gold), self._tags(predicted))
        over_all = {f"span_{name}": value for name, value in total.items()}
        details: dict[str, float | str] = {
            f"{kind}/{name}": value for kind, scores in by_type.items() for name, value in scores.items()
        }
        return Scores({**over_all, "token_accuracy": figures["token_accuracy"]}, details)

    def _tags(self, labels: Sequence[list[int]]) -> list[list[str]]:
        return [[self.label_names[index] for index in indices] for indices in labels]

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The list of the training spans; of plain tags the most frequent one, of all and of each word."""
        guesses = self._span_guesses(train, test) if self.spans else _tag_guesses(train, test)
        gold = [example.label for example in test]
        return self.metric_of(gold, guesses)

    def _span_guesses(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, list[list[int]]]:
        known: dict[tuple[str, ...], Counter[str]] = {}
        for example in train:
            for kind, first, last in spans([self.label_names[label] for label in example.label]):
                known.setdefault(tuple(example.text[first : last + 1]), Counter())[kind] += 1
        index = {name: number for number, name in enumerate(self.label_names)}
        return {"training_spans": [[index[tag] for tag in known_spans(list(e.text), known)] for e in test]}

    def is_degenerate(self, predicted: Sequence[list[int]]) -> bool:
        return len({label for labels in predicted for label in labels}) < 2

    # ------------------------------------------------------------------ report

    def headline(self, figures: dict[str, float]) -> str:
        """Spans are counted as conlleval counts them, tokens apart."""
        if not self.spans:
            return super().headline(figures)
        return (
            f"test span F1 {figures['span_f1']:.4f} (conlleval; precision {figures['span_precision']:.4f}, recall "
            f"{figures['span_recall']:.4f}, {figures['span_support']:,} spans), "
            f"token accuracy {figures['token_accuracy']:.4f}"
        )

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        [gold, tags] = self._tags([example.label, prediction.label])
        probabilities = [round(p, 6) for p in prediction.probabilities]
        return {"words": example.text, "gold": gold, "tags": tags, "probabilities": probabilities}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """The sentences with the most wrong tags."""
        wrong = [(sum(a != b for a, b in zip(row["gold"], row["tags"], strict=True)), row) for row in rows]
        wrong.sort(key=lambda pair: -pair[0])
        columns = ("words", "gold", "tags")
        cells = [[" ".join(row[name]) for name in columns] for count, row in wrong if count]
        return list(columns), cells

    def plots(self, examples: Sequence[Example], predicted: Sequence[list[int]]) -> dict[str, Figure]:
        gold = [example.label for example in examples]
        if self.spans:
            _, by_type = metrics.span_figures(self._tags(gold), self._tags(predicted))
            return plots.types(by_type)
        sides = [label for labels in gold for label in labels], [label for labels in predicted for label in labels]
        return plots.confusion(*sides, self.label_names, unit="words")


def _tag_guesses(train: Sequence[Example], test: Sequence[Example]) -> dict[str, list[list[int]]]:
    by_word: dict[str, Counter[int]] = {}
    for example in train:
        for word, tag in zip(example.text, example.label, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    [(frequent, _)] = sum(by_word.values(), Counter()).most_common(1)
    tags = {word: counts.most_common(1)[0][0] for word, counts in by_word.items()}
    return {
        "majority": [[frequent] * len(example.text) for example in test],
        "most_frequent_tag": [[tags.get(word, frequent) for word in example.text] for example in test],
    }


def is_bio(tags: set[str]) -> bool:
    """Whether tags are those of spans."""
    return all(tag == "O" or tag[:2] in MARKS for tag in tags) and tags != {"O"}


def _values(table: Table, column: int) -> set[str]:
    """All values of a column of CoNLL files."""
    return {value for row in table.rows for value in row[column]}
