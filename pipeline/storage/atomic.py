"""Atomic writes: a file is written under a temporary name beside its place, then renamed, so it is whole or absent.

`folders.write_folder` does the same for a folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with open_atomically(path) as file:
        file.write(text)


def write_json(path: Path, value: Any, *, indent: int | None = 2, **options: Any) -> None:
    """Writes a value as a JSON file atomically; `options` are those of json.dumps.

    Raises:
        OSError: the file cannot be written.
    """
    write_atomically(path, json.dumps(value, indent=indent, **options) + "\n")


@contextlib.contextmanager
def open_atomically(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Opens a file for writing; it replaces an older one when the block ends without an error.

    Raises:
        OSError: the file cannot be written. `filename` is set even where the system leaves it out, as on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new_file(aside, mode) as file:
            yield file
        os.replace(aside, path)
    except OSError as error:
        if error.filename in (None, str(aside)) and error.errno is not None:
            error.filename = str(path)
        raise
    finally:
        aside.unlink(missing_ok=True)


def new_file(path: Path, mode: str = "w") -> IO[Any]:
    """Opens a new file; an old file or link of that name is removed, and a link's target is left alone."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o666), mode, encoding=None if "b" in mode else "utf-8")


def is_disk_full(error: BaseException) -> bool:
    """Whether a write failed because of the disk: full, over quota, read-only. NumPy, torch and safetensors have their
    own errors for it."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM or (error.errno is None and "written" in str(error))  # NumPy's has no number
    text = str(error)  # torch and safetensors
    numbers = [f"os error {number})" for number in NO_ROOM]
    return any(sign in text for sign in ("No space left", "File too large", "file write failed", *numbers))


def reason(error: BaseException) -> str:
    """The operating system's message for an error, else the first line of the library's, else the name of its class."""
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class where it has none; without a full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
