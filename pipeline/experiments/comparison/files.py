"""The files of a comparison: its rows, its table, its plot and the commands that made them."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from pipeline.errors import UserError
from pipeline.experiments.comparison import plot as comparison_plot
from pipeline.experiments.comparison.gains import Rows, arms_of, lines_of, pretrained_arm
from pipeline.experiments.comparison.table import footnotes, score_table
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.storage.validation import read_text

NUMBERS = {"seed": int, "score": float, "chosen_by": float, "tokens": float, "minutes": float}
COMMANDS = "command.txt"  # those that have written a table, a line each
PART = re.compile(r" ('?)--(models|tasks|arms|seeds)=.*?\1(?= |$)")  # of a grid, in a line of a shell


def report(rows: Rows, out: Path) -> None:
    """Writes compare.csv, compare.md and compare.png into `out`: models and tasks in the order of the rows.

    Raises:
        UserError: the file of footnotes in `out` is damaged.
    """
    lines = lines_of(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_atomically(out / "compare.csv", csv_table(names, [[row.get(name, "") for name in names] for row in rows]))
    write_atomically(out / "compare.md", score_table(lines, footnotes(out), costs=True).markdown)
    comparison_plot.plot(lines, pretrained_arm(arms_of(rows)), out / "compare.png")


def read(file: Path) -> Rows:
    """The rows of a compare.csv.

    Raises:
        UserError: the file is damaged; names the line.
    """
    rows: Rows = []
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
    try:
        for row in reader:
            known = {name: value for name, value in row.items() if name and value}
            kinds = NUMBERS | dict.fromkeys((name for name in known if name.startswith("baseline/")), float)
            numbers = {name: convert(known[name]) for name, convert in kinds.items()}
            words = {name: known[name] for name in ("model", "task", "arm", "metric", "degenerate")}
            rows.append({**known, **numbers, **words, "degenerate": words["degenerate"] == "True"})
    except (KeyError, ValueError, csv.Error):
        raise UserError(f"{file}, line {reader.line_num}, is damaged; run the comparison again.") from None
    return rows


def note_command(out: Path, command: str) -> None:
    """Adds a command to those that have written the table in `out`."""
    file = out / COMMANDS
    before = read_text(file).splitlines() if file.is_file() else []
    write_atomically(file, "\n".join([*(line for line in before if line != command), command]) + "\n")


def commands_in(out: Path) -> list[str]:
    """The commands that make the table again: the last one, and where it made a part, those of other parts of the same
    grid. None of a table that an older version has written."""
    file = out / COMMANDS
    lines = read_text(file).splitlines() if file.is_file() else []
    last = "".join(lines[-1:])
    is_part = PART.search(last) is not None
    return [line for line in lines if line == last or (is_part and PART.sub("", line) == PART.sub("", last))]


def show(out: Path) -> None:
    """Prints the table in `out`, and the names of all its files."""
    print((out / "compare.md").read_text())
    print(f"Saved {', '.join(path.name for path in sorted(out.glob('compare.*')))} in {out}")
