"""Comparison: the table and the plot of many fine-tunes, and what pretraining gained."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.errors import UserError
from pipeline.experiments import comparison_plot, conditions
from pipeline.presets import ARMS
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.storage.validation import read_text
from pipeline.tracking.tables import markdown_table

Rows = list[dict[str, Any]]  # fine-tunes: model, task, arm, seed, metric, score, ... (see grid.summary)
NUMBERS = {"seed": int, "score": float, "chosen_by": float, "tokens": float, "minutes": float}
COMMANDS = "command.txt"  # those that have written a table, a line each
PART = re.compile(r" ('?)--(models|tasks|arms|seeds)=.*?\1(?= |$)")  # of a grid, in a line of a shell


def is_baseline(name: str) -> bool:
    """Whether a metric is a baseline in the metric of its task: one in another metric has a second slash."""
    return name.startswith("baseline/") and name.count("/") == 1


@dataclass(frozen=True)
class Gain:
    """A mean difference of paired runs, and half of its 95 % interval; None of a single pair."""

    mean: float
    half: float | None

    @property
    def is_open(self) -> bool:
        """Whether the runs do not tell a gain from a loss: a single pair has no interval."""
        return self.half is None or abs(self.mean) <= self.half

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.mean > 0 and not self.is_open

    def __str__(self) -> str:
        if self.half is None:
            return f"{self.mean:+.3f}"
        text = f"{self.mean:+.3f} [{self.mean - self.half:+.3f}, {self.mean + self.half:+.3f}]"
        return f"**{text}**" if self.is_certain else text


@dataclass(frozen=True)
class Line:
    """All runs of a model on a task: a line of the table.

    Attributes:
        arms: name -> scores by seed, of the arms that the whole comparison has.
    """

    task: str
    model: str
    rows: Rows
    arms: dict[str, list[float]]

    @property
    def task_name(self) -> str:
        return Path(self.task).stem

    @property
    def metric(self) -> str:
        """Its name in words."""
        return self.rows[0]["metric"].replace("_", " ").replace(" f1", " F1")

    @property
    def sign(self) -> int:
        """1 where more of the metric is better, -1 where less is: a gain is positive where pretraining helped."""
        return metrics.sign(self.rows[0].get("mode"))

    @property
    def best_arm(self) -> str | None:
        """The arm with the best mean; None where another one has the same."""
        means = {arm: self.sign * sum(scores) / len(scores) for arm, scores in self.arms.items() if scores}
        best = [arm for arm, mean in means.items() if math.isclose(mean, max(means.values()), abs_tol=1e-9)]
        return best[0] if len(best) == 1 else None

    @property
    def best_baseline(self) -> tuple[str, list[float]] | None:
        """The name of the baseline with the best mean, and its score beside each run: training rows may differ.

        Of those that all runs have: another version may know another one.
        """
        names = [name for name in self.rows[0] if is_baseline(name) and all(name in row for row in self.rows)]
        scores = {name: [float(row[name]) for row in self.rows] for name in names}
        if not scores:
            return None
        best = max(scores, key=lambda name: self.sign * sum(scores[name]))
        return best.removeprefix("baseline/").replace("_", " "), scores[best]

    @property
    def gain_over_scratch(self) -> Gain | None:
        """Of the arm that pretraining is judged by, over the seeds that both arms have."""
        arm = pretrained_arm(list(self.arms))
        if arm is None:
            return None
        ours, scratch = (
            {row["seed"]: row["score"] for row in self.rows if row["arm"] == name} for name in (arm, "scratch")
        )
        return self._gain([(score, scratch[seed]) for seed, score in ours.items() if seed in scratch])

    @property
    def gain_over_baseline(self) -> Gain | None:
        arm, best = pretrained_arm(list(self.arms)), self.best_baseline
        if arm is None or best is None:
            return None
        beside = zip(self.rows, best[1], strict=True)
        return self._gain([(row["score"], value) for row, value in beside if row["arm"] == arm])

    def _gain(self, pairs: Sequence[tuple[float, float]]) -> Gain | None:
        """Of scores, each with the one beside it."""
        if not pairs:
            return None
        mean, half = metrics.paired_gain(*([self.sign * value for value in side] for side in zip(*pairs, strict=True)))
        return Gain(mean, half)

    def degenerate(self, arm: str) -> int:
        """How many runs of an arm predict the same for all rows."""
        return sum(bool(row["degenerate"]) for row in self.rows if row["arm"] == arm)

    def mean_of(self, name: str) -> float:
        return sum(row[name] for row in self.rows) / len(self.rows)


def lines_of(rows: Rows) -> list[Line]:
    """A line for each task and model, in the order of the rows."""
    arms, found = arms_of(rows), []
    for task, model in itertools.product(in_order(rows, "task"), in_order(rows, "model")):
        mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        if mine:
            scores = {arm: [row["score"] for row in mine if row["arm"] == arm] for arm in arms}
            found.append(Line(task, model, mine, scores))
    return found


def in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def arms_of(rows: Rows) -> list[str]:
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


def pretrained_arm(arms: list[str]) -> str | None:
    """The arm whose gain over scratch is reported."""
    return next((arm for arm in ("full", "frozen", "random") if arm in arms and "scratch" in arms), None)


# ---------------------------------------------------------------------- files


def report(rows: Rows, out: Path) -> None:
    """Writes compare.csv, compare.md and compare.png into `out`: models and tasks in the order of the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    write_atomically(out / "compare.csv", csv_table(names, [[row.get(name, "") for name in names] for row in rows]))
    write_atomically(out / "compare.md", table(rows))
    comparison_plot.plot(lines_of(rows), pretrained_arm(arms_of(rows)), out / "compare.png")


