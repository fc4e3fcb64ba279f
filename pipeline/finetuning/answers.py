"""Answers of `predict` as a file: JSON lines, or a table beside the columns that were read."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from typing import IO, Any

from pipeline.errors import UserError
from pipeline.storage.json_lines import json_line
from tasks.dataset import is_plain_list

DELIMITERS = {".csv": ",", ".tsv": "\t"}  # of tables, by the ending of their file
Write = Callable[[Mapping[str, Any], Any, dict[str, Any]], None]


def json_writer(target: IO[str]) -> Write:
    """Writes the text and the answer as a line of JSON."""

    def write(row: Mapping[str, Any], text: Any, answer: dict[str, Any]) -> None:
        shown = {} if "words" in answer and not isinstance(text, str) else {"text": text}
        target.write(json_line({**shown, **answer}))

    return write


def table_writer(target: IO[str], delimiter: str) -> Write:
    """Writes the columns of the input and those of the answer, `predicted_label`, `probability`, ..., as a table.

    A column of the answer that the input has too, as after an earlier `predict`, gets another `predicted_` in front.

    Writing raises UserError for a row with a column that the first one has not: the header is written by then.
    """
    writer, quoting = (
        csv.writer(target, delimiter=delimiter, lineterminator="\n", quoting=how)
        for how in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    header: list[str] = []

    def write(row: Mapping[str, Any], text: Any, answer: dict[str, Any]) -> None:
        cells = columns_of(answer)
        if not header:
            header.extend(row)
            names = [*row]
            for name in cells:
                while name in names:
                    name = f"predicted_{name}"
                names.append(name)
            writer.writerow(names)
        if unseen := [name for name in row if name not in header]:
            raise UserError(
                f"A row has '{unseen[0]}', which the first one has not: a table has the same columns in each row; name "
                "them in the first one, or choose an --out that ends in .jsonl."
            )
        values = [*(cell(row.get(name)) for name in header), *cells.values()]
        bare = any("\r" in str(value) for value in values)  # ends a line for readers, and is not quoted by the other
        (quoting if bare else writer).writerow(values)

    return write


def columns_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as cells of a table; the same ones for every text."""
    cells: dict[str, Any] = {}
    for name, value in answer.items():
        if isinstance(value, dict):  # the probability of each label
            cells |= {f"probability_{label}": number for label, number in value.items()}
        elif name.startswith("probabilit"):
            cells[name] = cell(value)
        elif name != "cut":
            cells[f"predicted_{name}"] = cell(value, separator="," if name == "labels" else " ")
    return {**cells, "cut": "true" if "cut" in answer else "false"}


def cell(value: Any, *, separator: str = " ") -> Any:
    """A list with the separator between its parts, where none of them holds it; other values as JSON."""
    if is_plain_list(value) and not any(separator in str(part) for part in value):
        return separator.join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
