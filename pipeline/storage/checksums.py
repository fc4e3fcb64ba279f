"""Checksums: `SHA256SUMS` of a folder, hashes of files and values, and a cache of the hashes of large files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically
from pipeline.storage.paths import cache_folder

SUMS = "SHA256SUMS"  # checksums of a folder's files, in the format of `sha256sum -c`


def sha256(path: Path) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(*parts: Any) -> str:
    """SHA-256 of JSON values; anything else counts by its `str`."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


# ---------------------------------------------------------------------- a folder


def seal(folder: Path) -> None:
    """Writes `SHA256SUMS` into a folder, and gives all its files the permissions of a newly made one."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != SUMS)
    write_atomically(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in names))
    mode = (folder / SUMS).stat().st_mode & 0o777
    for name in names:  # safetensors makes files that only their owner can read, whatever the umask
        (folder / name).chmod(mode)


def damage(folder: Path, hash_of: Callable[[Path], str]) -> str | None:
    """The first file that does not fit `SHA256SUMS`, as a sentence; None if all fit, or there is no such file."""
    sums = folder / SUMS
    if not sums.is_file():
        return None
    for line in sums.read_text(encoding="utf-8", errors="replace").splitlines():
        expected, _, name = line.partition("  ")
        if len(expected) != 64 or not name:  # another tool's, in another format
            continue
        if not (folder / name).is_file():
            return f"{folder / name} is missing."
        if hash_of(folder / name) != expected:
            return f"{folder / name} is damaged: its checksum differs from the one in {SUMS}."
    return None


def unsealed(folder: Path, hash_of: Callable[[Path], str]) -> str | None:
    """As `damage`, of a folder that has a `SHA256SUMS`: that it is missing is damage too."""
    return damage(folder, hash_of) if (folder / SUMS).is_file() else f"{folder / SUMS} is missing."


def check_seal(folder: Path) -> None:
    """Compares a folder's files with its `SHA256SUMS`.

    Raises:
        UserError: a file is missing, damaged or edited.
    """
    if why := damage(folder, sha256):
        hint = f"if you changed it on purpose, delete {folder / SUMS}"
        raise UserError(f"{why} Restore it or make the folder again; {hint}.")


# ---------------------------------------------------------------------- a cache of hashes

SAMPLES, SAMPLE = 16, 1 << 16  # blocks of a file that are read every time, at most, and bytes of each
SPAN = 1 << 22  # one block for this many bytes of a file, up to SAMPLES


def file_hash(path: Path, *, verify: bool = False) -> str:
    """SHA-256 of a file; that of a large one is cached, since a corpus can be many gigabytes.

    The key of the cache is the path, size and modification time. The hash of sample blocks (the first, the last, and
    of large files some between) is cached too and compared on every call, so that most changes are noticed which keep
    size and time.

    Args:
        verify: read the whole file, whatever the cache says.
    """
    status = path.stat()
    if status.st_size <= 2 * SAMPLE:  # the sample blocks would be all of it
        return sha256(path)
    entry = cache_folder() / "hashes" / digest(str(path.resolve()), status.st_size, status.st_mtime_ns)
    samples = _sample_hash(path, status.st_size)
    known = entry.read_text(errors="replace").split() if entry.is_file() and not verify else []
    if len(known) == 2 and known[1] == samples:
        return known[0]
    value = sha256(path)
    write_atomically(entry, f"{value} {samples}")
    return value


def _sample_hash(path: Path, size: int) -> str:
    value, samples = hashlib.sha256(), min(SAMPLES, max(2, -(-size // SPAN)))
    with open(path, "rb") as file:
        for number in range(samples):
            file.seek(number * (size - SAMPLE) // (samples - 1))
            value.update(file.read(SAMPLE))
    return value.hexdigest()
