"""Labels with names: the values in a file, what they are called, and their indices."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.base import Example
from tasks.dataset import DataSet, Row, is_missing, listed, shortened
from tasks.errors import RowError, TaskError, UserError


@dataclass
class NamedLabels(DataSet):
    """Rows whose labels are indices into `label_names`.

    Args:
        labels: the value in the file -> the name of the label, in the order of the classes; a name stands for
            itself too. None: whatever the training part has, sorted.
        ignore: values of rows without a label, which are left out; `""` is an empty cell, or null.
    """

    labels: dict[str, str] | None = None
    ignore: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known: tuple[list[str], int, dict[str, int]] = [], 0, {}
        if any(isinstance(key, bool) for key in self.labels or {}):
            raise TaskError("labels has a key that YAML reads as true or false: put it in quotes")
        if self.labels is not None:
            self.labels = {_composed(key): str(name) for key, name in self.labels.items()}
            self.label_names = list(dict.fromkeys(self.labels.values()))

    def learn_labels(self, rows: Sequence[Row]) -> None:
        if self.labels is None:
            self.label_names = sorted({name for row in rows if not self.is_ignored(row) for name in self.names(row)})

    def is_ignored(self, row: Row) -> bool:
        if not self.ignore:
            return False
        value = row[1][self.named_column(row, "label")]
        return ("" if is_missing(value) else _composed(value)) in map(_composed, self.ignore)

    def names(self, row: Row) -> list[str]:
        value = row[1][self.named_column(row, "label")]
        return self.named(row, ["" if is_missing(value) else self.plain(row, "label")])

    def named(self, row: Row, values: Sequence[Any]) -> list[str]:
        """Values of a row -> names of labels.

        Raises:
            UserError: one is empty.
        """
        names = [self.name_of(value) for value in values]
        if "" in names:
            problem = "has an empty label; `ignore: ['']` in the task's YAML leaves such rows out"
            raise RowError(row[0], problem, kind="an empty label")
        return names

    def name_of(self, value: Any) -> str:
        """A value in the file -> the name of the label."""
        plain = _composed(value)
        return (self.labels or {}).get(plain, plain)

    def indices(self, row: Row) -> list[int]:
        """The labels of a row.

        Raises:
            UserError: one is unknown; names the row.
        """
        known = self._numbers()
        names = [_composed(name) for name in self.names(row)]
        for name in names:
            if name not in known:
                expected = f"the training part has only {listed(known)}"
                if self.labels is not None:
                    pairs = [key if key == label else f"{key} ({label})" for key, label in self.labels.items()]
                    others = "name others in `labels` or `ignore` of its YAML file, or give the task another name"
                    expected = f"the task knows {listed(pairs)}; {others}"
                raise RowError(row[0], f"has the label '{shortened(name)}'; {expected}", kind="an unknown label")
        return [known[name] for name in names]

    def _numbers(self) -> dict[str, int]:
        """Name -> index of each label; made once for all rows."""
        names, count, numbers = self._known
        if names is not self.label_names or count != len(names):
            numbers = {_composed(name): index for index, name in enumerate(self.label_names)}
            self._known = self.label_names, len(self.label_names), numbers
        return numbers

    def indices_of(self, label: Any) -> list[int]:
        """The indices in a label of this kind."""
        indices: list[int] = label
        return indices

    def take_outputs(self, names: Sequence[str]) -> None:
        given = {_composed(name) for name in names}
        if unknown := [n for n in self.label_names if self.labels is not None and _composed(n) not in given]:
            raise UserError(
                f"The task has the label {listed(unknown)}, which the model does not give: it gives {listed(names)}; "
                "`labels` in the task's YAML says which values of the files these are."
            )
        self.labels = self.labels or {name: name for name in names}
        self.label_names = [*names]

    def check_label_names(self) -> None:
        if not self.label_names:
            raise UserError("No training row has a label.")
        if len(self.label_names) < 2:
            found = "All training rows have" if self.labels is None else "The task's YAML declares only"
            raise UserError(f"{found} the label {', '.join(self.label_names)}; at least two labels are needed.")

    def check_labels(self, train: Sequence[Example]) -> None:
        used = {index for example in train for index in self.indices_of(example.label)}
        if len(used) < 2:
            found = ", ".join(self.label_names[index] for index in used)
            raise UserError(f"The training part has one label only ({found}).")

    def describe_labels(self, train: Sequence[Example]) -> str:
        alike = Counter(name.casefold() for name in self.label_names)
        cased = [name for name in self.label_names if alike[name.casefold()] > 1]
        note = f" ({listed(cased)} differ in case alone: `labels` in the task's YAML can join them)" if cased else ""
        return f"labels {listed(self.label_names, 30)}{note}"


def _composed(value: Any) -> str:
    """A value of a file as text; an accent is a part of its letter, as some systems write it apart."""
    return unicodedata.normalize("NFC", str(value).strip())
