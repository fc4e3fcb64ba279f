"""What the columns of a table hold, guessed from their names and values; a kind of task takes those that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tasks.dataset import as_list, is_missing

SAMPLE = 10_000  # rows that are looked at
NEARLY_ALL = 0.9  # of the rows: some may be wrong, of which training has a list
MOST_CLASSES, MOST_GRADES = 50, 20  # distinct values of a column that is a label by its values; if they are numbers
CLASSES = ("label", "class", "goldlabel", "category", "intent", "topic")  # whose numbers are those of classes

# Names in small letters, without spaces and marks; the more telling ones first. A plural is the same name.
TEXTS = (
    ("text", "sentence", "review", "reviewtext", "content", "comment", "tweet", "message", "document", "body"),
    ("post", "question", "utterance", "query", "description", "article", "abstract", "phrase", "headline", "title"),
)
LABELS = (
    ("label", "class", "goldlabel", "target"),
    ("category", "sentiment", "polarity", "emotion", "intent", "topic", "stars", "rating", "gold", "y", "score"),
)
NUMBERS = (("score", "similarity", "relatedness"), ("rating", "target", "label", "value", "y"))
PAIRS = (
    *(("premise", "hypothesis"), ("question", "sentence"), ("question", "passage"), ("question", "answer")),
    *(("query", "document"), ("query", "passage"), ("claim", "evidence")),
)
AFTER = {"1": "2", "a": "b"}  # the last characters of two columns that belong together
WORD_LISTS = ("words", "tokens", "word", "token")
WORDS = (*WORD_LISTS, "sentence", "text")
TAGS = ("tags", "tag", "nertags", "ner", "postags", "pos", "upos", "xpos", "chunktags", "labels", "label")
INDICES = ("", "unnamed0", "id", "idx", "index", "guid", "uid", "pairid", "rowid", "row", "number")


def plain_name(name: str) -> str:
    return re.sub(r"[\W_]", "", str(name).lower())


def words_of(name: str) -> list[str]:
    """The words of a name, as of `review_text`, `Review Text` and `reviewText`."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", str(name))]


def is_among(name: str, names: Sequence[str]) -> bool:
    plain = plain_name(name)
    return plain in names or plain.removesuffix("s") in names


@dataclass
class Column:
    """The values of a column, without empty ones."""

    name: str
    values: list[Any]

    @cached_property
    def is_list(self) -> bool:
        return bool(self.values) and all(isinstance(value, list) for value in self.values)

    @cached_property
    def is_plain(self) -> bool:
        """Whether no value is a list or an object: these are neither texts nor classes."""
        return not any(isinstance(value, (list, tuple, dict, bytes)) for value in self.values)

    @cached_property
    def texts(self) -> list[str]:
        return [str(value).strip() for value in self.values]

    @cached_property
    def distinct(self) -> set[str]:
        return set(self.texts)

    @cached_property
    def numbers(self) -> list[float] | None:
        """The values as numbers; None where one is none."""
        try:
            return [float(text) for text in self.texts]
        except ValueError:
            return None

    @cached_property
    def is_continuous(self) -> bool:
        """Whether it holds numbers that are no classes."""
        if not self.numbers:
            return False
        most = MOST_CLASSES if is_among(self.name, CLASSES) else MOST_GRADES
        return len(self.distinct) > most or any(number % 1 for number in self.numbers)

    @cached_property
    def is_index(self) -> bool:
        return plain_name(self.name) in INDICES

    @cached_property
    def is_class(self) -> bool:
        """Whether its values are few and short."""
        if self.is_index or self.is_continuous or not self.is_plain or not 2 <= len(self.distinct) <= MOST_CLASSES:
            return False
        return 2 * len(self.distinct) <= len(self.values) and self.mean_words <= 4

    @cached_property
    def is_label_set(self) -> bool:
        """Whether its values are several classes each: lists, or names with commas, which stand alone elsewhere."""
        if self.is_list:
            parts = {str(part) for value in self.values for part in value}
            return len(parts) <= MOST_CLASSES and all(not isinstance(p, (list, dict)) for v in self.values for p in v)
        several = [text.split(",") for text in self.distinct if "," in text]
        parts = {part.strip() for parts in several for part in parts}
        return bool(several) and len(parts) <= MOST_CLASSES and len(parts & self.distinct) >= NEARLY_ALL * len(parts)

    @cached_property
    def is_text(self) -> bool:
        """Whether its values are many and of several words."""
        if self.is_index or self.is_class or self.numbers is not None or not self.is_plain:
            return False
        return self.mean_words >= 2

    @cached_property
    def mean_words(self) -> float:
        return sum(len(text.split()) for text in self.texts) / max(1, len(self.texts))


