"""What a user can put right. Defined here, as this package imports nothing of the pipeline."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: shown as one plain sentence, exit status 2, no traceback."""


class RowError(UserError):
    """Something wrong with one row of a data set: these are collected, and shown together.

    Args:
        place: of the row, as "dev.tsv, line 3".
        problem: what is wrong with it, without a full stop.
        kind: what such rows have, to count them: "an empty text".
    """

    def __init__(self, place: str, problem: str, *, kind: str) -> None:
        super().__init__(f"{place} {problem}.")
        self.place = place
        self.kind = kind


class TaskError(UserError, ValueError):
    """A task's YAML says what cannot be; its reader names the file."""
