"""What the runs of a table were made with: version, precision and device, where they have recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CONDITIONS = ("version", "precision", "device")  # of a run, where its metrics have them
UNKNOWN = "not recorded"
Runs = Sequence[Mapping[str, Any]]  # those of a line of a table


def differing(lines: Sequence[Runs]) -> list[str]:
    """The conditions in which lines differ: a table has a column for each."""
    return [name for name in CONDITIONS if len({value_of(runs, name) for runs in lines}) > 1]


def value_of(runs: Runs, name: str) -> str:
    """A condition of some runs, as their versions from the first to the last."""
    known = {str(run[name]) for run in runs if run.get(name)}
    whole = all(run.get(name) for run in runs)
    return ", ".join([*sorted(known, key=_in_order), *([] if whole else [UNKNOWN])])


def sentences(lines: Sequence[Runs]) -> list[str]:
    """What all lines were made with, and a warning where they differ."""
    columns = differing(lines)
    same = {name: value_of(lines[0], name) for name in CONDITIONS if name not in columns} if lines else {}
    known = [f"{name} {value}" for name, value in same.items() if value != UNKNOWN]
    found = [f"All rows: {', '.join(known)}."] if known else []
    if columns:
        named = " and ".join(filter(None, [", ".join(columns[:-1]), columns[-1]]))
        found.append(f"Rows differ in {named}: compare them with care.")
    if missing := [name for name, value in same.items() if value == UNKNOWN]:
        found.append(f"Not recorded by these runs: {', '.join(missing)}.")
    return found


def _in_order(value: str) -> list[tuple[int, str]]:
    """Numbers in a version by size: 0.9 before 0.10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in value.split(".")]
