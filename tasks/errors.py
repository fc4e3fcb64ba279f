"""What a user can put right. Defined here, as this package imports nothing of the pipeline."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right: shown as one plain sentence, exit status 2, no traceback."""


class TaskError(UserError, ValueError):
    """A task's YAML says what cannot be; its reader names the file."""
