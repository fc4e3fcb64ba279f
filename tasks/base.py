"""What a task is: labelled data of one kind, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.errors import TaskError, UserError
from tasks.prompts import Prompt

SPLITS = ("train", "valid", "test")
Row = tuple[str, Mapping[Any, Any]]  # where it stands, as "dev.tsv, line 3", and its columns


def shortened(text: str, most: int = 60) -> str:
    """A text as a message shows it: a column that is another than it seems can hold whole documents."""
    return text if len(text) <= most else f"{text[:most]}..."


def listed(names: Iterable[Any], most: int = 12) -> str:
    """Names as a message shows them: the first few, and how many more there are."""
    shown = [shortened(str(name)) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most:,} more" if len(shown) > most else "")


def is_missing(value: Any) -> bool:
    """None, or NaN, as tables write an empty cell into JSON."""
    return value is None or (isinstance(value, float) and value != value)


def is_plain_list(value: Any) -> bool:
    """Whether it is a list of texts or numbers."""
    return isinstance(value, list) and not any(isinstance(part, (list, dict)) or is_missing(part) for part in value)


@dataclass
class Example:
    """One labelled text, pair of texts or list of words; labels are indices into the task's label names."""

    text: str | tuple[str, str] | list[str]
    label: int | list[int]

    @property
    def labels(self) -> list[int]:
        """One, or one for each word."""
        return self.label if isinstance(self.label, list) else [self.label]


@dataclass
class Task:
    """Labelled data of one kind; a data set is a YAML file with these fields.

    Args:
        columns: role (`text`, `label`; the kind of task says which) -> name of the column. A column that is called
            as its role is found too.
        labels: the value in the file -> the name of the label, in the order of the classes; a name stands for
            itself too. None: whatever the training part has, sorted.
        ignore: values of rows without a label, which are left out.
        hub: arguments of `datasets.load_dataset`: path, name, revision.
        splits: `train`, `valid`, `test` -> the split's name: on the hub, and the begin of a local file's name.
            Without `valid`, `valid_rows` rows of the training part are set aside.
        hub_splits: names on the hub that differ from those in `splits`.
        valid_rows: how many, but a fifth of the training part at most; below 1 their share of it, as 0.1.
        sample: instead of hub or files, the name of a built-in synthetic set.
        prompts: templates for zero-shot evaluation.
    """

    columns: dict[str, str]
    labels: dict[str, str] | None = None
    ignore: list[str] = field(default_factory=list)
    hub: dict[str, Any] | None = None
    splits: dict[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})
    hub_splits: dict[str, str] = field(default_factory=dict)
    valid_rows: int | float = 0
    sample: str | None = None
    prompts: list[Prompt] = field(default_factory=list)

    head: ClassVar[str] = "sentence"  # "token": one label a word; "none": nothing to train
    roles: ClassVar[tuple[str, ...]] = ()  # the columns that hold text

    def __post_init__(self) -> None:
        if not isinstance(self.columns, dict):
            raise TaskError("columns is role -> name of a column")
        for name in ("splits", "hub_splits"):
            parts = getattr(self, name)
            if not isinstance(parts, dict) or not set(parts) <= set(SPLITS):
                raise TaskError(f"{name} names parts of the data, {', '.join(SPLITS)}, and has {parts}")
        if "split" in (self.hub or {}):
            raise TaskError("hub has a split: name the parts in splits, or in hub_splits")
        if not (0 <= self.valid_rows < 1 or (self.valid_rows >= 1 and self.valid_rows % 1 == 0)):
            raise TaskError(f"valid_rows is {self.valid_rows}; it is a number of rows, or a share of them below 1")
        if any(isinstance(key, bool) for key in self.labels or {}):
            raise TaskError("labels has a key that YAML reads as true or false: put it in quotes")
        if self.labels is not None:
            self.labels = {str(key): str(name) for key, name in self.labels.items()}
        self.label_names = list(dict.fromkeys(self.labels.values())) if self.labels is not None else []

    @property
    def metric(self) -> str:
        """What chooses the checkpoint and heads the report."""
        return "accuracy"

    def learn_labels(self, rows: Sequence[Row]) -> None:
        """Takes the labels from the training part, unless they are declared.

        Raises:
            UserError: a row without a label.
        """
        if self.labels is None:
            self.label_names = sorted({name for row in rows if not self.is_ignored(row) for name in self.names(row)})

    def names(self, row: Row) -> list[str]:
        """The names of the labels of a row."""
        return self.named(row, [self.plain(row, "label")])

    def named(self, row: Row, values: Sequence[Any]) -> list[str]:
        """Values of a row -> names of labels.

        Raises:
            UserError: one is empty.
        """
        names = [self.name_of(value) for value in values]
        if "" in names:
            raise UserError(f"{row[0]} has an empty label; `ignore` in the task's YAML leaves such rows out.")
        return names

    def name_of(self, value: Any) -> str:
        plain = str(value).strip()
        return (self.labels or {}).get(plain, plain)

    def column(self, row: Row, role: str) -> Any:
        """What a row has in the column of a role, or in one that is called as the role is.

        Raises:
            UserError: nothing; the text says where.
        """
        place, columns = row
        name = self.columns.get(role, role)
        if name not in columns and role in columns:
            name = role
        if name not in columns:
            raise UserError(f"{place} has no '{name}' (it has {listed(columns)}).")
        if is_missing(columns[name]):
            raise UserError(f"{place} has nothing under '{name}'.")
        return columns[name]

    def plain(self, row: Row, role: str) -> str:
        """The text or label in the column of a role.

        Raises:
            UserError: a list or another thing that is no text.
        """
        value = self.column(row, role)
        if isinstance(value, (list, tuple, dict, bytes)):
            raise UserError(f"{row[0]} has {str(value)[:40]} as its {role}, which is no text.")
        return str(value).strip()

    def examples(self, rows: Iterable[Row]) -> list[Example]:
        """Rows -> examples.

        Raises:
            UserError: a column is missing, or a label is unknown; names the row.
        """
        known = {name: index for index, name in enumerate(self.label_names)}
        return [self.example(row, known) for row in rows if not self.is_ignored(row)]

    def is_ignored(self, row: Row) -> bool:
        return bool(self.ignore) and str(self.column(row, "label")).strip() in self.ignore

    def example(self, row: Row, known: dict[str, int]) -> Example:
        """A row -> an example, with `known` label names.

        Raises:
            UserError: other than one text or two, which a kind of task joins in an `example` of its own.
        """
        [label] = self.indices(row, known)
        texts = [self.plain(row, role) for role in self.roles]
        if len(texts) not in (1, 2):
            raise UserError(f"A task of {len(texts)} texts needs a method `example` that says how they are joined.")
        return Example(text=texts[0] if len(texts) == 1 else (texts[0], texts[1]), label=label)

    def indices(self, row: Row, known: dict[str, int]) -> list[int]:
        names = self.names(row)
        for name in names:
            if name not in known:
                there = f"the training part has only {listed(known)}"
                if self.labels is not None:
                    pairs = [key if key == label else f"{key} ({label})" for key, label in self.labels.items()]
                    there = f"the task knows {listed(pairs)}"
                raise UserError(f"{row[0]} has the label '{shortened(name)}'; {there}.")
        return [known[name] for name in names]
