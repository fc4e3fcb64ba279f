"""Heads: what answers tasks on an encoder, one file each; a kind of task names its head by the file."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from pipeline.errors import UserError
from pipeline.finetuning.heads.base import Head
from pipeline.models.base import Learning
from tasks.discovery import modules_of


def head_class(name: str) -> type[Head]:
    """The head that `heads/NAME.py` defines.

    Raises:
        UserError: there is none.
    """
    if not name.isidentifier() or find_spec(f"{__name__}.{name}") is None:
        raise UserError(f"There is no head '{name}': no file {name}.py in pipeline/finetuning/heads.")
    found = _defined(name)
    if len(found) != 1:
        raise UserError(f"There is no head '{name}': pipeline/finetuning/heads/{name}.py defines {len(found)} heads.")
    return found[0]


def _defined(name: str) -> list[type[Head]]:
    place = f"{__name__}.{name}"
    classes = (value for value in vars(importlib.import_module(place)).values() if isinstance(value, type))
    return [cls for cls in classes if issubclass(cls, Head) and cls.__module__ == place]


def head_for(name: str, learning: Learning) -> str | None:
    """The head that a kind of task names, or the one that takes its place for encoders that learn otherwise, if any."""
    if head_class(name).learning == learning:
        return name
    others = [module.__name__.rpartition(".")[2] for module in modules_of(__name__)]
    return next(
        (other for other in others for cls in _defined(other) if (cls.replaces, cls.learning) == (name, learning)), None
    )