class Table:
    """The rows of a table, and columns with the values of some of them."""

    def __init__(self, rows: Sequence[Mapping[Any, Any]]) -> None:
        self.rows = rows
        rows = rows[:: max(1, len(rows) // SAMPLE)]
        names = dict.fromkeys(name for row in rows for name in row)
        self.columns = [
            Column(name, [as_list(v) for row in rows if not is_missing(v := row.get(name)) and str(v).strip()])
            for name in names
        ]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def values(self, name: str) -> list[str]:
        """The distinct values of a column in all rows, in their order, numbers by size."""
        found = {str(value).strip() for row in self.rows if not is_missing(value := row.get(name))} - {""}
        try:
            return sorted(found, key=float)
        except ValueError:
            return sorted(found)

    @property
    def headless(self) -> str | None:
        """The name of a column that is one of its values too: then the first line is a row, not a header."""
        return next((c.name for c in self.columns if plain_name(c.name) and str(c.name).strip() in c.distinct), None)

    def text(self) -> str | None:
        return _only(_likely((c for c in self.columns if c.is_plain and c.numbers is None), TEXTS, "is_text"))

    def label(self, *texts: str) -> str | None:
        """The column of a class, beside those of the texts."""
        return _only([column for column in self.labels(*texts) if column.is_plain])

    def labels(self, *texts: str) -> list[Column]:
        """The columns that may be that, equally well; those of lists, of several classes in a row, are among them."""
        others = (c for c in self.columns if c.name not in texts and not c.is_continuous)
        return _likely((c for c in others if c.is_plain or c.is_list), LABELS, "is_class")

    def number(self, *texts: str) -> str | None:
        """The column of a number, beside those of the texts."""
        return _only(_likely((c for c in self.columns if c.name not in texts and c.numbers), NUMBERS, "is_continuous"))

    def pair(self) -> tuple[str, str] | None:
        """Two columns of texts that belong together: `premise` and `hypothesis`, `sentence1` and `sentence2`, ..."""
        plain = {plain_name(c.name): c.name for c in self.columns if c.is_plain and c.numbers is None}
        numbered = [(name, name[:-1] + AFTER[name[-1]]) for name in plain if name[-1:] in AFTER]
        for first, second in (*PAIRS, *numbered):
            if first in plain and second in plain and first[:-1] and first != second:
                return plain[first], plain[second]
        return None

    def words_and_tags(self) -> tuple[str, str] | None:
        """Two columns of lists, or of texts with as many words in nearly all rows, and in some of them several."""
        return self._words_and_tags(alone=False)

    def word_and_tag(self) -> tuple[str, str] | None:
        """Two such columns with one word in each row, of a sentence that has been taken apart."""
        found = self._words_and_tags(alone=True)
        return found if found and plain_name(found[0]) in WORD_LISTS and not is_among(found[1], LABELS[0]) else None

    def _words_and_tags(self, *, alone: bool) -> tuple[str, str] | None:
        for columns in ([c for c in self.columns if c.is_list], [c for c in self.columns if c.is_plain]):
            words = next((c for name in WORDS for c in columns if plain_name(c.name) == name), None)
            tags = next((c for name in TAGS for c in columns if plain_name(c.name) == name and c is not words), None)
            if words is None or tags is None:
                continue
            if words.is_list:
                return None if alone else (words.name, tags.name)
            pairs = list(zip(_lengths(words), _lengths(tags), strict=False))
            fit = len(words.values) == len(tags.values) and sum(a == b for a, b in pairs) >= NEARLY_ALL * len(pairs)
            if fit and alone == all(a == 1 for a, _ in pairs):
                return words.name, tags.name
        return None


def _likely(columns: Iterable[Column], names: Sequence[Sequence[str]], by_value: str) -> list[Column]:
    """The columns with the most telling name; else those with such a word in it, or with such values."""
    candidates = [column for column in columns if not column.is_index]
    tiers = (
        [column for column in candidates if plain_name(column.name) == names[0][0]],
        *([column for column in candidates if is_among(column.name, same)] for same in names),
        [c for c in candidates if any(is_among(word, same) for word in words_of(c.name) for same in names)],
        [column for column in candidates if getattr(column, by_value)],
    )
    return next((tier for tier in tiers if tier), [])


def _only(columns: Sequence[Column]) -> str | None:
    """The name of a column that stands alone."""
    return columns[0].name if len(columns) == 1 else None


def _lengths(column: Column) -> list[int]:
    return [len(str(value).split()) for value in column.values]
