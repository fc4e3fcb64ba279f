"""What a task is: labelled data of one kind, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SPLITS = ("train", "valid", "test")


class LabelError(ValueError):
    """A row without the columns of the task, or with a label that it does not know; the text says which."""


@dataclass
class Example:
    """One labelled text, or pair of texts; the label is an index into the task's labels."""

    text: str | tuple[str, str]
    label: int


@dataclass
class Task:
    """Labelled data of one kind; a data set is a YAML file with these fields.

    Args:
        columns: role (`text`, `label`; the kind of task says which) -> name of the column.
        labels: the value in the file -> the name of the label, in the order of the classes.
        hub: arguments of `datasets.load_dataset`: path, name, revision.
        splits: `train`, `valid`, `test` -> the split's name: on the hub, and the begin of a local file's name.
            Without `valid`, `valid_rows` rows of the training part are set aside.
        hub_splits: names on the hub that differ from those in `splits`.
        valid_rows: how many.
        sample: instead of hub or files, the name of a built-in synthetic set.
    """

    labels: dict[str, str]
    columns: dict[str, str]
    hub: dict[str, Any] | None = None
    splits: dict[str, str] = field(default_factory=lambda: {split: split for split in SPLITS})
    hub_splits: dict[str, str] = field(default_factory=dict)
    valid_rows: int = 0
    sample: str | None = None

    metric = "accuracy"

    @property
    def label_names(self) -> list[str]:
        return list(self.labels.values())

    def examples(self, rows: Iterable[Mapping[str, Any]], origin: str) -> list[Example]:
        """Rows -> examples.

        Raises:
            LabelError: a column is missing, or a label is unknown; names the row.
        """
        known = {str(value): index for index, value in enumerate(self.labels)}
        result = []
        for number, row in enumerate(rows, start=1):
            for column in self.columns.values():
                if column not in row or row[column] is None:
                    raise LabelError(f"{origin}, row {number} has no '{column}' (it has {', '.join(map(str, row))}).")
            value = str(row[self.columns["label"]]).strip()
            if value not in known:
                raise LabelError(f"{origin}, row {number} has the label '{value}'; the task knows {', '.join(known)}.")
            result.append(self.example(row, known[value]))
        return result

    def example(self, row: Mapping[str, Any], label: int) -> Example:
        raise NotImplementedError
