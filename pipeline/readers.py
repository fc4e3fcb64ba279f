"""Labelled files -> rows, each with the place where it stands: .tsv, .csv, .jsonl, .parquet, CoNLL columns."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pipeline import UserError
from pipeline.text import whole_characters
from tasks.base import Row


def read_rows(path: Path) -> list[Row]:
    """Rows of a .tsv or .csv (with a header, quotes are plain characters), .jsonl, .parquet or CoNLL file.

    Raises:
        UserError: the file cannot be read, or a line of it; names both.
    """
    try:
        if path.name.endswith(".parquet.gz"):
            raise UserError(f"{path} is compressed twice: unpack it, .parquet is compressed as it is.")
        if path.name.endswith(".parquet"):
            return [(f"{path}, row {n}", row) for n, row in enumerate(_parquet(path), start=1)]
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:  # text may hold other marks that end lines
            return [(f"{path}, line {n}", row) for n, row in READERS[kind_of(path)](file, path)]
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def kind_of(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2]


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def lines_of(file: IO[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        yield number, line.rstrip("\n").removesuffix("\r")


def read_table(file: IO[str], path: Path, delimiter: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Rows as they are read, by the names of the first line; a blank line is an empty text of an only column."""
    names: list[str] | None = None
    for number, line in lines_of(file):
        if names is None:
            names = line.split(delimiter)
            if names[0].startswith('"') and names[0].endswith('"'):
                raise UserError(f"{path} has quotes around its columns, which are plain characters here; use .jsonl.")
        elif line.strip() or len(names) == 1:
            values = line.split(delimiter)
            if len(values) != len(names):
                raise UserError(f"{path}, line {number} has {len(values)} columns, its header has {len(names)}.")
            yield number, dict(zip(names, values, strict=True))


def read_jsonl(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in lines_of(file):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:  # a number of thousands of digits is one too
                raise UserError(f"{path}, line {number} is not JSON: {getattr(error, 'msg', error)}.") from None
            except RecursionError:
                raise UserError(f"{path}, line {number} is nested too deeply.") from None
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number} is no JSON object.")
            yield number, row if "\\ud" not in line.lower() else mended(row)


def mended(value: Any) -> Any:
    """A value of JSON in whose texts no half of a character stands alone: tokenizers refuse such."""
    if isinstance(value, dict):
        return {name: mended(part) for name, part in value.items()}
    if isinstance(value, list):
        return [mended(part) for part in value]
    return whole_characters(value) if isinstance(value, str) else value


def read_conll(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[int, list[str]]]]:
    """Sentences between blank lines: number of the column -> what stands in it, word by word.

    Columns are separated by tabs, or by spaces where the first word's line has none. A line that begins with # is a
    comment if it has not as many columns as the others, or if it stands before a sentence and has a = (`# id = 1`);
    `-DOCSTART-`, and CoNLL-U's multiword (3-4) and empty (8.1) rows are no words.
    """
    lines = list(lines_of(file))
    first = next((line for _, line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))), "")
    separator, begin = "\t" if "\t" in first else None, 0
    width = len(first.split(separator))
    rows: list[list[str]] = []
    for number, line in lines:
        values = line.split(separator)
        said = line.startswith("# ") and "=" in line and not rows
        comment = line.startswith("#") and (said or len(values) != width)
        if not line.strip():
            if rows:
                yield begin, dict(enumerate(map(list, zip(*rows, strict=True))))
            rows = []
        elif comment or values[0] == "-DOCSTART-" or (len(values) == 10 and re.fullmatch(r"\d+[-.]\d+", values[0])):
            continue
        elif len(values) != width:
            raise UserError(f"{path}, line {number} has {len(values)} columns, the lines before it have {width}.")
        else:
            begin = begin if rows else number
            rows.append(values)
    if rows:
        yield begin, dict(enumerate(map(list, zip(*rows, strict=True))))


READERS: dict[str, Callable[[IO[str], Path], Iterator[tuple[int, Mapping[Any, Any]]]]] = {
    "tsv": lambda file, path: read_table(file, path, "\t"),
    "csv": lambda file, path: read_table(file, path, ","),
    "jsonl": read_jsonl,
    **dict.fromkeys(("conll", "conllu", "txt", "bio", "iob", "iob2"), read_conll),
}
SUFFIXES = (*READERS, "parquet")
