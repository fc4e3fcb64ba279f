"""Errors that the command line maps to exit statuses."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.errors import UserError

__all__ = ["Diverged", "Interrupted", "UserError", "check_choice", "is_out_of_memory"]

# What Python, torch (its allocators, CUDA and its products) and tokenizers say when memory runs out.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "Cannot allocate memory", "STATUS_ALLOC_FAILED")


class Diverged(UserError):
    """A loss or a gradient is not finite."""


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGUSR1 in training: a checkpoint has been written. Exit status 130.

    Its text, if it has one, is what continues the run: --resume, unless it is something else.
    """


def check_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raises: UserError, a setting is none of the known values; Python does not check a Literal."""
    if value not in (values := list(known)):
        raise UserError(f"{name} must be one of {', '.join(values)}, not {value}.")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, the processor's or a GPU's."""
    return isinstance(error, MemoryError) or any(sign in repr(error) for sign in OUT_OF_MEMORY)
