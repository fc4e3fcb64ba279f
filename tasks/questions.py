"""Questions whose answer is a part of a text (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250)."""

from __future__ import annotations

import re
import string
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from tasks import plots
from tasks.base import Example, Prediction, Scores, Task
from tasks.dataset import Row, is_missing, shortened
from tasks.errors import RowError, UserError
from tasks.guess import CLASSES, NEARLY_ALL, Column, Table, is_among
from tasks.metrics import clustered_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ASKED = ("question", "query")  # names of columns, the more telling ones first
TEXTS = ("context", "passage", "paragraph", "document", "text")
ANSWERS = ("answers", "answer", "answertext")
MOST_READ = 1_000  # rows that a guess reads
JOINERS = ("\u200c", "\u200d")  # of zero width, within words of Persian and Hindi
ASKING = ("what", "who", "when", "where", "which", "why", "how")


class _Answer(NamedTuple):
    begin: int
    end: int
    texts: list[str]


class Answer(_Answer):
    """A part of a text.

    Attributes:
        begin, end: its first character, and the one behind its last.
        texts: the answer, and what else is right.
        group: the same number for all answers of a text, whose answers are equal with any; None: of a text of its own.
    """

    group: int | None = None


@dataclass
class Questions(Task):
    """A question, a text, and its answers, each with its first character in the text.

    Answers are `{text: [...], answer_start: [...]}`, a list of `{text: ..., answer_start: ...}`, or a text alone, with
    its place in a column `answer_start`; else its first place counts. A model learns the first answer; in a test the
    most similar one counts. Questions without an answer are left out.
    """

    columns: dict[str, str] = field(
        default_factory=lambda: {"question": "question", "context": "context", "answers": "answers"}
    )

    kind: ClassVar[str | None] = "questions"
    head: ClassVar[str | None] = "span"
    answers: ClassVar[str] = "answers"
    pictures: ClassVar[tuple[str, ...]] = ("questions",)
    roles: tuple[str, ...] = ("question", "context")
    ignores: ClassVar[str] = "without an answer"

    @classmethod
    def guess_columns(cls, table: Table) -> dict[str, str] | None:
        """Columns of such names, where the answers are words of the texts, and no column is that of classes.

        Where the names are SQuAD's own there may be such a column, as of answers that are few.
        """
        question, text, found = (_named(table, names) for names in (ASKED, TEXTS, ANSWERS))
        if question is None or text is None or found is None:
            return None
        named = {"question": question.name, "context": text.name, "answers": found.name}
        classes = found.is_class or any(column.is_class and is_among(column.name, CLASSES) for column in table.columns)
        if classes and named != cls.default_columns():
            return None
        rows = [(str(row.get(text.name)), _texts(row.get(found.name))) for row in table.rows[:MOST_READ]]
        there = [all(_find(part, whole) is not None for part in parts) for whole, parts in rows if parts]
        if not there or sum(there) < NEARLY_ALL * len(there):
            return None
        return named

    def group(self, example: Example) -> Hashable:
        return example.text[1]  # its questions have the same answers

    # ------------------------------------------------------------------ labels

    @property
    def outputs(self) -> list[str]:
        return ["begin", "end"]

    def is_ignored(self, row: Row) -> bool:
        return not self.places(row)

    def places(self, row: Row) -> list[tuple[str, Any]]:
        """The texts of the answers of a row, and their first characters where these are given.

        Raises:
            UserError: answers of another form.
        """
        value = row[1][self.named_column(row, "answers")]
        found = _places(value, row[1].get(self.columns.get("answer_start", "answer_start")))
        if found is None:
            what = "answers are text: [...] and answer_start: [...], or a text"
            raise RowError(
                row[0], f"has {shortened(str(value))} as its answers; {what}", kind="answers of another form"
            )
        return found

    def names(self, row: Row) -> list[str]:
        return self.label(row).texts

    def label(self, row: Row) -> Answer:
        whole = str(self.column(row, "context"))
        answers = [self._answer(row[0], whole, *place) for place in self.places(row)]
        stripped = len(whole) - len(whole.lstrip())  # as `plain` reads it
        texts = list(dict.fromkeys(text for answer in answers for text in answer.texts))
        answer = Answer(answers[0].begin - stripped, answers[0].end - stripped, texts)
        answer.group = zlib.crc32(whole.encode(errors="surrogatepass"))
        return answer

    def _answer(self, place: str, whole: str, text: str, begin: Any) -> Answer:
        """Raises: UserError, a text has not the answer, or not where it should be."""
        at = _find(text, whole) if begin is None else _whole_number(begin)
        if at is None or whole[at : at + len(text)] != text:
            where = "" if begin is None else f" at character {begin}"
            case = " in this case" if begin is None and text.lower() in whole.lower() else ""
            problem = f"has the answer '{shortened(text)}', which is not in the text{where}{case}"
            raise RowError(place, problem, kind="an answer that is not in the text")
        return trimmed(whole, at, at + len(text))

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

        Case, punctuation and articles do not count, as in the evaluation of SQuAD 1.1. The standard error is over
        texts: questions of one err together.
        """
        f1, exact = np.array([score(a.texts, b.texts[0]) for a, b in zip(gold, predicted, strict=True)]).T
        groups = [-1 - number if answer.group is None else answer.group for number, answer in enumerate(gold)]
        _, text = np.unique(groups, return_inverse=True)
        one = not text.any()  # of whose errors nothing is known
        error = 0.0 if one else clustered_error(np.bincount(text, f1).tolist(), np.bincount(text).tolist())
        return Scores({"answer_f1": float(f1.mean()), "standard_error": error, "exact_match": float(exact.mean())})

    def baselines(self, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
        """The sentence that has the most words of the question."""
        guesses = [Answer(0, 0, [closest_sentence(*example.text)]) for example in test]
        return {"closest_sentence": self.scores([example.label for example in test], guesses).figures[self.metric]}

    # ------------------------------------------------------------------ report

    def row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        return {"text": example.text, "gold": example.label.texts, **answer(prediction)}

    def worst(self, rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
        cells = [[str(row["text"]), " / ".join(row["gold"]), row["answer"], row["probability"]] for row in wrong(rows)]
        return ["text", "gold", "answer", "probability"], cells

    def plots(self, examples: Sequence[Example], predicted: Sequence[Answer]) -> dict[str, Figure]:
        found: dict[str, list[float]] = defaultdict(list)
        for example, guess in zip(examples, predicted, strict=True):
            found[asking(example.text[0])].append(score(example.label.texts, guess.texts[0])[0])
        scores = {word: (float(np.mean(values)), len(values)) for word, values in found.items()}
        return plots.f1_bars("questions", scores, y_label="question word (questions)")


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
    words, f1, exact = plain_words(said), 0.0, 0.0
    for answer in map(plain_words, right):
        common = (Counter(words) & Counter(answer)).total()
        f1 = max(f1, 2 * common / max(1, len(words) + len(answer)))
        exact = max(exact, float(words == answer))
    return f1, exact


def plain_words(text: str) -> list[str]:
    """Words in small letters, without punctuation marks and articles."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", letters).split()


