"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.errors import UserError
from pipeline.storage.atomic import is_disk_full, reason
from pipeline.storage.checksums import seal


def remove(path: Path) -> None:
    """Removes a file, folder or link if it exists; the target of a link is left alone."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Writes a folder atomically: under a temporary name, with checksums, then renamed over an older one.

    Args:
        write: makes the folder that it is given and writes its files.

    Raises:
        UserError: the disk is full; the older folder is unchanged.
    """
    aside, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    if old.is_dir() and not old.is_symlink() and not os.path.lexists(folder):
        old.rename(folder)  # an earlier process was killed between the two renames below
    remove(aside)
    remove(old)
    try:
        write(aside)
        seal(aside)
        if os.path.lexists(folder):
            folder.rename(old)
        aside.rename(folder)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_disk_full(error):
            raise UserError(f"{folder} could not be written: {reason(error)}.") from None
        raise
    remove(old)