def read(file: Path) -> Rows:
    """The rows of a compare.csv.

    Raises:
        UserError: the file is damaged; names the line.
    """
    rows: Rows = []
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            known = {name: value for name, value in row.items() if name and value}
            kinds = NUMBERS | dict.fromkeys((name for name in known if name.startswith("baseline/")), float)
            try:
                numbers = {name: convert(known[name]) for name, convert in kinds.items()}
                words = {name: known[name] for name in ("model", "task", "arm", "metric", "degenerate")}
            except (KeyError, ValueError):
                raise UserError(f"{file}, line {reader.line_num}, is damaged; run the comparison again.") from None
            rows.append({**known, **numbers, **words, "degenerate": words["degenerate"] == "True"})
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


# ---------------------------------------------------------------------- the table


def table(rows: Rows) -> str:
    """Markdown: a line for each model and task."""
    lines, arms = lines_of(rows), arms_of(rows)
    tuned = pretrained_arm(arms)
    gains = [f"gain of {tuned} over scratch", f"gain of {tuned} over the baseline"] if tuned else []
    differing = conditions.differing([line.rows for line in lines])
    head = ["task", "model", *arms, "best baseline", *gains, "tokens", "minutes", *differing]
    cells = [
        [*_cells(line, arms, with_gains=bool(gains)), *(conditions.value_of(line.rows, name) for name in differing)]
        for line in lines
    ]
    return markdown_table(head, cells) + "\n" + note(lines)


NOTE = """\
Scores on the test part: mean ± standard deviation over seeds; the best arm is bold. A gain is the mean of the
differences of runs with the same seed, with its 95 % interval (paired t) where there are several seeds; it is bold
where the whole interval is above 0. Where it holds 0, or there is none, these runs leave open whether there is a gain.
Tokens and minutes are means of the runs. compare.csv has every run.
"""
FLAT = "†: the number of runs that predict the same for all rows.\n"


def note(lines: Sequence[Line]) -> str:
    flat = FLAT if any(line.degenerate(arm) for line in lines for arm in line.arms) else ""
    return NOTE + flat + "".join(f"{sentence}\n" for sentence in conditions.sentences([line.rows for line in lines]))


def _cells(line: Line, arms: Sequence[str], *, with_gains: bool) -> list[str]:
    cells = [f"{line.task_name} ({line.metric})", line.model]
    for arm in arms:
        text = format_score(line.arms[arm])
        flat = line.degenerate(arm)
        cells.append((f"**{text}**" if arm == line.best_arm else text) + (f" {flat}†" if flat else ""))
    best = line.best_baseline
    cells.append(f"{sum(best[1]) / len(best[1]):.3f} ({best[0]})" if best else "")
    if with_gains:
        cells += [str(gain) if gain else "" for gain in (line.gain_over_scratch, line.gain_over_baseline)]
    return [*cells, f"{line.mean_of('tokens'):,.0f}", f"{line.mean_of('minutes'):.1f}"]


def format_score(scores: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not scores:
        return ""
    mean, deviation = metrics.mean_and_deviation(list(scores))
    return f"{mean:.3f}" if len(scores) == 1 else f"{mean:.3f} ± {deviation:.3f}"


def format_scores(scores: Sequence[float]) -> str:
    """Mean, standard deviation and the scores of all runs."""
    runs = f" ({', '.join(f'{score:.3f}' for score in scores)})" if len(scores) > 1 else ""
    return format_score(scores) + runs
