"""A task's labeled rows by part: read from files, hub or sample, checked all at once, split where a part is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.console import typed
from pipeline.data.columns import resolve_columns
from pipeline.data.problems import raise_all
from pipeline.data.row_sources import rows_of
from pipeline.data.splits import MOST_ASIDE, drawn, stratified
from pipeline.data.task_files import OTHER_NAMES, is_one_file
from pipeline.errors import UserError
from pipeline.storage.csv_table import csv_table
from tasks.base import Example, Task
from tasks.dataset import SPLITS, Row, listed, shortened
from tasks.guess import plain_name

SPLIT_COLUMNS = ("split", "part", "set", "subset", "partition")  # names of columns that may say which part a row is of
FEW = 10  # rows, of which no two have a label in common by chance
PART_NAMES = {split: (split, *others) for split, others in OTHER_NAMES.items()}


@dataclass
class Part:
    """Rows that have a label, and what they are as examples, one for one."""

    rows: list[Row] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)

    def at(self, numbers: Sequence[int]) -> Part:
        return Part([self.rows[i] for i in numbers], [self.examples[i] for i in numbers])


@dataclass
class LabeledRows:
    """What a task has to learn from.

    Attributes:
        parts: by name, the requested ones.
        made: of a part that is split off the training part: how.
        columns: role -> the column that it is read from, where the task names another one.
        left_out: rows of a part's files that the task ignores.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def read_from(self, task: Task) -> str | None:
        """The columns that roles are read from, which are others than the task names; None: there are none."""
        found = [
            f"the column {column}"
            + (f" as {role}" if column == task.columns[role] else f" (there is no {task.columns[role]})")
            for role, column in self.columns.items()
        ]
        return f"read from {', '.join(found)}" if found else None

    def table(self) -> str:
        """Which row is in which part, as CSV."""
        rows = [[split, *place.rsplit(", ", 1)] for split, part in self.parts.items() for place, _ in part.rows]
        return csv_table(["part", "source", "place"], rows)


def read(task: Task, files: str | None, *, splits: Sequence[str] = SPLITS) -> LabeledRows:
    """The rows of a task; those of a part that is missing are split off the training part.

    Args:
        files: local folder, file or pattern instead of the task's hub name.
        splits: the parts that are needed.

    Raises:
        UserError: a part is missing or empty, or rows do not fit the task; lists the first ten of them.
    """
    problems: list[UserError] = []
    rows = {split: part for split in splits if (part := rows_of(task, files, split, problems.append)) is not None}
    made = {}
    if list(rows) == ["train"] and (column := _split_column(rows["train"])) is not None:
        every = rows["train"]
        if "train" in splits and not _of_part(every, column, "train"):
            raise UserError(f"The column {column} says which part a row belongs to, and no row has 'train' there.")
        rows = {split: part for split in splits if (part := _of_part(every, column, split))}
        made = dict.fromkeys(rows, f"by the column {column}{_of_no_part(every, column)}")
    _check_parts(task, files, rows, splits, problems)
    first = rows.get("train") or rows["test"]
    found = LabeledRows(columns=resolve_columns(task, first), made=made)
    _learn_labels(task, first)
    if "train" in rows:  # a test part may have rows of one label
        _check_label_names(task, problems)
    parts = {split: _labeled(task, part, problems) for split, part in rows.items()}
    raise_all(problems)
    found.left_out = {split: len(rows[split]) - len(part.rows) for split, part in parts.items()}
    for split in ("test", "valid"):
        if split in splits and split not in parts:
            of = "all rows" if split == "test" and list(parts) == ["train"] else "the training rows"
            parts[split], parts["train"], found.made[split] = _split_off(task, parts["train"], split, of=of)
    found.parts = {split: parts[split] for split in splits if split in parts}
    for split, labeled in found.parts.items():
        if not labeled.rows:
            raise UserError(f"No row of the task's {split} part has a label.")
    if "train" in found.parts:
        task.check_labels(found.parts["train"].examples)
    return found


def read_part(task: Task, files: str | None, split: str) -> LabeledRows:
    """The rows of one part, of a task whose labels are known; of a single file without parts all rows.

    Args:
        files: as of `read`.

    Raises:
        UserError: there is no such part, it has no row, or rows do not fit the task.
    """
    problems: list[UserError] = []
    rows = rows_of(task, files, split, problems.append)
    if rows is None and files is not None and is_one_file(files):
        named = (rows_of(task, files, name, problems.append) for name in PART_NAMES)
        rows = next((found for found in named if found), [])
        column = _split_column(rows)
        rows = rows if column is None else _of_part(rows, column, split)
    parts = {} if rows is None else {split: rows}
    _check_parts(task, files, parts, [split], problems)
    columns = resolve_columns(task, parts[split])
    part = _labeled(task, parts[split], problems)
    raise_all(problems)
    if not part.rows:
        raise UserError(f"No row of the task's {split} part has a label.")
    return LabeledRows({split: part}, columns=columns, left_out={split: len(parts[split]) - len(part.rows)})


