"""The one table of a comparison: scores with intervals, footnotes, and what each row was made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.experiments import comparison, conditions
from pipeline.experiments.comparison import Line
from pipeline.reporting.page import Table
from pipeline.storage.validation import checked, read_yaml

NOTES = "notes.yaml"  # footnotes, in the folder of a comparison
MARKS = "\N{SUPERSCRIPT ONE}\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}⁴⁵⁶⁷⁸⁹"


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
    """The footnotes in a folder; none where there is no file of them.

    Raises:
        UserError: the file is damaged, or names something else.
    """
    file = folder / NOTES
    return checked(list[Footnote], read_yaml(file), file) if file.is_file() else []


def score_table(lines: Sequence[Line], arms: Sequence[str], notes: Sequence[Footnote] = ()) -> Table:
    """A row for each task and model; the best arm and the certain gains are bold."""
    tuned = comparison.pretrained_arm(list(arms))
    texts = list(dict.fromkeys(note.text for note in notes if not note.is_general))
    differing = conditions.differing([line.rows for line in lines])
    cells = []
    for line in lines:
        numbers = sorted({texts.index(note.text) for note in notes if note.is_of(line)})
        marks = ",".join(MARKS[number] for number in numbers)
        row = [f"{line.task_name} ({line.metric})", line.model + marks]
        for arm in arms:
            text = comparison.format_score(line.arms[arm])
            row.append(f"**{text}**" if arm == line.best_arm else text)
        best = line.best_baseline
        row.append(f"{sum(best[1]) / len(best[1]):.3f} ({best[0]})" if best else "")
        if tuned:
            row += [str(gain) if gain else "" for gain in (line.gain_over_scratch, line.gain_over_baseline)]
        cells.append([*row, *(conditions.value_of(line.rows, name) for name in differing)])
    head = ["task (metric)", "model", *arms, "best baseline"]
    head += ["gain over scratch", "gain over the baseline"] if tuned else []
    below = [*how_to_read(lines, arms, tuned), *conditions.sentences([line.rows for line in lines])]
    below += [note.text for note in notes if note.is_general]
    below += [f"{MARKS[number]} {text}" for number, text in enumerate(texts)]
    caption = "Scores of every arm, and what pretraining gained."
    return Table([*head, *differing], cells, caption, below, numbers=())


def how_to_read(lines: Sequence[Line], arms: Sequence[str], tuned: str | None) -> list[str]:
    counts = sorted({len(scores) for line in lines for scores in line.arms.values() if scores})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
    notes = [f"Scores on the test part: mean ± standard deviation over {seeds}; the best arm of a row is bold."]
    if tuned:
        notes.append(
            f"Gains are those of {tuned}: means of paired differences, with 95 % intervals (Student's t) over seeds. "
            "A bold gain is above 0 in the whole interval; other gains may be chance."
        )
    flat = [
        f"{line.model} on {line.task_name}, {arm}: {line.degenerate(arm)}"
        for line in lines
        for arm in arms
        if line.degenerate(arm)
    ]
    return [*notes, f"Runs that predict the same for all rows: {'; '.join(flat)}."] if flat else notes
