"""Text in, documents out: files, folders, patterns and hub data sets as one stream of documents.

A document is a list of paragraphs (strings); `sentences` splits a paragraph.
Everything here streams: memory does not grow with the corpus.
"""

from __future__ import annotations

import glob
import gzip
import itertools
import lzma
import os
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.json_lines import may_have_surrogates, repair_surrogates
from pipeline.storage.paths import path_of
from pipeline.storage.validation import parse_json

FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
MAX_LINE = 1 << 20  # characters: a longer line is read in parts, so that no line can fill the memory

OFFLINE_WAY = (
    "give local files instead (CORPUS=path for pretraining, DATA=folder for a task), or use CORPUS=sample and "
    "TASK=sentiment."
)


class Document(list[str]):
    """Paragraphs of a document.

    Attributes:
        raw_bytes: of its text in UTF-8 as it was read: the ends of its lines and the blank lines around it too.
    """

    raw_bytes = 0


@dataclass
class Source:
    """Where text comes from: `files` on disk, or a hub data set (`hub`, streamed).

    Args:
        files: paths, in reading order.
        hub: arguments for `datasets.load_dataset` (path, name, split, revision).
        column: the column of `.jsonl`, `.parquet` or the hub data set that holds the text.
        document_start: regular expression; a line that matches begins a document. Without it a blank
            line does in `.txt` files, and every row does elsewhere.
        verify: read files whole for their hash, and what was made of them too (see folders.file_hash).
    """

    files: list[Path] = field(default_factory=list)
    hub: dict[str, Any] = field(default_factory=dict)
    column: str = "text"
    document_start: str | None = None
    verify: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content (files) or of the address (hub) and of how it is read; taken once."""
        content: list[Any] = [file_hash(path, verify=self.verify) for path in self.files] or [self.hub]
        return digest(content, self.column, self.document_start)

    def size(self) -> int | None:
        """Bytes on disk, None for a hub data set."""
        return sum(path.stat().st_size for path in self.files) if self.files else None

    def documents(self) -> Iterator[tuple[Document, int]]:
        """Yields (document, bytes on disk read so far)."""
        if not self.files:
            yield from ((document, 0) for document in self._regroup(self._hub_rows()))
        done = 0
        for path in self.files:
            position = [0]
            for document in self._file_documents(path, position):
                yield document, done + position[0]
            done += path.stat().st_size

    def _file_documents(self, path: Path, position: list[int]) -> Iterator[Document]:
        kind = format_of(path)
        if kind == ".parquet":
            return self._regroup(self._parquet_rows(path))
        if kind == ".jsonl":
            return self._regroup(self._json_rows(path, position))
        return paragraphs_to_documents(read_lines(path, position), self.document_start)

    def _regroup(self, rows: Iterator[str]) -> Iterator[Document]:
        """Rows are documents, unless `document_start` says that they are lines of one text."""
        if self.document_start:
            lines = (line for row in rows for line in re.split(r"(?<=\n)", row))
            return paragraphs_to_documents(lines, self.document_start)
        return (document for document in map(_document_of, rows) if document)

    def _json_rows(self, path: Path, position: list[int]) -> Iterator[str]:
        with open_text(path, position) as lines:
            for number, line in enumerate(decoded(lines, path), start=1):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, f"{path}, line {number}")
                except UserError as error:
                    raise UserError(unless_damaged(path, str(error))) from None
                if not isinstance(row, dict) or not isinstance(row.get(self.column), str):
                    raise UserError(
                        f"{path}, line {number} has no text under the key '{self.column}'; set data.text_column "
                        "to the key that holds it."
                    )
                yield repair_surrogates(row[self.column]) if may_have_surrogates(line) else row[self.column]

    def _parquet_rows(self, path: Path) -> Iterator[str]:
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(path)
        except pyarrow.ArrowInvalid:
            raise UserError(f"{path} is not a Parquet file.") from None
        strings = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        names = table.schema_arrow.names
        if self.column not in names:
            raise UserError(f"{path} has no column '{self.column}' (it has {', '.join(names)}); set data.text_column.")
        if names.count(self.column) > 1:
            raise UserError(f"{path} has {names.count(self.column)} columns named '{self.column}'; rename one of them.")
        kind = table.schema_arrow.field(self.column).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if not any(is_one(kind) for is_one in strings):
            raise UserError(f"The column '{self.column}' of {path} holds {kind}, not text; set data.text_column.")
        try:
            for batch in table.iter_batches(batch_size=256, columns=[self.column]):
                yield from (text for text in batch.column(0).to_pylist() if text)
        except (OSError, pyarrow.ArrowException):
            raise UserError(f"{path} is damaged: it cannot be read to its end.") from None
        except UnicodeDecodeError:
            raise UserError(f"The column '{self.column}' of {path} is not UTF-8 text.") from None

    def _hub_rows(self) -> Iterator[str]:
        for row in patient_rows(lambda: open_hub(**self.hub, streaming=True), self.hub["path"]):
            if self.column not in row:
                raise UserError(f"{self.hub['path']} has no column '{self.column}' (it has {', '.join(row)}).")
            if not isinstance(row[self.column], str | None):
                raise UserError(
                    f"The column '{self.column}' of {self.hub['path']} holds no text; set data.text_column."
                )
            if row[self.column]:
                yield row[self.column]


def _document_of(row: str) -> Document:
    document = Document(line for line in row.split("\n") if line.strip())
    document.raw_bytes = len(row.encode())
    return document


def open_hub(*, path: str, **arguments: Any) -> Any:
    """`datasets.load_dataset` that says in seconds when the hub cannot be reached, and what to do then."""
    import socket

    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("HF_DATASETS_OFFLINE")
    if arguments.get("streaming") or not offline:
        host = os.environ.get("HF_ENDPOINT", "https://huggingface.co").split("//")[-1].split("/")[0]
        try:
            # A proxy resolves names itself; without one a failing look-up here answers at once.
            if not (os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")):
                socket.create_connection((host.split(":")[0], 443), timeout=5).close()
        except OSError:
            raise UserError(f"The hub ({host}) cannot be reached, so '{path}' cannot be read; {OFFLINE_WAY}") from None
    import datasets

    try:
        return datasets.load_dataset(path, **arguments)
    except (OSError, ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"'{path}' cannot be read from the hub ({reason}); {OFFLINE_WAY}") from None


RETRIES = 5  # of a stream that breaks off, one after another without a row between them
NETWORK = ("httpx", "httpx2", "httpcore", "aiohttp", "urllib3", "huggingface_hub")  # not all their errors are OSErrors
PAUSE = 2.0  # seconds before the first of them, doubled for each that follows


def patient_rows(open_stream: Callable[[], Any], name: str) -> Iterator[dict[str, Any]]:
    """The rows of a stream; one that breaks off is opened again, and goes on at the row that was to come.

    Raises:
        UserError: it breaks off time and again.
    """
    stream, done, failures = open_stream(), 0, 0
    while True:
        try:
            if stream is None:
                stream = open_stream().skip(done)
            for row in stream:
                yield row
                done, failures = done + 1, 0
            return
        except Exception as error:
            away = stream is None and isinstance(error, UserError)  # the hub is still out of reach
            if not away and not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in NETWORK:
                raise
            failures += 1
            if failures > RETRIES:
                raise UserError(
                    f"'{name}' broke off after {done:,} rows and {RETRIES} further attempts ({type(error).__name__}: "
                    f"{error}); run again when the hub can be reached. {OFFLINE_WAY[0].upper()}{OFFLINE_WAY[1:]}"
                ) from None
            print(f"'{name}' broke off after {done:,} rows ({type(error).__name__}); trying again.", file=sys.stderr)
            time.sleep(PAUSE * 2 ** (failures - 1))
            stream = None


def format_of(path: Path) -> str | None:
    """`.txt` or `.jsonl`, also under `.gz` and `.xz`, or `.parquet`; None for anything else."""
    name = path.with_suffix("") if path.suffix in COMPRESSIONS else path
    return name.suffix if name.suffix in FORMATS and (name == path or name.suffix != ".parquet") else None


def find_files(location: str) -> list[Path]:
    """The text files that a path, a folder or a pattern names, sorted.

    Raises:
        UserError: there is none.
    """
    return sorted_out(location)[0]


def sorted_out(location: str) -> tuple[list[Path], list[Path]]:
    """As `find_files`, and the files there that are not read, but for hidden ones.

    Raises:
        UserError: there is none to read.
    """
    path, named = path_of(location), _named_files(location)
    if found := [file for file in named if format_of(file)]:
        return found, [file for file in named if not format_of(file) and not file.name.startswith(".")]
    if path.is_dir():
        raise UserError(f"The folder {path} holds no .txt or .jsonl (.gz and .xz of these too) or .parquet file.")
    if path.is_file():
        raise UserError(f"{path} is no .txt or .jsonl (.gz and .xz of these too) or .parquet file.")
    raise UserError(f"There is no corpus at {location}: no such file, folder or pattern.")


def _named_files(location: str) -> list[Path]:
    """All files that a path, a folder or a pattern names, sorted.

    Raises:
        UserError: a pipe or a device is named.
    """
    path = path_of(location)
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    named = [path] if path.exists() else sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    for file in named:
        check_plain(file)
    return [file for file in named if file.is_file()]


def check_plain(file: Path) -> None:
    """Raises UserError for a pipe or a device: a text is read several times, which these do not allow."""
    if file.exists() and not file.is_file() and not file.is_dir():
        raise UserError(f"{file} is a pipe or a device, which cannot be read twice; save it as a file first.")


def root_of(location: str) -> Path:
    """The folder from which on names tell the part of a file: of a pattern, what stands before its first mark."""
    path = path_of(location)
    if path.is_dir():
        return path
    if path.is_file():
        return path.parent
    return Path(*itertools.takewhile(lambda part: not set(part) & set("*?["), path.parts))


def split_of(path: Path) -> str:
    """`valid` or `test` for a file, or one in a folder, that is named so (valid.txt, dev/00.jsonl), else `train`.

    Args:
        path: from the folder of the corpus on.
    """
    names = r"(train(ing)?|valid(ation|ate|set)?|val|dev(elopment|set)?|test(ing|set|s)?)(?![a-z])"
    found = next((match[1] for part in reversed(path.parts) if (match := re.match(names, part.lower()))), "train")
    return {"tr": "train", "te": "test"}.get(found[:2], "valid")


class _Counting:
    """A binary file that keeps count of the bytes taken from disk, for the progress bar."""

    def __init__(self, file: IO[bytes], position: list[int]) -> None:
        self.file, self.position = file, position

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.position[0] += len(block)
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def open_text(path: Path, position: list[int]) -> IO[bytes]:
    opener = COMPRESSIONS.get(path.suffix)
    raw = open(path, "rb")  # noqa: SIM115  the caller closes it
    return opener(_Counting(raw, position)) if opener else raw


def decoded(lines: IO[bytes], path: Path) -> Iterator[str]:
    """Lines as text; a line longer than MAX_LINE comes in parts for `.txt`, whole for rows of JSON."""
    limit = MAX_LINE if format_of(path) == ".txt" else -1
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
        raise UserError(f"{path} is damaged: it does not decompress.") from None


BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def unless_damaged(path: Path, sentence: str) -> str:
    """What is said of a file's content; of a damaged archive that it is one, since it may give any bytes first."""
    if path.suffix not in COMPRESSIONS:
        return sentence
    try:
        with COMPRESSIONS[path.suffix](path, "rb") as file:
            while file.read(MAX_LINE):
                pass
    except BROKEN:
        return f"{path} is damaged: it does not decompress."
    return sentence


