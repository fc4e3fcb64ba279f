"""`predict`: lines, tables or JSON in, one JSON line or row of a table out for each, a batch at a time."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from pipeline.console import typed
from pipeline.data.delimited import table
from pipeline.data.tables import INPUTS, kind_of, lines_of, open_table, read_json, read_jsonl, read_parquet
from pipeline.errors import UserError
from pipeline.finetuning.answers import json_writer, table_writer
from pipeline.finetuning.model import FineTunedModel
from pipeline.storage.atomic import open_atomically, reason
from tasks.dataset import as_list, is_missing, is_plain_list, listed, shortened

Record = tuple[Mapping[str, Any], Any]  # the columns of a row, and what the model reads of it
UNWRITTEN = (".xlsx", ".xls", ".ods", ".parquet", ".arrow", ".feather")  # what others would open as tables


def predict(
    model: FineTunedModel,
    source: IO[Any],
    name: str,
    *,
    form: str,
    target: IO[str],
    batch_size: int,
    delimiter: str | None = None,
) -> int:
    """Reads texts from `source` and writes an answer to each to `target`, a batch at a time; returns their number.

    A text that is too long for the model is cut: its row has `"cut": true`, and a last line counts such rows. Another
    counts empty texts, whose answers are there so that there is one for each row.

    Args:
        name: of the source, for messages.
        form: `lines` (a text a line; of a pair both, with a tab between them), or a kind of table.
        delimiter: write a table instead of JSON lines: the columns that were read, and those of the answers.

    Raises:
        UserError: a row without what the model reads, or no row for a table.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size is {batch_size}; it must be at least 1.")
    records, done, cut = records_of(model, source, name, form), 0, 0
    empty: list[int] = []
    write = json_writer(target) if delimiter is None else table_writer(target, delimiter)
    while chunk := list(itertools.islice(records, batch_size)):
        answers = model.predict([text for _, text in chunk], batch_size=batch_size)
        for (row, text), answer in zip(chunk, answers, strict=True):
            write(row, text, answer)
            cut += "cut" in answer
        target.flush()
        empty += [number for number, (_, text) in enumerate(chunk, start=done + 1) if is_empty(text)]
        done += len(chunk)
    if not done and delimiter is not None:
        raise UserError(f"{name} has no texts, so there is no table to write.")
    if not done:
        print(f"{name} has no texts.", file=sys.stderr)
    if empty:
        first = f"the first is text {empty[0]:,}"
        print(f"{len(empty):,} of {done:,} texts are empty ({first}): their answers say nothing.", file=sys.stderr)
    if cut:
        room, where = f"{model.options.max_length} tokens", '"cut" is true there'
        print(f"{cut:,} of {done:,} texts were cut to fit into {room}: {where}.", file=sys.stderr)
    return done


def is_empty(text: Any) -> bool:
    """Whether there is nothing in a text, in a text of a pair, or in one of a list of words."""
    parts = text if isinstance(text, (tuple, list)) else (text,)
    return not parts or not all(part.strip() for part in parts)


def records_of(model: FineTunedModel, source: IO[Any], name: str, form: str) -> Iterator[Record]:
    """The rows of the input, and what the model reads of them.

    Raises:
        UserError: a row lacks what the model reads.
    """
    roles = [role for role in model.options.columns if role not in ("label", "tags")]
    if form == "lines":
        for number, line in lines_of(source):
            parts = line.split("\t")
            if model.options.pairs and len(parts) != 2:
                raise UserError(f"{name}, line {number} needs two texts with a tab between them.")
            yield (
                (dict(zip(roles, parts, strict=False)), tuple(parts)) if model.options.pairs else ({"text": line}, line)
            )
        return
    if len(roles) != (2 if model.options.pairs else 1):
        raise UserError(
            f"This model's task joins {' and '.join(roles)} in its own way; join them yourself and pass one text a "
            "line (--format lines)."
        )
    for place, row in rows_of(model, source, name, form, roles):
        texts = [value(model, row, role, place) for role in roles]
        yield row, tuple(texts) if model.options.pairs else texts[0]


def rows_of(
    model: FineTunedModel, source: IO[Any], name: str, form: str, roles: Iterable[str]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a table, with their places."""
    path = Path(name)
    if form == "json":
        yield from ((f"{name}, {what} {number}", row) for what, number, row in read_json(source, path))
        return
    if form in ("csv", "tsv"):
        header, rows = table(source, path, form)
        for role in roles:  # a table without rows has them too, unless its only line is no header
            value(model, dict.fromkeys(header, ""), role, name)
    else:
        header, rows = [], read_jsonl(source, path) if form == "jsonl" else read_parquet(source, path)
    yield from ((f"{name}, {'row' if form == 'parquet' else 'line'} {number}", row) for number, row in rows)


def value(model: FineTunedModel, row: Mapping[str, Any], role: str, place: str) -> Any:
    """A text, by the name of its column in the training data or by its role; a tagger takes a `text` too.

    Raises:
        UserError: there is none; names its place.
    """
    column, by_word = model.options.columns[role], model.head.by_word
    names = [column, role, *(["text"] if by_word else [])]
    name = next((name for name in names if name in row), None)
    cell = None if name is None else row[name]
    if by_word and name in (column, role):
        cell = as_list(cell)
    if isinstance(cell, str):
        return cell.split() if by_word and name in (column, role) else cell  # words as the task reads them
    if cell is not None and by_word and is_plain_list(cell):
        return [str(word) for word in cell]
    if isinstance(cell, (int, float)) and not by_word and not is_missing(cell):
        return str(cell)  # as in training
    if cell is not None:
        raise UserError(f"{place} has {shortened(str(cell))} under '{column}', which is not text.")
    raise UserError(f"{place} has no text under '{column}', which this model reads (it has {listed(row)}).")


def open_source(path: str, form: str) -> IO[Any]:
    """A file, or `-` for standard input, as UTF-8; a parquet file as bytes."""
    if path == "-":
        if form == "parquet":
            raise UserError("A parquet file is not read from standard input; name it by --data.")
        sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
        return sys.stdin
    try:
        return open(path, "rb") if form == "parquet" else open_table(Path(path))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def open_target(path: Path, source: IO[str]) -> AbstractContextManager[IO[str]]:
    """A file that is written atomically; a pipe or a device is written to directly.

    Raises:
        UserError: it cannot be written, is there already, or is named as a file of another kind.
    """
    if path.exists() and not path.is_file():
        return open(path, "w", encoding="utf-8")
    if path.exists() and os.path.samestat(path.stat(), os.fstat(source.fileno())):
        raise UserError(f"{path} is the input, which the answers would replace; choose another {typed.flag('out')}.")
    if path.exists():
        raise UserError(f"{path} is there already; choose another {typed.flag('out')}.")
    if path.suffix.lower() in UNWRITTEN:
        raise UserError(f"{path} would be no table of that kind; answers are written as .csv, .tsv or JSON lines.")
    place = path.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {reason(error)}.") from None
    return open_atomically(place)


def form_of(path: str, given: str | None) -> str:
    """The given format, or that of the file's name; lines otherwise.

    Raises:
        UserError: the name is that of a kind of file whose lines are no texts.
    """
    kind = kind_of(Path(path)) if "." in Path(path).name else ""
    if given or kind in ("", "txt"):
        return given or "lines"
    if kind not in INPUTS:
        known = ", ".join(f".{name}" for name in INPUTS if name != "lines")
        raise UserError(f"predict does not read .{kind} files; it reads {known}, and texts with --format=lines.")
    return kind
