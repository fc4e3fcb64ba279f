"""Documents of a corpus: from files on disk or a hub data set, as one stream in constant memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.data.files import decoded, format_of, open_text, read_lines, unless_damaged
from pipeline.data.hub import local_files, open_hub, patient_rows
from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.json_lines import may_have_surrogates, repair_surrogates
from pipeline.storage.validation import parse_json

NO_WIDTH = "\u200b\ufeff"  # characters of it that programs leave around lines
AROUND = NO_WIDTH + "".join(character for character in map(chr, range(0x3001)) if character.isspace())


class Document(list[str]):
    """The paragraphs of a document.

    Attributes:
        raw_bytes: UTF-8 bytes of its text as it was read, with the ends of lines and the blank lines around it.
        language: of `Source.languages`; None: there are none.
    """

    raw_bytes = 0
    language: str | None = None

    def sections(self, lines: int | None) -> Iterator[Document]:
        """The document in parts of about so many lines; None: as a whole.

        Of what no line has, as blank lines and indentation, each part gets its share.
        """
        count = 1 if lines is None else max(1, round(len(self) / lines))
        ends = [len(self) * part // count for part in range(1, count + 1)]
        text, done, given = _bytes_of(self), 0, 0
        for begin, end in itertools.pairwise([0, *ends]):
            part = Document(self[begin:end])
            part.language = self.language
            done += _bytes_of(part)
            part.raw_bytes = self.raw_bytes * done // text - given
            given += part.raw_bytes
            yield part


def _bytes_of(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


@dataclass
class Source:
    """The files or the hub data set (streamed) that a corpus is read from.

    Args:
        files: paths, in reading order.
        hub: arguments of `datasets.load_dataset`: path, name, split, revision.
        column: the column of `.jsonl`, `.parquet` and hub data that holds the text.
        document_start: regular expression; a line that matches begins a document. Without it documents of `.txt`
            files are separated by blank lines, and each row elsewhere is a document.
        verify: read files whole for their hash, and also what was made of them (see checksums.file_hash).
        parallel: each document is a text and its translations, a line each, and no line is split into sentences.
        languages: names as en: of several, each file has one in its name or that of its folder (train.en.gz, en/1.txt).
        section: lines of a part, where longer documents are cut into parts; None: they are not. The text is the same.
    """

    files: list[Path] = field(default_factory=list)
    hub: dict[str, Any] = field(default_factory=dict)
    column: str = "text"
    document_start: str | None = None
    verify: bool = False
    parallel: bool = False
    languages: list[str] = field(default_factory=list)
    section: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content of files, or of the address on the hub, and of how it is read; computed once.

        A data set of the hub without a `revision` is taken for the one that was read before.
        """
        files = self.files or local_files(self.hub)
        content: list[Any] = [file_hash(path, verify=self.verify) for path in files]
        content += [] if self.files else [self.hub]
        languages = [[self.language_of(path) for path in self.files]] if self.languages else []
        formats = [self._format(path) for path in self.files]
        other = [formats] if set(formats) - {".txt"} else []  # of plain text alone the hash is that of earlier versions
        parallel = ["parallel"] if self.parallel else []
        return digest(content, self.column, self.document_start, *languages, *other, *parallel)

    def language_of(self, path: Path | None) -> str | None:
        """The language of a file; None: of what is from elsewhere.

        Raises:
            UserError: there are several languages, and the name of the file says none of them, or two.
        """
        if len(self.languages) < 2:
            return next(iter(self.languages), None)
        named = set() if path is None else {path.parent.name, *path.name.split(".")}
        matching = [name for name in self.languages if {name, name.partition("_")[0]} & named]
        if len(matching) == 1:
            return matching[0]
        raise UserError(
            f"{path or 'The corpus'} must have one of the languages {', '.join(self.languages)} in its name or that of "
            f"its folder, as train.{self.languages[0]}.txt; or set data.tokenizer.languages."
        )

    def size(self) -> int | None:
        """Bytes on disk; None for a hub data set."""
        return sum(path.stat().st_size for path in self.files) if self.files else None

    def documents(self) -> Iterator[tuple[Document, int]]:
        """Yields (document, bytes on disk read so far)."""
        if not self.files:
            language = self.language_of(None)
            for document in self._regroup(self._hub_rows()):
                document.language = language
                yield document, 0
        done = 0
        for path in self.files:
            position, language, before = [0], self.language_of(path), 0
            for document in self._file_documents(path, position):
                document.language = language
                size, read, given = position[0] - before, max(1, document.raw_bytes), 0
                for part in document.sections(self.section):
                    given += part.raw_bytes
                    yield part, done + before + size * given // read
                before = position[0]
            done += path.stat().st_size

    def _file_documents(self, path: Path, position: list[int]) -> Iterator[Document]:
        kind = self._format(path)
        if kind == ".parquet":
            return self._regroup(self._parquet_rows(path))
        if kind == ".jsonl":
            return self._regroup(self._json_rows(path, position))
        return paragraphs_to_documents(read_lines(path, position), self.document_start)

    def _format(self, path: Path) -> str:
        """How a file is read, by its name: what is no other format is plain text."""
        return format_of(path, self.languages) or ".txt"

    def _regroup(self, rows: Iterator[str]) -> Iterator[Document]:
        """Rows -> documents: one each, unless `document_start` says where they begin."""
        if self.document_start:
            lines = (line for row in rows for line in re.split(r"(?<=\n)", row))
            return paragraphs_to_documents(lines, self.document_start)
        return (document for document in map(_document_of, rows) if document)

    def _json_rows(self, path: Path, position: list[int]) -> Iterator[str]:
        with open_text(path, position) as lines:
            for number, line in enumerate(decoded(lines, path, whole=True), start=1):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, f"{path}, line {number}")
                except UserError as error:
                    raise UserError(unless_damaged(path, str(error))) from None
                if isinstance(row, dict) and row.get(self.column, "") is None:
                    continue  # as an empty cell of a table
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
    document = Document(line for each in row.split("\n") if (line := plain_line(each)))
    document.raw_bytes = len(row.encode())
    return document


def plain_line(line: str) -> str:
    """A line without spaces around it, nor marks of no width there: byte order marks of joined files, for instance."""
    return line.strip(AROUND)


def paragraphs_to_documents(lines: Iterator[str], document_start: str | None) -> Iterator[Document]:
    """Groups lines into documents: between blank lines, or from each line on that matches `document_start`."""
    starts = re.compile(document_start).search if document_start else None
    document, ended = Document(), False
    for line in lines:
        text = plain_line(line)
        blank = not text
        if document and (starts(line) if starts else ended and not blank):
            yield document
            document = Document()
        document.raw_bytes += len(line.encode())
        ended = blank
        if not blank:
            document.append(text)
    if document:
        yield document
