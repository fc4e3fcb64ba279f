"""Heads: the networks that tasks put on an encoder, one file each; a kind of task names its head by the file."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from pipeline.errors import UserError
from pipeline.finetuning.heads.base import Head


def head_class(name: str) -> type[Head]:
    """The head that `heads/NAME.py` defines.

    Raises:
        UserError: there is none.
    """
    place = f"{__name__}.{name}"
    if not name.isidentifier() or find_spec(place) is None:
        raise UserError(f"There is no head '{name}': no file {name}.py in pipeline/finetuning/heads.")
    defined = (value for value in vars(importlib.import_module(place)).values() if isinstance(value, type))
    found = [cls for cls in defined if issubclass(cls, Head) and cls.__module__ == place]
    if len(found) != 1:
        raise UserError(f"There is no head '{name}': pipeline/finetuning/heads/{name}.py defines {len(found)} heads.")
    return found[0]
