"""Prompts: how a row becomes texts to be scored, as plain data."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tasks.errors import TaskError

MASK = "[MASK]"


@dataclass
class Prompt:
    """One template of a task. Texts name the columns of a row in braces, as in Python format strings: `{name}`.

    `{name!l}` begins with a small letter, `{name!p}` has lost its last punctuation mark.

    Args:
        shape: `choice` (a context and candidates that continue it), `pair` (which text is likelier), `cloze`
            (candidates at the [MASK] of the text), `last_word` (the text's own last word).
        text: the context, or the text with [MASK]; of `last_word` the text as a whole. It must not end in a space.
        candidates: label -> its text; or a list of texts, the right one of which `gold` names.
        gold: name of the column that holds the right candidate's number, or the number.
        values: column -> value -> its replacement in the texts.
    """

    shape: Literal["choice", "pair", "cloze", "last_word"]
    text: str = ""
    candidates: dict[str, str] | list[str] = field(default_factory=list)
    gold: str | int = 0
    values: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: TaskError, a template that cannot be filled, or that asks the same of every row."""
        texts = self.texts[1:]
        if not [name for text in self.texts for name in fields_of(text)]:
            raise TaskError(f"the prompt '{self.text}' names no column, as {{text}}, and asks the same of every row")
        if self.shape == "cloze" and (count := self.text.count(MASK)) != 1:
            raise TaskError(f"the cloze prompt '{self.text}' has {count or 'no'} {MASK}; it needs one")
        if self.shape == "last_word" and texts:
            raise TaskError(f"the last_word prompt '{self.text}' asks for its own last word: leave out its candidates")
        if self.shape != "last_word" and not texts:
            raise TaskError(f"the prompt '{self.text}' has no candidates")

    @property
    def texts(self) -> list[str]:
        """The text and those of the candidates."""
        return [self.text, *(self.candidates.values() if isinstance(self.candidates, dict) else self.candidates)]

    @property
    def placed(self) -> bool:
        """Whether the place of a candidate means something: it is that of a label, or a column says which is right."""
        return self.shape != "pair" and (isinstance(self.candidates, dict) or isinstance(self.gold, str))


def fields_of(text: str) -> list[str]:
    """The columns that a template names.

    Raises:
        TaskError: a field without a name, or with more than `!l` or `!p` behind it.
    """
    names = []
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if name == "" or name.isdigit():
            raise TaskError(f"the prompt '{text}' has a field without a name")
        if spec or conversion not in (None, "l", "p") or set(name) & set(".[]"):
            raise TaskError(f"the prompt '{text}' has the field {name}; a field is the name of a column, and !l or !p")
        names.append(name)
    return names


@dataclass
class Question:
    """A filled prompt: the texts before, at and after the place of the candidate.

    Attributes:
        gold: which candidate is right.
        words: fields that have words of the prompt's `values`, which are its own and not the row's.
        examples: solved ones that stand at the beginning of `left`.
    """

    left: str
    candidates: list[str]
    right: str
    gold: int
    words: dict[str, str] = field(default_factory=dict)
    examples: int = 0


class _Formatter(string.Formatter):
    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        value = super().get_value(key, args, kwargs)
        if value is None or value != value:  # NaN, as tables write an empty cell into JSON
            raise ValueError(f"it has nothing under '{key}'")
        return value

    def convert_field(self, value: Any, conversion: Any) -> Any:
        text = str(value).strip()
        if conversion == "l":
            return text[:1].lower() + text[1:]
        if conversion == "p":
            return text[:-1] if text[-1:] in ".!?" else text
        return super().convert_field(value, conversion)


def _number(value: Any) -> int:
    """Raises: ValueError, a value is no whole number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"the right answer is '{value!s:.60}', which is no number of a candidate")
    return int(number)


def fill(prompt: Prompt, row: Mapping[str, Any], labels: list[str], label: str | None) -> Question:
    """A row in a prompt.

    Args:
        labels: names of the labels of the task, in order; `label`: the row's.

    Raises:
        KeyError: a field that the row does not have, by name.
        ValueError: no candidate is the right one.
    """
    words = {name: word for name, of in prompt.values.items() if (word := of.get(str(row.get(name)))) is not None}
    # Spaces around a text of the row are left out, as in fine-tuning. A candidate may begin with one, and the words of
    # the prompt may need theirs.
    stripped = {name: value.strip() if isinstance(value, str) else value for name, value in row.items()} | words
    continuing = {name: value.rstrip() if isinstance(value, str) else value for name, value in row.items()} | words

    def text(template: str) -> str:
        return _Formatter().vformat(template, (), stripped)

    def candidate_of(template: str) -> str:
        return _Formatter().vformat(template, (), continuing)

    if prompt.shape == "last_word":
        before, _, last = text(prompt.text).rstrip().rpartition(" ")
        return Question(before, [f" {last}"], "", 0)
    if isinstance(prompt.candidates, dict):
        candidates = [candidate_of(prompt.candidates[name]) for name in labels]
        if label not in labels:
            raise ValueError(f"the label '{label!s:.60}' is none of the task's labels")
        gold = labels.index(label)
    else:
        candidates = [candidate_of(candidate) for candidate in prompt.candidates]
        gold = _number(row[prompt.gold]) if isinstance(prompt.gold, str) else prompt.gold
        if not 0 <= gold < len(candidates):
            raise ValueError(f"the right answer is {gold} of {len(candidates)} candidates")
    if prompt.shape == "pair":
        return Question("", candidates, "", gold)
    left, _, right = prompt.text.partition(MASK) if prompt.shape == "cloze" else (prompt.text, "", "")
    # A mask in a text of the row is not that of the prompt.
    return Question(text(left), candidates, text(right), gold, words)
