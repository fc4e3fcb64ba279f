"""Where the rows of a labeled data set come from: local files, the sample, the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pipeline.data import hub
from pipeline.data.delimited import Refuse, refuse
from pipeline.data.parallel import parallel_files, parallel_rows
from pipeline.data.synthetic.tasks import SYNTHETIC, synthetic_rows
from pipeline.data.tables import kind_of, read_rows
from pipeline.data.task_files import files_of
from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash
from tasks.dataset import SPLITS, DataSet, Row


def public_name(task: DataSet, files: str | None) -> str | None:
    """The name of the public data set of the hub that a task's rows are read from; None: they are from elsewhere."""
    return None if files is not None or task.hub is None else hub.public_name(task.hub)


def is_public(task: DataSet, files: str | None) -> bool:
    """Whether everybody can read a task's texts: those of the synthetic world, or of a public data set of the hub."""
    return files is None and (task.hub is None or public_name(task, files) is not None)


def rows_of(task: DataSet, files: str | None, split: str, refuse: Refuse = refuse) -> list[Row] | None:
    """The rows of a part, from local files, the sample or the hub; None where there is no such part.

    Raises:
        UserError: they cannot be found or read.
    """
    if files is not None:
        if task.parallel and (pairs := parallel_rows(task, files, split)) is not None:
            return pairs
        found = files_of(task, files, split)
        return [row for file in found for row in read_rows(file, refuse)] if found else None
    if task.sample is not None:
        return _rows_of_sample(task.sample, split)
    if split not in task.splits or task.hub is None:
        return None
    if "path" not in task.hub:
        raise UserError("The task's hub has no path, which names the data set there.")
    return _rows_of_hub(task, task.hub_splits.get(split, task.splits[split]))


def _rows_of_sample(name: str, split: str) -> list[Row]:
    if name not in SYNTHETIC:
        raise UserError(f"There is no sample '{name}'; there are {', '.join(SYNTHETIC)}.")
    rows = enumerate(synthetic_rows(name, split), start=1)
    return [(f"the sample's {split} part, row {number}", row) for number, row in rows]


def _rows_of_hub(task: DataSet, split: str) -> list[Row]:
    """The rows of a split, of all configurations that the task names."""
    assert task.hub is not None
    found: list[Row] = []
    for address in hub.configurations(**task.hub):
        rows = hub.open_hub(**address, split=split)
        if task.head is not None:  # the answer to a prompt is a number
            rows = with_label_names(rows)
        origin = "/".join([address["path"], *([address["name"]] if "name" in address else [])])
        found += [(f"{origin} ({split}), row {number}", row) for number, row in enumerate(rows, start=1)]
    return found


def source_hash(task: DataSet, files: str | None) -> str | None:
    """A hash of the local files of a task and how they are read, or of the sample's rows; None: another source."""
    if files is None:
        return None if task.sample is None else _hash_of_sample(task.sample)
    paths = [parallel_files(task, files, split) or files_of(task, files, split) for split in SPLITS]
    kinds = [[kind_of(path) for path in part] for part in paths]
    other = [kinds] if any("csv" in part for part in kinds) else []  # a .tsv of the same bytes has other cells
    return digest([[file_hash(path) for path in part] for part in paths], *other)


@cache
def _hash_of_sample(name: str) -> str:
    """A grid asks for it several times a run."""
    return digest([_rows_of_sample(name, split) for split in SPLITS])


def with_label_names(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Rows of a data set of the hub, with the names of labels that it keeps as numbers."""
    from datasets import ClassLabel  # takes a while

    named = {}
    for column, feature in (rows.features or {}).items():
        inner = getattr(feature, "feature", feature)  # of a list
        if isinstance(inner, ClassLabel):
            named[column] = dict(enumerate(inner.names))
    for row in rows:
        changed = {}
        for column, names in named.items():
            value = row[column]
            changed[column] = [names.get(v, v) for v in value] if isinstance(value, list) else names.get(value, value)
        yield {**row, **changed}
