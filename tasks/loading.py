"""A kind of task of the user's own: a Python file beside the task's YAML file."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from tasks.errors import UserError

LOADED: dict[str, Path] = {}  # modules of users -> their files


def load_kind(task: Any, *, beside: Path) -> None:
    """Loads the Python file of a kind of task: `class_path: MODULE.Class` is MODULE.py beside the YAML file.

    That file alone, by its path: with its folder on the import path, any other file there could take the place of a
    module that a library imports late.

    Args:
        task: the section `data.task`: the name of a class, or a mapping with it as `class_path`.
        beside: the YAML file.

    Raises:
        UserError: the file is called as another module is, cannot be imported, or has no such class.
    """
    module, _, kind = str(task if isinstance(task, str) else task.get("class_path")).rpartition(".")
    source = (beside.parent / f"{module}.py").resolve()
    if not module.isidentifier() or not source.is_file() or LOADED.get(module) == source:
        return
    if module not in LOADED:
        other = sys.modules.get(module) or importlib.util.find_spec(module)
        origin = getattr(other, "__file__", None) or getattr(other, "origin", None)
        if other is not None and (origin is None or Path(origin).resolve() != source):
            raise UserError(f"{source} is called as another module is; rename it, and its class_path in {beside}.")
    _load(module, source)
    if not hasattr(sys.modules[module], kind):
        del sys.modules[module]
        raise UserError(f"{source} has no {kind}, which {beside} names as its kind of task.")
    LOADED[module] = source


def _load(module: str, source: Path) -> None:
    spec = importlib.util.spec_from_file_location(module, source)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException as error:
        del sys.modules[module]
        if isinstance(error, (ImportError, SyntaxError)):
            raise UserError(f"{source} cannot be imported: {error}.") from None
        raise
