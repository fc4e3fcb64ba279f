"""`predict`: lines, tables or JSON in, one JSON line out for each, a batch at a time."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from pipeline.data.tables import lines_of, read_jsonl, table
from pipeline.errors import UserError
from pipeline.finetuning.model import FineTunedModel
from pipeline.presets import INPUTS
from pipeline.storage.atomic import open_atomically, reason
from pipeline.storage.json_lines import json_line
from tasks.dataset import is_plain_list, listed, shortened


def predict(model: FineTunedModel, source: IO[str], name: str, *, form: str, target: IO[str], batch_size: int) -> int:
    """Reads texts from `source` and writes an answer to each to `target`, a batch at a time; returns their number.

    A text that is too long for the model is cut: its row has `"cut": true`, and a last line counts such rows.

    Args:
        name: of the source, for messages.
        form: `lines` (a text a line; of a pair both, with a tab between them), `jsonl`, `tsv` or `csv` with a header.

    Raises:
        UserError: a row without what the model reads.
    """
    if batch_size < 1:
        raise UserError(f"--batch-size is {batch_size}; it must be at least 1.")
    texts, done, cut = texts_of(model, source, name, form), 0, 0
    while chunk := list(itertools.islice(texts, batch_size)):
        for text, answer in zip(chunk, model.predict(chunk, batch_size=batch_size), strict=True):
            shown = {} if "words" in answer and not isinstance(text, str) else {"text": text}
            target.write(json_line({**shown, **answer}))
            cut += "cut" in answer
        target.flush()
        done += len(chunk)
    if cut:
        room = f"{model.options.max_length} tokens"
        print(f'{cut:,} of {done:,} texts have more than {room} and were cut: "cut" is true there.', file=sys.stderr)
    return done


def texts_of(model: FineTunedModel, source: IO[str], name: str, form: str) -> Iterator[Any]:
    """What the model reads, row by row."""
    roles = [role for role in model.options.columns if role not in ("label", "tags")]
    if form == "lines":
        for number, line in lines_of(source):
            parts = line.split("\t")
            if model.options.pairs and len(parts) != 2:
                raise UserError(f"{name}, line {number} needs two texts with a tab between them.")
            yield tuple(parts) if model.options.pairs else line
        return
    if len(roles) != (2 if model.options.pairs else 1):
        raise UserError(
            f"This model's task joins {' and '.join(roles)} in its own way; join them yourself and pass one text a "
            "line (--format lines)."
        )
    rows: Iterable[tuple[int, Mapping[Any, Any]]]
    if form == "jsonl":
        rows = read_jsonl(source, Path(name))
    else:
        header, rows = table(source, Path(name), form)
        for role in roles:  # a table without rows has them too, unless its only line is no header
            value(model, dict.fromkeys(header, ""), role, name)
    for number, row in rows:
        texts = [value(model, row, role, f"{name}, line {number}") for role in roles]
        yield tuple(texts) if model.options.pairs else texts[0]


def value(model: FineTunedModel, row: Mapping[str, Any], role: str, place: str) -> Any:
    """A text, by the name of its column in the training data or by its role; a tagger takes a `text` too.

    Raises:
        UserError: there is none; names its place.
    """
    column, by_word = model.options.columns[role], model.head.by_word
    names = [column, role, *(["text"] if by_word else [])]
    name = next((name for name in names if name in row), None)
    cell = None if name is None else row[name]
    if isinstance(cell, str):
        return cell.split() if by_word and name != "text" else cell  # words as the task reads them
    if cell is not None and by_word and is_plain_list(cell):
        return [str(word) for word in cell]
    if cell is not None:
        raise UserError(f"{place} has {shortened(str(cell))} under '{column}', which is no text.")
    raise UserError(f"{place} has no text under '{column}', which this model reads (it has {listed(row)}).")


def open_source(path: str) -> IO[str]:
    """A file, or `-` for standard input, as UTF-8."""
    if path == "-":
        sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")  # type: ignore[union-attr]
        return sys.stdin
    try:
        return open(path, encoding="utf-8-sig", newline="\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None


def open_target(path: Path, source: IO[str]) -> AbstractContextManager[IO[str]]:
    """A file that appears whole or not at all; a pipe or a device is written to as it is.

    Raises:
        UserError: it cannot be written, or is what is read.
    """
    if path.exists() and not path.is_file():
        return open(path, "w", encoding="utf-8")
    if path.exists() and os.path.samestat(path.stat(), os.fstat(source.fileno())):
        raise UserError(f"{path} is the input, which the answers would replace; choose another --out.")
    place = path.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {reason(error)}.") from None
    return open_atomically(place)


def form_of(path: str, asked: str | None) -> str:
    """The format asked for, or that of the file's name; lines otherwise.

    Raises:
        UserError: the name is that of a kind of file whose lines are no texts.
    """
    suffix = Path(path).suffix.removeprefix(".").lower()
    if asked or suffix in ("", "txt"):
        return asked or "lines"
    if suffix not in INPUTS:
        raise UserError(f"predict does not read .{suffix} files; it reads .tsv, .csv, .jsonl, and --format=lines.")
    return suffix