def _continuation(lines: IO[bytes]) -> bytes:
    """The bytes that finish a UTF-8 character cut at MAX_LINE: continuation bytes begin with the bits 10."""
    following = lines.peek(1)[:1]  # type: ignore[attr-defined]
    return lines.read(1) if following and following[0] & 0xC0 == 0x80 else b""


def read_lines(path: Path, position: list[int]) -> Iterator[str]:
    with open_text(path, position) as lines:
        for line in decoded(lines, path):
            if path.suffix not in COMPRESSIONS:
                position[0] = lines.tell()
            yield line


def paragraphs_to_documents(lines: Iterator[str], document_start: str | None) -> Iterator[Document]:
    """Groups lines: a blank line ends a document, or a line that matches `document_start` begins one."""
    starts = re.compile(document_start).search if document_start else None
    document, ended = Document(), False
    for line in lines:
        blank = not line.strip()
        if document and (starts(line) if starts else ended and not blank):
            yield document
            document = Document()
        document.raw_bytes += len(line.encode())
        ended = blank
        if not blank:
            document.append(line.strip())
    if document:
        yield document


_END = re.compile(r"(?<=[.!?…؟।])([\"'”’)\]»]*)\s+(?=[\"'“‘(\[«„¿¡]*([^\Wa-z]))")
_WIDE = "。！？"  # of scripts that put no space behind them
_CLOSING = "」』”’）】》〉»)"
_WIDE_END = re.compile(rf"(?<=[{_WIDE}])(?![{_WIDE}{_CLOSING}\"'])|(?<=[{_WIDE}][{_CLOSING}])(?![{_CLOSING}\"'])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Mt|No|Vol|vs|cf|al|ca|c|"
    r"e\.g|i\.e|etc|approx|Inc|Ltd|Co|U\.S|U\.K|Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec)\.$"
)


def sentences(paragraph: str) -> list[str]:
    """Splits at . ! ? before a capital, a digit or a letter without cases, not after an initial or abbreviation."""
    wide = any(mark in paragraph for mark in _WIDE)
    return [found for part in (_WIDE_END.split(paragraph) if wide else [paragraph]) for found in _spaced(part)]


def _initial(text: str) -> bool:
    """Whether a text ends with a single letter and a full stop, of a script other than Latin (see _ABBREVIATION)."""
    letter = text[-2:-1]
    return text.endswith(".") and not letter.isascii() and letter.lower() != letter.upper() and text[-3:-2] in " («"


def _spaced(paragraph: str) -> Iterator[str]:
    begin = 0
    for match in _END.finditer(paragraph):
        end = match.end(1)
        # Searched from shortly before the end: an abbreviation is no longer than that.
        abbreviation = _ABBREVIATION.search(paragraph, max(0, begin - 1, end - 12), end)
        if not abbreviation and not match[2].islower() and not _initial(paragraph[max(0, end - 4) : end]):
            yield paragraph[begin:end].strip()
            begin = match.end()
    if last := paragraph[begin:].strip():
        yield last
