"""Errors that the command line maps to exit statuses."""

from __future__ import annotations

from tasks.errors import UserError

__all__ = ["Interrupted", "UserError"]


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGUSR1 in training: a checkpoint has been written. Exit status 130."""
