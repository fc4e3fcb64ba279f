"""Locks between processes. The system releases the locks of a process that ends, so a killed run blocks nobody."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


class Held(Exception):
    """Another process holds the lock."""


def lock(file: Path, *, waiting: str | None = None) -> FileLock:
    """Takes the lock of a file, which is made if it does not exist.

    Args:
        waiting: printed when another process holds the lock, and then waited for; None: do not wait.

    Raises:
        Held: another process holds the lock, and `waiting` is None.
        OSError: the file cannot be made.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    taken = FileLock(file, is_singleton=True)
    try:
        taken.acquire(timeout=0 if waiting is None else 0.1)
    except Timeout:
        if waiting is None:
            raise Held from None
        print(waiting, file=sys.stderr)
        taken.acquire()
    return taken


@contextlib.contextmanager
def built_once(path: Path, what: str) -> Iterator[None]:
    """Of two processes that need the same file or folder of the cache, one builds it while the other waits.

    Args:
        path: what is built; its lock file is beside it.
        what: its name in the message.
    """
    taken = lock(path.with_name(f".{path.name}.lock"), waiting=f"Another run builds {what}; waiting for it.")
    try:
        yield
    finally:
        taken.release()
