"""Rows of a data set: where they are, and how a text or a label is read from a column."""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.errors import RowError, TaskError
from tasks.prompts import Prompt

SPLITS = ("train", "valid", "test")
SHOWN = 60  # characters of a text in a message
Row = tuple[str, Mapping[Any, Any]]  # its place, as "dev.tsv, line 3", and its columns


def shortened(text: str, most: int = SHOWN) -> str:
    """A text as a message shows it: a wrong column can hold whole documents."""
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Iterable[Any], most: int = 12) -> str:
    """Names as a message shows them: the first few, and how many more there are."""
    shown = [shortened(str(name)) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most:,} more" if len(shown) > most else "")


def repeated(names: Sequence[str]) -> str | None:
    """The first name that occurs twice."""
    return next((name for name in names if names.count(name) > 1), None)


def is_missing(value: Any) -> bool:
    """None, or NaN, as tables write an empty cell into JSON."""
    return value is None or (isinstance(value, float) and value != value)


def is_plain_list(value: Any) -> bool:
    """Whether it is a list of texts or numbers."""
    return isinstance(value, list) and not any(isinstance(part, (list, dict)) or is_missing(part) for part in value)


# The parts of a list that is written as text: quoted ones, and others.
PART = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,'"\[\]]+""")


def as_list(value: Any) -> Any:
    """The list that a cell of a table holds as text, as pandas (`['a', 'b']`), NumPy (`['a' 'b']`) and JSON write it;
    any other value unchanged."""
    if not isinstance(value, str) or not (text := value.strip()).startswith("[") or not text.endswith("]"):
        return value
    inner = text[1:-1]
    parts = PART.findall(inner)
    begin, *between = [space.strip() for space in PART.split(inner)]
    end = between.pop() if between else ""
    quoted = all(part[0] in "'\"" for part in parts)
    if begin or end or (set(between) - {","} and not (quoted and set(between) == {""})):
        return value
    if inner != inner.strip() and not quoted:  # words in brackets, with spaces between them
        return value
    with contextlib.suppress(ValueError, SyntaxError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python does not know
        found = [ast.literal_eval(part) for part in parts]
        return found if is_plain_list(found) else value
    return value


@dataclass
class DataSet:
    """Rows with named columns: the fields of a task's YAML file that every kind has.

    Attributes:
        roles: the columns that hold text, in the order of a pair.
        head: what learns it, the name of a file in `pipeline/finetuning/heads`; None: there is nothing to train.
        ignores: what rows have that are left out.
        parallel: whether a local folder may have a file of lines for each column, as `train.en` and `train.de`.
        label_names: of labels with names, in the order of the classes.

    Args:
        columns: role (`text`, `label`; the kind of task says which) -> name of the column. A column with the
            name of its role is found too.
        hub: arguments of `datasets.load_dataset`: path, name, revision; the rows of all configurations whose name
            matches a pattern, as `*`.
        splits: `train`, `valid`, `test` -> the split's name: on the hub, and the beginning of a local file's name.
            A part that is not there is made of training rows, see `valid_rows`.
        hub_splits: names on the hub that differ from those in `splits`.
        valid_rows: the share of the training part that is split off where there is no validation part, stratified by
            label, with equal texts in one part; or a number of rows, drawn at random, but a fifth of it at most.
        test_rows: the same of the test part; it is split off first.
        sample: instead of hub or files, the name of a built-in synthetic set.
        prompts: templates for zero-shot evaluation.
        language: of the texts, as de: for an encoder that has a token for each language, as mBART.
    """

    columns: dict[str, str]
    hub: dict[str, Any] | None = None
    splits: dict[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})
    hub_splits: dict[str, str] = field(default_factory=dict)
    valid_rows: int | float = 0.1
    test_rows: int | float = 0.1
    sample: str | None = None
    prompts: list[Prompt] = field(default_factory=list)
    language: str | None = None

    roles: tuple[str, ...] = ()
    ignores: ClassVar[str] = "without a label"
    parallel: ClassVar[bool] = False
    head: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        self.label_names: list[str] = []
        if not isinstance(self.columns, dict):
            raise TaskError("columns must map roles to column names")
        for name in ("splits", "hub_splits"):
            parts = getattr(self, name)
            if not isinstance(parts, dict) or not set(parts) <= set(SPLITS):
                raise TaskError(f"{name} names parts of the data, {', '.join(SPLITS)}, and has {parts}")
        if "split" in (self.hub or {}):
            raise TaskError("hub has a split: name the parts in splits, or in hub_splits")
        for name in ("valid_rows", "test_rows"):
            count = getattr(self, name)
            if not (0 <= count < 1 or (count >= 1 and count % 1 == 0)):
                raise TaskError(f"{name} is {count}; it is a number of rows, or a share of them below 1")

    def column(self, row: Row, role: str) -> Any:
        """The value in the column of a role, or in a column with the name of the role.

        Raises:
            UserError: there is no such column, or nothing in it; names the row.
        """
        name = self.named_column(row, role)
        if is_missing(row[1][name]):
            raise RowError(row[0], f"has nothing under '{name}'", kind=f"nothing under '{name}'")
        return row[1][name]

    def named_column(self, row: Row, role: str) -> str:
        """The name of the column of a role in a row.

        Raises:
            UserError: there is no such column; names the row.
        """
        place, columns = row
        name = self.columns.get(role, role)
        if name not in columns and role in columns:
            name = role
        if name not in columns:
            raise RowError(place, f"has no '{name}' (it has {listed(columns)})", kind=f"no '{name}'")
        return name

    def plain(self, row: Row, role: str) -> str:
        """The text or label in the column of a role.

        Raises:
            UserError: a list or another value that is not text.
        """
        value = self.column(row, role)
        if isinstance(value, (list, tuple, dict, bytes)):
            raise RowError(row[0], f"has {str(value)[:40]} as its {role}, which is not text", kind=f"no text as {role}")
        return str(value).strip()

    def take_columns(self, columns: dict[str, str]) -> None:
        """Reads these columns from now on."""
        self.columns = columns

    def learn_labels(self, rows: Sequence[Row]) -> None:
        """Takes the names of the labels from the training rows, where there are names and none are declared.

        Raises:
            UserError: a row without a label.
        """

    def is_ignored(self, row: Row) -> bool:
        """Whether the row has no label, and is left out."""
        return False

    def names(self, row: Row) -> list[str]:
        """The names of the labels of a row."""
        return []