def wrong(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of `predictions.jsonl` whose answer has no right word, the likeliest first."""
    found = [row for row in rows if not any(score(row["gold"], row["answer"]))]
    return sorted(found, key=lambda row: -row["probability"])


def asking(question: str) -> str:
    """The first question word of a question."""
    words = re.findall(r"\w+", question.lower())
    return next((word for word in words if word in ASKING), "other")


def closest_sentence(question: str, text: str) -> str:
    """The sentence of a text that has the most words of a question; of several, the shortest."""

    def words(part: str) -> set[str]:
        return set(re.findall(r"\w+", part.lower()))

    asked = words(question)
    return max(re.split(r"(?<=[.!?])\s+", text), key=lambda part: (len(asked & words(part)), -len(part)))


def _named(table: Table, names: Sequence[str]) -> Column | None:
    return next((column for name in names for column in table.columns if is_among(column.name, (name,))), None)


def _places(value: Any, begin: Any = None) -> list[tuple[str, Any]] | None:
    """Answers as a file has them -> texts and first characters; None: they have another form."""
    if isinstance(value, dict):
        texts, begins = value.get("text"), value.get("answer_start")
        if "text" not in value:
            return None
        texts = texts if isinstance(texts, (list, tuple)) else [texts]
        begins = begins if isinstance(begins, (list, tuple)) else [begins] * len(texts)
        if len(texts) != len(begins):
            return None
        return [(str(text), at) for text, at in zip(texts, begins, strict=True) if not _is_empty(text)]
    if isinstance(value, (list, tuple)):
        if not is_missing(begin) and all(isinstance(part, str) or _is_empty(part) for part in value):
            return _places({"text": list(value), "answer_start": begin})  # texts and places side by side
        parts = [_places(part) for part in value]
        return None if None in parts else [place for part in parts if part is not None for place in part]
    text = "" if _is_empty(value) else str(value) if begin is not None else str(value).strip()
    return [(text, None if is_missing(begin) else begin)] if text else []


def _texts(value: Any) -> list[str]:
    return [text.strip() for text, _ in _places(value) or ()]


def _is_empty(value: Any) -> bool:
    return is_missing(value) or not str(value).strip()


def _whole_number(value: Any) -> int | None:
    """12, 12.0 and "12"; None of what is no place."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number >= 0 and number.is_integer() else None


def _find(text: str, whole: str) -> int | None:
    """The first place of a text, as words before parts of words; None: it is not there."""
    at = first = whole.find(text)
    while at >= 0 and (continues(whole[at - 1 : at]) or continues(whole[at + len(text) : at + len(text) + 1])):
        at = whole.find(text, at + 1)
    at = first if at < 0 else at
    return None if at < 0 else at


def continues(character: str) -> bool:
    """Whether a character beside a word is a part of it: a letter, a digit, a mark above one, or a joiner."""
    marks = unicodedata.category(character).startswith("M") if character else False
    return marks or character.isalnum() or character in ("_", *JOINERS)
