"""What the runs of a table were made with: version, precision and device, where they have recorded it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CONDITIONS = ("version", "precision", "device")  # of a run, where its metrics have them
UNKNOWN = "not recorded"
Runs = Sequence[Mapping[str, Any]]  # those of a line of a table, or those that are compared with each other


def differing(lines: Sequence[Runs]) -> list[str]:
    """The conditions in which lines differ: a table has a column for each."""
    return [name for name in CONDITIONS if len({value_of(runs, name) for runs in lines}) > 1]


def unequal(pairs: Iterable[Runs], names: Sequence[str] = CONDITIONS) -> list[str]:
    """Of some names those in which runs differ that are compared with each other, as both arms of a seed."""
    compared = list(pairs)
    return [name for name in names if any(len({run.get(name) for run in runs}) > 1 for runs in compared)]


def value_of(runs: Runs, name: str) -> str:
    """A condition of some runs, as their versions from the first to the last."""
    known = {str(run[name]) for run in runs if run.get(name)}
    whole = bool(runs) and all(run.get(name) for run in runs)
    return ", ".join([*sorted(known, key=_in_order), *([] if whole else [UNKNOWN])])


def sentences(lines: Sequence[Runs], apart: Sequence[str] = ()) -> list[str]:
    """What all lines were made with, and a warning where they differ.

    Args:
        apart: in what runs differ whose difference is shown, see `unequal`.
    """
    columns = differing(lines)
    same = {name: value_of(lines[0], name) for name in CONDITIONS if name not in columns} if lines else {}
    known = [f"{name} {value}" for name, value in same.items() if value != UNKNOWN]
    found = [f"All rows: {', '.join(known)}."] if known else []
    if columns:
        found.append(f"Rows differ in {_listed(columns)}: compare them with care.")
    if within := [name for name in apart if name not in columns]:
        found.append(f"Some runs of the same seed differ in {_listed(within)}: take their difference with care.")
    if missing := [name for name, value in same.items() if value == UNKNOWN]:
        found.append(f"Not recorded by these runs: {', '.join(missing)}.")
    return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _in_order(value: str) -> list[tuple[int, str]]:
    """Numbers in a version by size: 0.9 before 0.10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in value.split(".")]
