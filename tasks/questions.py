"""Questions whose answer is a part of a text (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tasks import metrics, plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.dataset import Row, is_missing, shortened
from tasks.errors import RowError, UserError
from tasks.guess import NEARLY_ALL, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORST = 100  # rows of the table of wrong answers
TEXTS = ("context", "passage", "paragraph", "document", "text")
ASKING = ("what", "who", "when", "where", "which", "why", "how")


class Answer(NamedTuple):
    """A part of a text.

    Attributes:
        begin, end: its first character, and the one behind its last.
        texts: the answer, and what else is right.
    """

    begin: int
    end: int
    texts: list[str]


@dataclass
class Questions(Task):
    """A question, a text, and its answers, each with its first character in the text.

    Answers are `{text: [...], answer_start: [...]}`, a list of `{text: ..., answer_start: ...}`, or a text alone, of
    which the first place counts. A model learns the first answer; in a test the most similar one counts. Questions
    without an answer are left out.
    """

    columns: dict[str, str] = field(
        default_factory=lambda: {"question": "question", "context": "context", "answers": "answers"}
    )

    kind: ClassVar[str | None] = "questions"
    head: ClassVar[str | None] = "span"
    answers: ClassVar[str] = "answers"
    pictures: ClassVar[tuple[str, ...]] = ("questions",)
    roles: ClassVar[tuple[str, ...]] = ("question", "context")
    ignores: ClassVar[str] = "without an answer"

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        question = _first(table, ("question", "query"))
        text, found = _first(table, TEXTS), _first(table, ("answers", "answer"))
        if question is None or text is None or found is None:
            return None
        rows = [(row.get(text), row.get(found)) for row in table.rows[:1000]]
        there = [all(part in str(text) for part, _ in places(value)) for text, value in rows]
        fits = sum(there) >= NEARLY_ALL * len(there)
        return {"question": question, "context": text, "answers": found} if fits else None

    def group(self, example: Example) -> Hashable:
        return example.text[1]  # its questions have the same answers

    # ------------------------------------------------------------------ labels

    @property
    def outputs(self) -> list[str]:
        return ["begin", "end"]

    def is_ignored(self, row: Row) -> bool:
        return not any(places(row[1][self.named_column(row, "answers")]))

    def names(self, row: Row) -> list[str]:
        return self.label(row).texts

    def label(self, row: Row) -> Answer:
        [(first, begin), *others] = places(self.column(row, "answers"))
        whole = str(self.column(row, "context"))
        begin = whole.find(first) if begin is None else begin
        if not isinstance(begin, int) or begin < 0 or whole[begin : begin + len(first)] != first:
            at = "" if begin == -1 else f" at character {begin}"
            problem = f"has the answer '{shortened(first)}', which is not in the text{at}"
            raise RowError(row[0], problem, kind="an answer that is not in the text")
        stripped = len(whole) - len(whole.lstrip())  # as `plain` reads it
        answer = trimmed(whole, begin, begin + len(first))
        texts = list(dict.fromkeys([*answer.texts, *(text.strip() for text, _ in others)]))
        return Answer(answer.begin - stripped, answer.end - stripped, texts)

    def check_labels(self, train: Sequence[Example]) -> None:
        if len({example.label.texts[0] for example in train}) == 1:
            only = shortened(train[0].label.texts[0])
            raise UserError(f"All training rows have the answer '{only}'; there is nothing to learn.")

    def describe_labels(self, train: Sequence[Example]) -> str:
        return f"answers of {np.mean([len(example.label.texts[0].split()) for example in train]):.1f} words on average"

    def made_up(self, number: int) -> dict[str, Any]:
        word = ("red", "blue", "green")[number % 3]
        parts = {
            "question": f"which color has house {number}?",
            "context": f"house {number} is {word}",
            "answers": {"text": [word], "answer_start": [len(f"house {number} is ")]},
        }
        return {self.columns.get(role, role): value for role, value in parts.items()}

    # ------------------------------------------------------------------ scores

    @property
    def metric(self) -> str:
        return "answer_f1"

    def scores(self, gold: Sequence[Answer], predicted: Sequence[Answer]) -> Scores:
        """F1 of the words of an answer and the share of those that are right word by word, of the best right answer.

        Case, punctuation and articles do not count, as in the evaluation of SQuAD 1.1.
        """
        f1, exact = np.array([score(a.texts, b.texts[0]) for a, b in zip(gold, predicted, strict=True)]).T
        error = float(f1.std(ddof=1)) / len(f1) ** 0.5 if len(f1) > 1 else 0.0
        return Scores({"answer_f1": float(f1.mean()), "standard_error": error, "exact_match": float(exact.mean())})

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The sentence that has the most words of the question."""
        guesses = [Answer(0, 0, [likest_sentence(*example.text)]) for example in test]
        return {"likest_sentence": self.scores([example.label for example in test], guesses).figures[self.metric]}

    # ------------------------------------------------------------------ report

    def headline(self, figures: dict[str, float]) -> str:
        return metrics.headline(self.metric, figures)

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"text": example.text, "gold": example.label.texts, **answer(prediction)}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        """Answers without a right word, the likeliest first."""
        wrong = [row for row in rows if not score(row["gold"], row["answer"])[0]]
        wrong.sort(key=lambda row: -row["probability"])
        cells = [[str(row["text"]), " / ".join(row["gold"]), row["answer"], row["probability"]] for row in wrong]
        return ["text", "gold", "answer", "probability"], cells[:WORST]

    def plots(self, examples: Sequence[Example], predicted: Sequence[Answer]) -> dict[str, Figure]:
        found: dict[str, list[float]] = defaultdict(list)
        for example, guess in zip(examples, predicted, strict=True):
            found[asking(example.text[0])].append(score(example.label.texts, guess.texts[0])[0])
        scores = {word: (float(np.mean(values)), len(values)) for word, values in found.items()}
        figure = plots.f1_bars(scores, y_label="question word (questions)")
        return {"questions": figure} if figure is not None else {}


