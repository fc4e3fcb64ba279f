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

from pipeline.errors import UserError

SUMS = "SHA256SUMS"  # of a folder's files, as `sha256sum -c` reads them
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}


def write_atomically(path: Path, text: str) -> None:
    """Writes aside, then renames: the file appears whole or not at all."""
    with written_atomically(path) as file:
        file.write(text)


@contextlib.contextmanager
def written_atomically(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """As `write_atomically`, for what comes in pieces.

    Raises:
        OSError: it cannot be written; names the file also where the system does not, as on a full disk.
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
    """Opens a new file in place of what is there: a link is replaced, what it points to stays as it is."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, 0o666), mode, encoding=None if "b" in mode else "utf-8")


def remove(path: Path) -> None:
    """Removes a file, a folder or a link, which is not followed, if it is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """A folder that appears whole or not at all: written aside, sealed, then renamed over an old one.

    Raises:
        UserError: it cannot be written; what was there before is as it was.
    """
    aside, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    if old.is_dir() and not old.is_symlink() and not os.path.lexists(folder):
        old.rename(folder)  # killed between the two renames below
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
        if is_no_room(error):
            raise UserError(f"{folder} could not be written: {reason(error)}.") from None
        raise
    remove(old)


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
    """Writes the checksums of a folder's files into it; gives these the permissions that any new file has here."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    write_atomically(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in names))
    mode = (folder / SUMS).stat().st_mode & 0o777
    for name in names:  # safetensors would keep its files to their owner, whatever the umask
        (folder / name).chmod(mode)


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
    """Where token stores and tokenizers are kept: $PIPELINE_CACHE if it is set and not empty, or .cache here."""
    return path_of(os.environ.get("PIPELINE_CACHE") or ".cache")


SAMPLES, SAMPLE = 16, 1 << 16  # most blocks of a file, and bytes of each, that are read every time
SPAN = 1 << 22  # bytes of a file that have a block of their own, up to so many blocks


def file_hash(path: Path, *, verify: bool = False) -> str:
    """SHA-256 of a file's content; it is remembered, unless the file is small, since a corpus can be large.

    It is remembered by path, size and time of change, and with the hash of sample blocks: the first, the last and, of
    large files, some between. Those are read each time, so that not every change of equal size and time passes unseen.

    Args:
        verify: read the whole file again.
    """
    status = path.stat()
    if status.st_size <= 2 * SAMPLE:  # its samples would be all of it
        return sha256(path)
    memory = cache_folder() / "hashes" / digest(str(path.resolve()), status.st_size, status.st_mtime_ns)
    samples = _sample_hash(path, status.st_size)
    known = memory.read_text(errors="replace").split() if memory.is_file() and not verify else []
    if len(known) == 2 and known[1] == samples:
        return known[0]
    value = sha256(path)
    write_atomically(memory, f"{value} {samples}")
    return value


def _sample_hash(path: Path, size: int) -> str:
    value, samples = hashlib.sha256(), min(SAMPLES, max(2, -(-size // SPAN)))
    with open(path, "rb") as file:
        for number in range(samples):
            file.seek(number * (size - SAMPLE) // (samples - 1))
            value.update(file.read(SAMPLE))
    return value.hexdigest()


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
