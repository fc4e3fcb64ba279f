"""The one table of a comparison: scores with intervals, footnotes, and what each row was made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.experiments import conditions
from pipeline.experiments.comparison.gains import Line, format_score, has_intervals, pretrained_arm, why_no_interval
from pipeline.experiments.run_cache import DIVERGED
from pipeline.storage.validation import checked, read_yaml
from pipeline.tracking.tables import markdown_table, superscript
from tasks.metrics import shown

NOTES = "notes.yaml"  # footnotes, in the folder of a comparison


@dataclass
class Footnote:
    """A caveat; of the whole table, or of the rows of a task, of a model, or of both."""

    text: str
    task: str | None = None
    model: str | None = None

    @property
    def is_general(self) -> bool:
        return self.task is None and self.model is None

    def is_of(self, line: Line) -> bool:
        return not self.is_general and self.task in (None, line.task_name) and self.model in (None, line.model)


def footnotes(folder: Path) -> list[Footnote]:
    """The footnotes in a folder, and one of runs whose loss was not finite: no table has them.

    Raises:
        UserError: the file of footnotes is damaged, or names something else.
    """
    file = folder / NOTES
    found = checked(list[Footnote], read_yaml(file), file) if file.is_file() else []
    if diverged := sorted(place.parent.name for place in folder.glob(f"runs/*/{DIVERGED}")):
        found.append(Footnote(f"Without a finite loss, and in no score: {', '.join(diverged)}."))
    return found


@dataclass(frozen=True)
class ScoreTable:
    """Cells, and what is to be read below them. `**...**` around a cell is bold."""

    head: list[str]
    rows: list[list[str]]
    notes: list[str]

    @property
    def markdown(self) -> str:
        return markdown_table(self.head, self.rows) + "".join(f"\n{note}\n" for note in self.notes)


def score_table(lines: Sequence[Line], notes: Sequence[Footnote] = (), *, costs: bool = False) -> ScoreTable:
    """A row for each task and model; the best arm, where it is above the best baseline, and the certain gains are bold.

    Args:
        costs: whether a row has the tokens and minutes of its runs.
    """
    arms = list(lines[0].arms) if lines else []
    tuned = pretrained_arm(arms)
    differing = conditions.differing([line.rows for line in lines])
    texts = list(dict.fromkeys(note.text for note in notes if any(note.is_of(line) for line in lines)))
    head = ["task (metric)", "model", *arms, "best baseline"]
    head += ["gain over scratch", "gain over the baseline"] * (tuned is not None)
    head += ["tokens", "minutes"] * costs
    rows = []
    for line in lines:
        numbers = sorted({1 + texts.index(note.text) for note in notes if note.is_of(line)})
        row = [f"{line.task_name} ({line.metric})", line.model + ",".join(map(superscript, numbers))]
        row += [_score_cell(line, arm) for arm in arms]
        best = line.best_baseline
        row.append(f"{shown(best.mean)} ({best.name})" if best else "")
        if tuned:
            row += [str(gain) if gain else "" for gain in (line.gain_over_scratch, line.gain_over_baseline)]
        if costs:
            row += [f"{line.mean_of('tokens'):,.0f}", f"{line.mean_of('minutes'):.1f}"]
        rows.append([*row, *(conditions.value_of(line.rows, name) for name in differing)])
    apart = conditions.unequal(runs for line in lines for runs in line.by_seed)
    below = [*how_to_read(lines, arms, tuned), *conditions.sentences([line.rows for line in lines], apart)]
    below += ["Tokens and minutes are means of the runs, which compare.csv has one by one."] * costs
    below += [note.text for note in notes if note.is_general]
    below += [f"{superscript(number)} {text}" for number, text in enumerate(texts, start=1)]
    return ScoreTable([*head, *differing], rows, below)


def _score_cell(line: Line, arm: str) -> str:
    text = format_score(line.arms[arm])
    return f"**{text}**" if arm == line.best_arm and line.is_worth_a_mark else text


def how_to_read(lines: Sequence[Line], arms: Sequence[str], tuned: str | None) -> list[str]:
    counts = sorted({len(scores) for line in lines for scores in line.arms.values() if scores})
    bold = "; the best arm of a row is bold where it is better than the best baseline" * (len(arms) > 1)
    if not counts or counts[-1] == 1:
        notes = [f"Scores on the test part, of one seed{bold}."]
    else:
        seeds = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
        notes = [f"Scores on the test part: mean ± standard deviation over {seeds} seeds{bold}."]
    if has_intervals(lines):
        notes.append(
            f"Gains are those of {tuned}: means of paired differences, with 95 % intervals (Student's t) over seeds. "
            "A bold gain is above 0 in the whole interval; other gains may be chance."
        )
    elif any(line.gains for line in lines):
        notes.append(f"Gains are those of {tuned}, {why_no_interval(lines)}: they may be chance.")
    flat = [
        f"{line.model} on {line.task_name}, {arm}: {line.degenerate(arm)}"
        for line in lines
        for arm in arms
        if line.degenerate(arm)
    ]
    return [*notes, f"Runs that predict the same for all rows: {'; '.join(flat)}."] if flat else notes
