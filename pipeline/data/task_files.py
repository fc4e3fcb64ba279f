"""Which local files are the parts of a task's data: a folder of files, one file, or a pattern."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from glob import glob
from pathlib import Path

from pipeline.console import typed
from pipeline.data import files
from pipeline.data.tables import SUFFIXES, TABLES, kind_of, unreadable
from pipeline.errors import UserError
from pipeline.storage.paths import path_of
from tasks.dataset import SPLITS, DataSet, listed

SHARD = re.compile(r"-\d+-of-(\d+)[-.]")  # in the name of a part of a part
OTHER_NAMES = {"train": ("training",), "valid": ("validation", "val", "dev"), "test": ("testing", "eval")}
TEXT_TABLES = ("txt",)  # kinds of files that are other things more often than data


def is_one_file(location: str) -> bool:
    """Whether DATA= is a single file, which may hold all rows."""
    return path_of(location).is_file()


def files_of(task: DataSet, location: str, split: str) -> list[Path]:
    """The local files of a part: one, or its shards; a task of prompts alone takes all that there are.

    The training part is also a single file, or the only table of a folder, whose name says nothing of parts.

    Raises:
        UserError: it is not clear which of several.
    """
    if task.head is None:
        return named_files(location, task.splits[split]) if split in task.splits else []
    found = _part(task, location, split) if split in task.splits else []
    if split == "train" and not found and not any(_part(task, location, other) for other in SPLITS if other != split):
        found = _whole(location)
    shards = [match[1] for path in found if (match := SHARD.search(path.name))]
    if len(found) > 1 and len(shards) < len(found):
        names = listed(path.name for path in found)
        raise UserError(
            f"Which file is the {split} part in {location}? There are {names}; name one by {typed.flag('data')}, or "
            "call them train, valid and test (shards end in -00000-of-00002)."
        )
    if shards and len(shards) != int(shards[0]):
        raise UserError(f"The {split} part in {location} has {len(shards)} of {int(shards[0])} shards.")
    return found


def _part(task: DataSet, location: str, split: str) -> list[Path]:
    """The files that bear the name of a part best, by its name in the task or, without a hub, a common one."""
    name = task.splits.get(split)
    if name is None:
        return []
    found = named_files(location, name)
    best = min((how for path in found if (how := how_named(path.name, name)) is not None), default=None)
    if best is None and task.hub is None:
        for other in OTHER_NAMES[split]:
            exact = [path for path in named_files(location, other) if how_named(path.name, other) is not None]
            if exact and other not in task.splits.values():
                return exact
    if best is None and is_one_file(location):  # whose name only begins as that of a part
        return []
    return [path for path in found if how_named(path.name, name) == best]


def _whole(location: str) -> list[Path]:
    """The file or files of a data set without parts."""
    path = path_of(location)
    if path.is_file():
        files.check_plain(path)
        if kind_of(path) not in SUFFIXES:
            raise UserError(unreadable(path))
        return [path]
    found = named_files(location, "")
    return [path for path in found if kind_of(path) in TABLES] or [p for p in found if kind_of(p) not in TEXT_TABLES]


def how_named(file: str, name: str) -> int | None:
    """How a file bears the name of a part: 0 just so, 1 with a further ending, 2 as a shard, None: only begins so.

    Small and capital letters are the same.
    """
    file, name = file.lower(), name.lower()
    name, plain = name.rpartition("/")[2], file.removesuffix(".gz").removesuffix(".xz")
    if fnmatch(plain.rpartition(".")[0], name) or fnmatch(plain, name):
        return 0
    if fnmatch(file, f"{name}.*"):
        return 1
    return 2 if fnmatch(SHARD.split(file)[0], name) else None


def named_files(location: str, name: str) -> list[Path]:
    """The files of a folder, but hidden ones, or of a pattern, whose names begin with `name` or `NAME`.

    Raises:
        UserError: there is no such file, folder or pattern.
    """
    folder = path_of(location)
    if folder.is_dir():
        found = folder.glob(f"{in_any_case(name)}*")
        candidates = sorted(path for path in found if not files.is_hidden(path.relative_to(folder)))
    else:
        candidates = [folder] if folder.is_file() else sorted(map(Path, glob(str(folder))))
        if not candidates:
            raise UserError(f"There is no task data at {location}: no such file, folder or pattern.")
    for path in candidates:
        files.check_plain(path)
    last = name.rpartition("/")[2].lower()
    return [path for path in candidates if kind_of(path) in SUFFIXES and fnmatch(path.name.lower(), f"{last}*")]


def in_any_case(pattern: str) -> str:
    """A pattern that small and capital letters fit alike, unless it has sets of characters itself."""
    if "[" in pattern:
        return pattern
    return "".join(f"[{letter.lower()}{letter.upper()}]" if letter.isalpha() else letter for letter in pattern)


def oddly_named(task: DataSet, location: str) -> dict[str, list[str]]:
    """Parts that are read from files whose names only begin as theirs do."""
    odd = {}
    for split, name in task.splits.items():
        names = (name, *OTHER_NAMES[split])
        found = [path.name for path in _part(task, location, split)]
        odd[split] = [file for file in found if all(how_named(file, name) is None for name in names)]
    return {split: found for split, found in odd.items() if found}