def _split_column(rows: Sequence[Row]) -> str | None:
    """A column of a file without parts that says to which one each row belongs."""
    names = [name for name in rows[0][1] if plain_name(name) in SPLIT_COLUMNS] if rows else []
    parts = {name: {_part(row, name) for row in rows} for name in names}
    for name, found in parts.items():
        others = {str(row[1].get(name)) for row in rows if _part(row, name) is None}
        sure = plain_name(name) == "split" or len(found - {None}) > 1 or len(others) < 2  # else of cars, trains, ships
        if None not in found or ("train" in found and sure):
            return name
    return None


def _of_part(rows: Sequence[Row], column: str, split: str) -> list[Row]:
    return [row for row in rows if _part(row, column) == split]


def _of_no_part(rows: Sequence[Row], column: str) -> str:
    """How many rows the column gives to no part, and what it has there."""
    others = Counter(str(row[1].get(column) or "nothing") for row in rows if _part(row, column) is None)
    named = listed([shortened(name) for name in others], most=3)
    return f"; {others.total():,} rows of no part left out ({named})" if others else ""


def _part(row: Row, column: str) -> str | None:
    """The part that a row belongs to by a column."""
    cell = str(row[1].get(column)).strip().lower()
    return next((split for split, names in PART_NAMES.items() if cell in names), None)


def _labeled(task: Task, rows: Sequence[Row], problems: list[UserError]) -> Part:
    part = Part()
    for row in rows:
        try:
            if not task.is_ignored(row):
                part.examples.append(task.example(row))
                part.rows.append(row)
        except UserError as error:
            problems.append(error)
    return part


def _check_parts(
    task: Task, files: str | None, parts: dict[str, list[Row]], splits: Sequence[str], problems: Sequence[UserError]
) -> None:
    """Raises: UserError, a part is missing that cannot be made of training rows, or empty."""
    for split in splits:
        may_be_made = split != "train" and "train" in parts
        known = task.hub is not None and split in task.splits  # a published set has it
        if split in parts or (may_be_made and (split == "valid" or not known or (files and is_one_file(files)))):
            continue
        if split == "train" and "test" in parts and "valid" not in splits:  # of prompts: needed for examples alone
            continue
        named = f"no file at {files} is named '{task.splits.get(split, split)}'"
        without = f"set {typed.flag('data')} to a file or a folder of files, or hub in the task's YAML"
        raise UserError(f"The task has no {split} part: {named if files else without}.")
    for split, part in parts.items():
        if not part and not problems:
            raise UserError(f"The {split} part of the task holds no row; the first line of a table is its header.")
    if not any(parts.values()):
        raise_all(problems)


def _learn_labels(task: Task, rows: Sequence[Row]) -> None:
    """Takes the names of the labels from the rows that have one."""

    def has_names(row: Row) -> bool:
        try:
            if not task.is_ignored(row):
                task.names(row)
        except UserError:
            return False  # noted when it is made an example
        return True

    task.learn_labels([row for row in rows if has_names(row)])


def _check_label_names(task: Task, problems: list[UserError]) -> None:
    try:
        task.check_label_names()
    except UserError as error:
        problems.append(error)


def _split_off(task: Task, train: Part, split: str, *, of: str) -> tuple[Part, Part, str]:
    """Some of the training rows as another part, the rest, and how they were chosen.

    Args:
        of: what the training rows are called.

    Raises:
        UserError: the task says that there is no such part, or there are too few rows.
    """
    wanted, rows = getattr(task, f"{split}_rows"), len(train.examples)
    if not rows:
        raise UserError(f"The training part has no row that can be used: all are left out, {task.ignores}.")
    groups, strata = [task.group(example) for example in train.examples], task.strata(train.examples)
    if not wanted:
        name = {"valid": "validation"}.get(split, split)
        raise UserError(f"The task has no {name} part; set {split}_rows, to set training rows aside for it.")
    if wanted < 1:
        count = max(1, round(wanted * rows))
        chosen = stratified(groups, strata, count)
        if 2 * len(chosen) < count:  # of a few texts, many times each
            chosen = stratified(range(rows), strata, count)
        share = wanted if len(chosen) == count else len(chosen) / rows
        made = f"{100 * share:.3g}% of {of}" + ", stratified by label" * (len(set(strata)) > 1)
    else:
        count = min(int(wanted), max(1, rows // MOST_ASIDE))
        alone = groups == [example.content for example in train.examples]
        chosen = drawn(rows, count) if alone else stratified(groups, strata, count)
        made = "set aside from training"
        if wanted > count:
            made = f"{count:,} of {rows:,} training rows set aside: {split}_rows {wanted:,} is capped at a fifth"
    if not chosen and len(set(strata)) == rows > FEW:
        raise UserError(
            f"Each of the {rows} training rows has a label of its own, so none can be set aside for {split}; does "
            "`columns` in the task's YAML name the right one?"
        )
    if not 0 < len(chosen) < rows:
        raise UserError(f"The training part has {rows} rows, too few to set some aside for {split}.")
    return train.at(chosen), train.at(sorted(set(range(rows)) - set(chosen))), made
