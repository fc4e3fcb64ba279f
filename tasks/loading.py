"""A kind of task of the user's own: a Python file beside the task's YAML file."""

from __future__ import annotations

import importlib.util
import inspect
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
        UserError: the file has the name of another module, cannot be imported, or has no such class, or one of a former
            version.
    """
    module, _, kind = str(task if isinstance(task, str) else task.get("class_path")).rpartition(".")
    source = (beside.parent / f"{module}.py").resolve()
    if not module.isidentifier() or not source.is_file() or LOADED.get(module) == source:
        return
    if module not in LOADED:
        other = sys.modules.get(module) or importlib.util.find_spec(module)
        origin = getattr(other, "__file__", None) or getattr(other, "origin", None)
        if other is not None and (origin is None or Path(origin).resolve() != source):
            raise UserError(f"{source} has the name of another module; rename it, and its class_path in {beside}.")
    _load(module, source)
    if not hasattr(sys.modules[module], kind):
        del sys.modules[module]
        raise UserError(f"{source} has no {kind}, which {beside} names as its kind of task.")
    try:
        _check_example(getattr(sys.modules[module], kind), source)
    except UserError:
        del sys.modules[module]
        raise
    LOADED[module] = source


def _check_example(kind: Any, source: Path) -> None:
    """Raises: UserError, the kind's `example` has a second argument, the labels' indices, as before version 0.14."""
    example = getattr(kind, "example", None)
    if example is None:
        return
    needed = [p for p in inspect.signature(example).parameters.values() if p.default is p.empty]
    if len(needed) > 2:
        raise UserError(
            f"{source}: {kind.__name__}.example must take the row alone, example(self, row), since version 0.14; "
            "self.label(row) is the row's label."
        )


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
