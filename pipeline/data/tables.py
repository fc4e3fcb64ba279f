"""Labeled files -> rows with their file and line: .tsv, .csv, .jsonl, .parquet, CoNLL columns."""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pipeline.data.files import unless_damaged
from pipeline.errors import UserError
from pipeline.storage.json_lines import may_have_surrogates, repair_surrogates
from pipeline.storage.validation import parse_json
from tasks.dataset import Row, shortened


def read_rows(path: Path) -> list[Row]:
    """Reads a .tsv or .csv (with a header, see `table`), .jsonl, .parquet or CoNLL file, also under .gz.

    Raises:
        UserError: the file, or one of its lines, cannot be read; names both.
    """
    try:
        if path.name.endswith(".parquet.gz"):
            raise UserError(f"{path} is compressed twice: unpack it, .parquet is compressed as it is.")
        if path.name.endswith(".parquet"):
            return [(f"{path}, row {n}", row) for n, row in enumerate(_parquet(path), start=1)]
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as file:  # a text may hold other ends of lines
            return [(f"{path}, line {n}", row) for n, row in READERS[kind_of(path)](file, path)]
    except UnicodeDecodeError:
        raise UserError(unless_damaged(path, f"{path} is not UTF-8 text.")) from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def kind_of(path: Path) -> str:
    return path.name.removesuffix(".gz").rpartition(".")[2]


def _parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        if twice := repeated(pyarrow.parquet.read_schema(path).names):
            raise UserError(f"{path} has two columns named '{shortened(twice)}'.")
        return pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def lines_of(file: IO[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        yield number, line.rstrip("\n").removesuffix("\r")


DELIMITERS = ",;\t|"
MAX_FIELD = 2**31 - 1  # characters
QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"')  # a field as the csv module writes it


def table(file: IO[str], path: Path, kind: str) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str]]]]:
    """The names of the columns, and the rows, read lazily, each with its first line number.

    A `.csv` is read by Python's csv module: quoted fields may hold delimiters, ends of lines and doubled quotes. Its
    delimiter is the one that a first line `sep=;` names, as Excel writes it, else that of , ; tab and | which the
    header has most often. In a `.tsv` whose header has no quotes, quotes are plain characters, except in a field as
    the csv module writes it: quoted as a whole, with doubled quotes inside. In a table with one column a blank line
    is an empty text.

    Raises:
        UserError: a row does not fit the header, or a column has no name or the name of another.
    """
    lines = itertools.chain(file)
    first = next(lines, "")
    named = re.fullmatch(r"sep=(.)\r?\n?", first, re.IGNORECASE) if kind == "csv" else None
    begin, first = (2, next(lines, "")) if named else (1, first)
    if kind == "tsv" and not first.startswith('"'):
        rows = _plain_rows(itertools.chain([first], lines))
    else:
        most = max(DELIMITERS, key=QUOTED.sub("", first).count)
        delimiter = "\t" if kind == "tsv" else named[1] if named else most
        rows = _quoted_rows(itertools.chain([first], lines), path, delimiter, begin)
    _, names = next(rows)
    if not any(name.strip() for name in names):
        raise UserError(f"{path} has no header: line {begin} must name its columns.")
    if "" in names[1:]:  # the first one may have none, as that of a pandas index
        raise UserError(f"{path}, line {begin}: column {names.index('', 1) + 1} of the header has no name.")
    if twice := repeated(names):
        raise UserError(f"{path}, line {begin}: two columns of the header are named '{shortened(twice)}'.")
    return names, _named_rows(names, rows, path)


def repeated(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def _named_rows(
    names: list[str], rows: Iterator[tuple[int, list[str]]], path: Path
) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, values in rows:
        if len(names) > 1 and not any(value.strip() for value in values):
            continue
        if len(values) != len(names):
            raise UserError(f"{path}, line {number} has {len(values)} columns, its header has {len(names)}.")
        yield number, dict(zip(names, values, strict=True))


def _plain_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        yield number, [_unquoted(value) for value in line.rstrip("\n").removesuffix("\r").split("\t")]


def _unquoted(value: str) -> str:
    match = QUOTED.fullmatch(value) if '""' in value[1:-1] else None
    return match[1].replace('""', '"') if match else value


def _quoted_rows(lines: Iterator[str], path: Path, delimiter: str, begin: int) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = begin
    try:
        for values in reader:
            yield number, values or [""]
            number = begin + reader.line_num
    except csv.Error as error:
        why = "a quote is opened and never closed" if "end of data" in str(error) else str(error).partition(" - ")[0]
        raise UserError(f"{path}, line {number} is no row of a table with quotes: {why}.") from None


def read_jsonl(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in lines_of(file):
        if line.strip():
            row = parse_json(line, f"{path}, line {number}")
            if not isinstance(row, dict):
                raise UserError(f"{path}, line {number} is no JSON object.")
            yield number, mended(row) if may_have_surrogates(line) else row


def mended(value: Any) -> Any:
    """A JSON value without lone surrogates, which tokenizers refuse."""
    if isinstance(value, dict):
        return {repair_surrogates(name): mended(part) for name, part in value.items()}
    if isinstance(value, list):
        return [mended(part) for part in value]
    return repair_surrogates(value) if isinstance(value, str) else value


def read_conll(file: IO[str], path: Path) -> Iterator[tuple[int, Mapping[int, list[str]]]]:
    """Sentences separated by blank lines: number of a column -> its values, one per word.

    Columns are separated by tabs, or by spaces if the first word's line has no tab. A line that begins with # is a
    comment if its number of columns differs, or if it precedes a sentence and has a = (`# id = 1`). `-DOCSTART-` and
    CoNLL-U's multiword (3-4) and empty (8.1) rows are skipped.
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
    "tsv": lambda file, path: table(file, path, "tsv")[1],
    "csv": lambda file, path: table(file, path, "csv")[1],
    "jsonl": read_jsonl,
    **dict.fromkeys(("conll", "conllu", "txt", "bio", "iob", "iob2"), read_conll),
}
SUFFIXES = (*READERS, "parquet")
