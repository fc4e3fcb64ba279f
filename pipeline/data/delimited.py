"""Tables of delimited text: `.csv` as the csv module writes it, `.tsv` as published data sets are."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from pipeline.errors import UserError
from tasks.dataset import repeated, shortened
from tasks.errors import RowError

Refuse = Callable[[UserError], None]  # is called with what is wrong with a row: raises it, or collects it
DELIMITERS = ",;\t|"
MAX_FIELD = 2**31 - 1  # characters
QUOTED = re.compile(r'"([^"]*(?:""[^"]*)*)"')  # a field as the csv module writes it


def refuse(error: UserError) -> None:
    raise error


def table(
    file: IO[str], path: Path, kind: str, refuse: Refuse = refuse
) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str]]]]:
    """The names of the columns, and the rows, read lazily, each with its first line number.

    A `.csv` is read by Python's csv module: quoted fields may hold delimiters, ends of lines and doubled quotes. Its
    delimiter is the one that a first line `sep=;` names, as Excel writes it, else that of , ; tab and | which the
    header has most often. In a `.tsv` whose header has no quotes, quotes are plain characters, except in a field as
    the csv module writes it: quoted as a whole, with doubled quotes inside. In a table with one column a blank line
    is an empty text.

    Args:
        refuse: what to do with a row that does not fit the header.

    Raises:
        UserError: a column has no name or the name of another; a quote is never closed.
    """
    lines = itertools.chain(file)
    first = next(lines, "")
    named = re.fullmatch(r"sep=(.)\r?\n?", first, re.IGNORECASE) if kind == "csv" else None
    begin, first = (2, next(lines, "")) if named else (1, first)
    plain = kind == "tsv" and not first.startswith('"')
    if plain:
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
    return names, _named_rows(names, rows, path, refuse, plain=plain)


def _named_rows(
    names: list[str], rows: Iterator[tuple[int, list[str]]], path: Path, refuse: Refuse, *, plain: bool
) -> Iterator[tuple[int, Mapping[str, str]]]:
    for number, values in rows:
        if len(names) > 1 and not any(value.strip() for value in values):
            continue
        if len(values) == len(names):
            yield number, dict(zip(names, values, strict=True))
            continue
        columns = "column" if len(values) == 1 else "columns"
        problem = f"has {len(values)} {columns}, its header has {len(names)}"
        if plain and any(value.startswith('"') for value in values):
            problem += "; in a .tsv quotes are plain characters, call it .csv to have them read"
        refuse(RowError(f"{path}, line {number}", problem, kind="more or fewer columns than the header"))


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
        raise UserError(f"{path}, line {number} is not a row of a table with quotes: {why}.") from None
