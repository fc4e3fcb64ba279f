"""What a task is: labelled data of one kind, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.prompts import Prompt

SPLITS = ("train", "valid", "test")
Row = tuple[str, Mapping[Any, Any]]  # where it stands, as "dev.tsv, line 3", and its columns


class LabelError(ValueError):
    """A row without the columns of the task, or with a label that it does not know; the text says where."""


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
        valid_rows: how many.
        sample: instead of hub or files, the name of a built-in synthetic set.
        prompts: templates for zero-shot evaluation.
    """

    columns: dict[str, str]
    labels: dict[str, str] | None = None
    ignore: list[str] = field(default_factory=list)
    hub: dict[str, Any] | None = None
    splits: dict[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})
    hub_splits: dict[str, str] = field(default_factory=dict)
    valid_rows: int = 0
    sample: str | None = None
    prompts: list[Prompt] = field(default_factory=list)

    head: ClassVar[str] = "sentence"  # "token": one label a word; "none": nothing to train
    roles: ClassVar[tuple[str, ...]] = ()  # the columns that hold text

    def __post_init__(self) -> None:
        self.label_names = list(dict.fromkeys(self.labels.values())) if self.labels is not None else []

    @property
    def metric(self) -> str:
        """What chooses the checkpoint and heads the report."""
        return "accuracy"

    def learn_labels(self, rows: Sequence[Row]) -> None:
        """Takes the labels from the training part, unless they are declared.

        Raises:
            LabelError: a row without a label.
        """
        if self.labels is None:
            self.label_names = sorted({name for row in rows if not self.is_ignored(row) for name in self.names(row)})

    def names(self, row: Row) -> list[str]:
        """The names of the labels of a row."""
        return [self.name_of(self.column(row, "label"))]

    def name_of(self, value: Any) -> str:
        plain = str(value).strip()
        return (self.labels or {}).get(plain, plain)

    def column(self, row: Row, role: str) -> Any:
        """What a row has in the column of a role, or in one that is called as the role is.

        Raises:
            LabelError: nothing; the text says where.
        """
        place, columns = row
        name = self.columns.get(role, role)
        if columns.get(name) is None and columns.get(role) is not None:
            return columns[role]
        if columns.get(name) is None:
            raise LabelError(f"{place} has no '{name}' (it has {', '.join(map(str, columns))}).")
        return columns[name]

    def examples(self, rows: Iterable[Row]) -> list[Example]:
        """Rows -> examples.

        Raises:
            LabelError: a column is missing, or a label is unknown; names the row.
        """
        known = {name: index for index, name in enumerate(self.label_names)}
        return [self.example(row, known) for row in rows if not self.is_ignored(row)]

    def is_ignored(self, row: Row) -> bool:
        return bool(self.ignore) and str(self.column(row, "label")).strip() in self.ignore

    def example(self, row: Row, known: dict[str, int]) -> Example:
        """A row -> an example, with `known` label names."""
        [label] = self.indices(row, known)
        texts = [str(self.column(row, role)).strip() for role in self.roles]
        return Example(text=texts[0] if len(texts) == 1 else (texts[0], texts[1]), label=label)

    def indices(self, row: Row, known: dict[str, int]) -> list[int]:
        names = self.names(row)
        for name in names:
            if name not in known:
                there = f"the training part has only {', '.join(known)}"
                if self.labels is not None:
                    pairs = [key if key == label else f"{key} ({label})" for key, label in self.labels.items()]
                    there = f"the task knows {', '.join(pairs)}"
                raise LabelError(f"{row[0]} has the label '{name}'; {there}.")
        return [known[name] for name in names]
