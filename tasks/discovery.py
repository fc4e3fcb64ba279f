"""What is found by its place: the modules of a package, and what a dotted path names."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
import traceback
from importlib.machinery import FileFinder
from importlib.util import find_spec
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from types import ModuleType
from typing import Any

from tasks.errors import UserError


def modules_of(package: str) -> list[ModuleType]:
    """The modules of a package, without those that cannot be imported: of these a warning is printed, and the others
    serve all the same."""
    found = []
    for part in pkgutil.iter_modules(importlib.import_module(package).__path__):
        try:
            found.append(importlib.import_module(f"{package}.{part.name}"))
        except Exception as error:
            assert isinstance(part.module_finder, FileFinder)
            place = Path(part.module_finder.path) / part.name
            file = place / "__init__.py" if part.ispkg else place.with_suffix(".py")
            _warn(f"Warning: {_why(file, error)} The file is left out.")
    return found


def located(path: str) -> Any:
    """What a dotted path names; None: nothing.

    Raises:
        UserError: its file is there, but cannot be imported.
    """
    try:
        return locate(path)
    except ErrorDuringImport as error:  # whose `filename` may be a dotted name
        spec = None if Path(error.filename).is_file() else find_spec(error.filename)
        file = Path(error.filename if spec is None or spec.origin is None else spec.origin)
        raise UserError(_why(file, error.value)) from error.value


@functools.cache  # said once
def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _why(file: Path, error: BaseException | None) -> str:
    """Why a file cannot be imported, with the line of it where that failed."""
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    said = str(error)
    if isinstance(error, SyntaxError):
        said = error.msg
        lines = [error.lineno] if error.filename == str(file) else lines
    where = f"{file}, line {lines[-1]}" if lines else str(file)
    return f"{where}: {type(error).__name__}: {said}".rstrip(".") + "."
