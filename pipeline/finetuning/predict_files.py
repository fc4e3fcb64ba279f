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
from pipeline.finetuning.model import TunedModel
from pipeline.presets import INPUTS
from pipeline.storage.atomic import open_atomically, reason
from pipeline.storage.json_lines import json_line
from tasks.base import is_plain_list, listed, shortened


def predict(model: TunedModel, source: IO[str], name: str, *, form: str, target: IO[str], batch_size: int) -> int:
    """Reads texts from `source`, writes answers to `target` as they are made; returns how many.

    A text that is too long for the model is cut; its row has `"cut": true`, and how many there are is told at the end.

    Args:
        name: of the source, for messages.
        form: `lines` (a text a line; of a pair both, with a tab between them), `jsonl`, `tsv` or `csv` with a header.

    Raises:
        UserError: a row without what the model reads.
    """
    if batch_size < 1:
        raise UserError(f"A batch of {batch_size} texts is none; --batch-size must be 1 at least.")
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


def texts_of(model: TunedModel, source: IO[str], name: str, form: str) -> Iterator[Any]:
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
            f"This model reads {', '.join(roles)} as its task joins them; give it texts so joined, as lines "
            "(--format lines)."
        )
    rows: Iterable[tuple[int, Mapping[Any, Any]]]
    if form == "jsonl":
        rows = read_jsonl(source, Path(name))
    else:
        header, rows = table(source, Path(name), form)
        for role in roles:  # a table without rows has them too, unless its only line is no header
            value(dict.fromkeys(header, ""), role, model.options.columns[role], name)
    for number, row in rows:
        found = [value(row, role, model.options.columns[role], f"{name}, line {number}") for role in roles]
        yield tuple(found) if model.options.pairs else found[0]


def value(row: Mapping[str, Any], role: str, column: str, place: str) -> Any:
    """A text, by the name of its column in the training data or by its role; a tagger takes a `text` too."""
    names = [column, role, *(["text"] if role == "words" else [])]
    name = next((name for name in names if name in row), None)
    found = None if name is None else row[name]
    if isinstance(found, str):
        return found.split() if role == "words" and name != "text" else found  # words as the task reads them
    if found is not None and role == "words" and is_plain_list(found):
        return [str(word) for word in found]
    if found is not None:
        raise UserError(f"{place} has {shortened(str(found))} under '{column}', which is no text.")
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