def places(value: Any) -> list[tuple[str, Any]]:
    """Answers as a file has them -> their texts, and their first characters where these are given."""
    if isinstance(value, dict):
        texts, begins = value.get("text"), value.get("answer_start")
        if isinstance(texts, str):
            return [(texts, begins)]
        listed = list(texts) if texts is not None else []
        return list(zip(listed, begins if begins is not None else [None] * len(listed), strict=False))
    if isinstance(value, (list, tuple)):
        return [place for part in value for place in places(part)]
    return [] if is_missing(value) or not str(value).strip() else [(str(value), None)]


def trimmed(text: str, begin: int, end: int) -> Answer:
    """A part of a text, without the spaces around it."""
    found = text[begin:end]
    begin += len(found) - len(found.lstrip())
    return Answer(begin, begin + len(found.strip()), [found.strip()])


def answer(prediction: Prediction) -> dict[str, Any]:
    """A predicted answer as `predict` and `predictions.jsonl` write it."""
    begin, end, texts = prediction.label
    return {"answer": texts[0], "begin": begin, "end": end, "probability": prediction.probabilities[0]}


def score(right: Sequence[str], said: str) -> tuple[float, float]:
    """F1 of words and exact match, from 0 to 1, of the best right answer, as the evaluation of SQuAD 1.1 has them."""
    from torchmetrics.functional.text import squad

    answers = {"text": [*right], "answer_start": [0] * len(right)}
    found = squad([{"prediction_text": said, "id": ""}], [{"answers": answers, "id": ""}])  # type: ignore[dict-item]
    return float(found["f1"]) / 100, float(found["exact_match"]) / 100


def asking(question: str) -> str:
    """The first question word of a question."""
    words = re.findall(r"\w+", question.lower())
    return next((word for word in words if word in ASKING), "other")


def likest_sentence(question: str, text: str) -> str:
    """The sentence of a text that has the most words of a question; of several, the shortest."""

    def words(part: str) -> set[str]:
        return set(re.findall(r"\w+", part.lower()))

    asked = words(question)
    return max(re.split(r"(?<=[.!?])\s+", text), key=lambda part: (len(asked & words(part)), -len(part)))


def _first(table: Table, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in table.names), None)
