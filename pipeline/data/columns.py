"""Which columns of a table are those of a task: named, guessed by their content, or asked for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.console import typed
from pipeline.errors import UserError
from tasks.base import Task
from tasks.dataset import Row, listed
from tasks.guess import Table


def resolve_columns(task: Task, rows: Sequence[Row]) -> dict[str, str]:
    """Finds the columns of a task that names none, by their content.

    Returns:
        Role -> column, where it is not the one that the task names.

    Raises:
        UserError: it is not clear which these are; lists them, and what to write into the YAML file.
    """
    known = {name for _, row in rows[:1000] for name in row}
    missing = [role for role, name in task.columns.items() if name not in known and role not in known]
    if not missing or 0 in known or not rows:  # numbered columns of CoNLL
        return {role: role for role, name in task.columns.items() if known and name not in known and role in known}
    table = Table([row for _, row in rows])
    check_header(table, rows[0][0])
    before = task.columns
    guessed = type(task).guess_columns(table) if before == task.default_columns() else None
    if guessed is None:
        source = rows[0][0].rpartition(", ")[0]
        named = before != task.default_columns()
        raise UserError(no_column(table, source, before, missing[0]) if named else which_columns(table, source, before))
    task.take_columns(guessed)
    return {role: name for role, name in guessed.items() if before.get(role) != name}


def check_header(table: Table, place: str) -> None:
    """Raises: UserError, the first line is a row of data."""
    if (name := table.headless) is not None:
        raise UserError(
            f"{place.rpartition(', ')[0]} seems to have no header: '{name}' is the name of a column in its first line, "
            "and a value of it below; write a first line that names the columns, as text,label."
        )


def no_column(table: Table, source: str, columns: Mapping[str, str], role: str) -> str:
    """Says that a table has not the column that a task names for a role."""
    name = columns[role]
    close = difflib.get_close_matches(name, map(str, table.names), n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    there = listed(name or "without a name" for name in table.names)
    makes = f"; `{typed.command('new-task', name_='NAME', data=source)}` makes a task of these data"
    return (
        f"{source} has no column '{name}', which the task reads as its {role}; it has {there}.{meant} Correct "
        f"`columns` in the task's YAML file{makes if Path(source).exists() else ''}."
    )


def which_columns(table: Table, source: str, columns: Mapping[str, str]) -> str:
    """Asks which columns of a table are those of a task, and says where to write them."""
    texts = [column.name for column in table.columns if column.is_text]
    guessed = {"text": table.text(), "label": table.label(*texts), "score": table.number()}
    lines = ", ".join(f"{role}: {guessed.get(role) or '...'}" for role in columns)
    unclear = f"it is not clear which of them are {' and '.join(columns)}"
    return (
        f"{source} has the columns {listed(name or 'without a name' for name in table.names)}, and {unclear}: "
        f"write `columns: {{{lines}}}` with the right names under data.task.init_args of the task's YAML file."
    )
