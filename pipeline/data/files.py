"""Text files: which ones a path, folder or pattern names, their split, and their lines, compressed or not."""

from __future__ import annotations

import glob
import gzip
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline.errors import UserError
from pipeline.storage.paths import path_of

FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
MAX_LINE = 1 << 20  # bytes; a longer line is read in parts, so that no line can fill the memory
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)  # raised for a damaged archive


def format_of(path: Path, languages: Collection[str]) -> str | None:
    """`.txt` or `.jsonl`, compressed by `.gz` or `.xz` too, or `.parquet`; None for any other format.

    Args:
        languages: names as en or en_XX: `train.en` is text too.
    """
    name = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    if any(name.suffix in (f".{language}", f".{language.partition('_')[0]}") for language in languages):
        return ".txt"
    suffix = name.suffix.lower()
    return suffix if suffix in FORMATS and (name == path or suffix != ".parquet") else None


def find_files(location: str) -> list[Path]:
    """The text files that a path, folder or glob pattern names, sorted.

    Raises:
        UserError: there is no text file.
    """
    return find_and_ignore(location)[0]


def find_and_ignore(location: str, languages: Collection[str] = ()) -> tuple[list[Path], list[Path]]:
    """As `find_files`, and the files there in other formats; `languages` as in `format_of`.

    Raises:
        UserError: there is no text file.
    """
    path, named = path_of(location), _named_files(location)
    if texts := [file for file in named if format_of(file, languages)]:
        return texts, [file for file in named if not format_of(file, languages)]
    if path.is_dir():
        raise UserError(f"The folder {path} holds no .txt or .jsonl (.gz and .xz of these too) or .parquet file.")
    if path.is_file():
        raise UserError(f"{path} is no .txt or .jsonl (.gz and .xz of these too) or .parquet file.")
    raise UserError(f"There is no corpus at {location}: no such file, folder or pattern.")


def _named_files(location: str) -> list[Path]:
    """All files that a path, folder or glob pattern names, sorted; of a folder not the hidden ones.

    Raises:
        UserError: it names a pipe or a device.
    """
    path = path_of(location)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file() and not is_hidden(file.relative_to(path)))
    named = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    for file in named:
        check_plain(file)
    return [file for file in named if file.is_file()]


def is_hidden(path: Path) -> bool:
    """Whether a file, or a folder above it, is hidden: Jupyter and macOS leave second copies and other things there."""
    return any(part.startswith(".") for part in path.parts)


def check_plain(file: Path) -> None:
    """Refuses a pipe or a device: a text is read several times.

    Raises:
        UserError: it is one.
    """
    if file.exists() and not file.is_file() and not file.is_dir():
        raise UserError(f"{file} is a pipe or a device, which cannot be read twice; save it as a file first.")


def root_of(location: str) -> Path:
    """The root below which path components may name a split; for a glob pattern, the part before its first wildcard."""
    path = path_of(location)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    return Path(*itertools.takewhile(lambda part: not set(part) & set("*?["), path.parts))


SPLIT_NAME = r"(train(ing)?|valid(ation|ate|set)?|val|dev(elopment|set)?|test(ing|set|s)?)(?![a-z])"


def splits_of(paths: Iterable[Path]) -> dict[Path, str]:
    """Files of a corpus, relative to its root -> `train`, `valid` or `test`.

    Names and folders that begin with such a word say so (valid.txt, dev/00.jsonl). Where none does, the words in names
    count (wiki.train.txt, wiki.valid.txt), as long as there is a training part beside the others.
    """
    paths = list(paths)
    found = {path: _split_of(path, SPLIT_NAME) for path in paths}
    if not any(found.values()):
        within = {path: _split_of(Path(path.name), rf"(?:.*[._-]){SPLIT_NAME}") for path in paths}
        found = within if len({*within.values()} - {None}) > 1 and "train" in within.values() else found
    return {path: split or "train" for path, split in found.items()}


def _split_of(path: Path, pattern: str) -> str | None:
    match = next((match for part in reversed(path.parts) if (match := re.match(pattern, part.lower()))), None)
    return None if match is None else {"tr": "train", "te": "test"}.get(match[1][:2], "valid")


class _Counting:
    """A binary file that counts the bytes read from disk, for the progress bar."""

    def __init__(self, file: IO[bytes], position: list[int]) -> None:
        self.file, self.position = file, position

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.position[0] += len(block)
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def open_text(path: Path, position: list[int]) -> IO[bytes]:
    """Opens a text file, compressed or not.

    Args:
        position: its only item counts the bytes read from disk, of a compressed file.
    """
    opener = COMPRESSIONS.get(path.suffix)
    raw = open(path, "rb")  # noqa: SIM115  the caller closes it
    return opener(_Counting(raw, position)) if opener else raw


def decoded(lines: IO[bytes], path: Path, *, whole: bool) -> Iterator[str]:
    """Decodes lines.

    Args:
        whole: whether a line longer than MAX_LINE is one too, or comes in parts.

    Raises:
        UserError: the file is binary, not UTF-8, or a damaged archive.
    """
    limit = -1 if whole else MAX_LINE
    number = 0
    try:
        while line := lines.readline(limit):
            number += 1
            if limit > 0 and not line.endswith(b"\n"):
                line += b"".join(iter(lambda: _continuation(lines), b""))
            if b"\0" in line:
                sentence = f"{path} is a binary file, not text (line {number} has a zero byte)."
                raise UserError(unless_damaged(path, sentence))
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        sentence = f"{path} is not UTF-8 text (line {number}); convert it first, with iconv for instance."
        raise UserError(unless_damaged(path, sentence)) from None
    except BROKEN:
        raise UserError(undecompressed(path)) from None


def undecompressed(path: Path | str) -> str:
    """What is said of a damaged archive."""
    return f"{path} is damaged: it does not decompress."


def unless_damaged(path: Path, sentence: str) -> str:
    """The message about a file's content, or that it is a damaged archive: these may decompress to any bytes first."""
    if path.suffix not in COMPRESSIONS:
        return sentence
    try:
        with COMPRESSIONS[path.suffix](path, "rb") as file:
            while file.read(MAX_LINE):
                pass
    except BROKEN:
        return undecompressed(path)
    return sentence


def _continuation(lines: IO[bytes]) -> bytes:
    """The next byte if it continues a UTF-8 character cut at MAX_LINE: such bytes begin with the bits 10."""
    following = lines.peek(1)[:1]  # type: ignore[attr-defined]
    return lines.read(1) if following and following[0] & 0xC0 == 0x80 else b""


def read_lines(path: Path, position: list[int], *, whole: bool = False) -> Iterator[str]:
    """The lines of a text file, see `decoded`; `position` counts the bytes read from disk."""
    with open_text(path, position) as lines:
        for line in decoded(lines, path, whole=whole):
            if path.suffix not in COMPRESSIONS:
                position[0] = lines.tell()
            yield line
