"""Files and folders that appear whole or not at all, with checksums, and locks between runs."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from pipeline import UserError

SUMS = "SHA256SUMS"  # of a folder's files, as `sha256sum -c` reads them
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def write_atomically(path: Path, text: str) -> None:
    """Writes aside, then renames: the file appears whole or not at all."""
    with written_atomically(path) as file:
        file.write(text)


@contextlib.contextmanager
def written_atomically(path: Path) -> Iterator[IO[str]]:
    """As `write_atomically`, for what comes in pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            yield file
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """A folder that appears whole or not at all: written aside, sealed, then renamed over an old one.

    Raises:
        UserError: it cannot be written; what was there before is as it was.
    """
    aside, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    if old.exists() and not folder.exists():
        old.rename(folder)  # killed between the two renames below
    shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    try:
        write(aside)
        seal(aside)
        if folder.exists():
            folder.rename(old)
        aside.rename(folder)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        if is_no_room(error):
            raise UserError(f"{folder} could not be written: {reason(error)}.") from None
        raise
    shutil.rmtree(old, ignore_errors=True)


def is_no_room(error: BaseException) -> bool:
    """Whether a write failed for the disk's sake; libraries tell of a full disk in errors of their own."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM or (error.errno is None and "written" in str(error))  # numpy's
    text = str(error)  # of torch and safetensors
    return any(sign in text for sign in ("No space left", "File too large", "file write failed", "os error 28"))


def reason(error: BaseException) -> str:
    """What the system said, in its own words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0].rstrip(".")


# ---------------------------------------------------------------------- checksums


def seal(folder: Path) -> None:
    """Writes the checksums of a folder's files into it."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    write_atomically(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in names))


def damage(folder: Path, hash_of: Callable[[Path], str]) -> str | None:
    """What is wrong with a folder by its checksums, as a sentence; None too where it has none, being another's."""
    sums = folder / SUMS
    if not sums.is_file():
        return None
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        if len(expected) != 64 or not name:  # another's, in another form
            continue
        if not (folder / name).is_file():
            return f"{folder / name} is missing."
        if hash_of(folder / name) != expected:
            return f"{folder / name} is damaged: it has another checksum than the one in {SUMS}."
    return None


def check_seal(folder: Path) -> None:
    """Compares a folder's files with its checksums.

    Raises:
        UserError: a file is missing, damaged or edited.
    """
    if why := damage(folder, sha256):
        hint = f"if you changed it on purpose, delete {folder / SUMS}"
        raise UserError(f"{why} Restore it or make the folder anew; {hint}.")


def sha256(path: Path) -> str:
    value = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value.update(block)
    return value.hexdigest()


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def path_of(text: str) -> Path:
    """A path; `~` is the user's folder, as in a shell, and `~nobody` a plain name where there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 (pathlib's fails there)


def cache_folder() -> Path:
    """Where token stores and tokenizers are kept: $PIPELINE_CACHE, or .cache here."""
    return Path(os.environ.get("PIPELINE_CACHE", ".cache"))


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content; remembered by path, size and time of change, since a corpus can be large."""
    status = path.stat()
    memory = cache_folder() / "hashes" / digest(str(path.resolve()), status.st_size, status.st_mtime_ns)
    if memory.exists():
        return memory.read_text()
    value = sha256(path)
    write_atomically(memory, value)
    return value


# ---------------------------------------------------------------------- locks


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """One run at a time: of two that begin on the same corpus, one builds and the other waits.

    The lock goes with the process that holds it, so a killed run leaves nothing locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        print(f"Another run builds {what}; waiting for it.", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
