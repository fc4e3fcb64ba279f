"""Parallel files: line i of `train.en` is translated in line i of `train.de`, compressed or not."""

from __future__ import annotations

from pathlib import Path

from pipeline.data import files
from pipeline.data.tables import kind_of
from pipeline.data.task_files import OTHER_NAMES
from pipeline.errors import UserError
from pipeline.storage.paths import path_of
from tasks.dataset import DataSet, Row, listed


def parallel_files(task: DataSet, location: str, split: str) -> list[Path]:
    """The files of a part, one for each column of the task: those of a folder with the columns as endings; [] if none.

    Raises:
        UserError: there are some of them, and not all; or two of a name.
    """
    folder = path_of(location)
    if not (task.parallel and split in task.splits and folder.is_dir()):
        return []
    columns = list(task.columns.values())
    for name in (task.splits[split], *(OTHER_NAMES[split] if task.hub is None else ())):
        there = {column: _named(folder, f"{name}.{column}") for column in columns}
        found = [path for paths in there.values() for path in paths]
        if twice := next((paths for paths in there.values() if len(paths) > 1), None):
            raise UserError(f"Which file is to be read? {folder} has {listed(path.name for path in twice)}.")
        if len(found) == len(columns):
            return found
        if found:
            [missing, *_] = [column for column, paths in there.items() if not paths]
            endings = sorted({kind_of(path) for path in folder.glob(f"{name}.*")})
            raise UserError(
                f"{folder} has {found[0].name} and no {name}.{missing}: its {name} is in {listed(endings)}. Set the "
                "columns of the task to two of them."
            )
    return []


def _named(folder: Path, name: str) -> list[Path]:
    paths = [folder / name, *(folder / f"{name}{ending}" for ending in files.COMPRESSIONS)]
    return [path for path in paths if path.is_file()]


def parallel_rows(task: DataSet, location: str, split: str) -> list[Row] | None:
    """The rows of a part; None where no parallel files are there.

    Raises:
        UserError: they have different numbers of lines, or cannot be read.
    """
    paths = parallel_files(task, location, split)
    if not paths:
        return None
    columns = list(task.columns.values())
    texts = [[line.strip() for line in files.read_lines(path, [0], whole=True)] for path in paths]
    sizes = [len(lines) for lines in texts]
    if len(set(sizes)) > 1:
        counts = " and ".join(f"{path} has {size:,} lines" for path, size in zip(paths, sizes, strict=True))
        raise UserError(f"{counts}: line by line one must be the translation of the other.")
    return [
        (f"{paths[0]}, line {number}", dict(zip(columns, line, strict=True)))
        for number, line in enumerate(zip(*texts, strict=True), start=1)
    ]
