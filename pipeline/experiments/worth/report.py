"""The report on the labels that pretraining saves: table, words and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.experiments.comparison.gains import format_score
from pipeline.experiments.conditions import Runs, differing, sentences, unequal, value_of
from pipeline.experiments.worth import plot as worth_plot
from pipeline.experiments.worth.labels_saved import FULL, RUN, SCRATCH, LabelsSaved, Need
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.storage.csv_table import csv_table
from pipeline.tracking.metric_names import readable
from pipeline.tracking.tables import markdown_table
from tasks.metrics import shown

HEAD = ["labels", FULL, SCRATCH, "best baseline", f"labels that {SCRATCH} needs for the score of {FULL}"]


def report(found: LabelsSaved, out: Path) -> None:
    """Writes worth.md, worth.csv, worth.png and, last, metrics.json."""
    write_atomically(out / "worth.csv", csv_table([*RUN[:-1], found.metric], found.runs))
    write_atomically(out / "worth.md", table(found))
    worth_plot.plot([found], out / "worth.png", title=found.title)
    write_json(out / "metrics.json", figures(found))


def figures(found: LabelsSaved) -> dict[str, Any]:
    """The content of metrics.json; null where the most labels that were tried are too few."""
    result: dict[str, Any] = {"metric": found.metric, "seeds": len(found.full[found.sizes[0]])}
    for size in found.sizes:
        for arm in (FULL, SCRATCH):
            mean, deviation = metrics.mean_and_deviation(found.arms[arm][size])
            result |= {f"labels/{size}/{arm}": mean, f"labels/{size}/{arm}_deviation": deviation}
        if size in found.baselines:
            result[f"labels/{size}/baseline"] = found.baselines[size]
        need = found.needs[size]
        values = {"needed": need.labels}
        if need.interval is not None:
            values |= dict(zip(("needed_low", "needed_high"), need.interval, strict=True))
        result |= {f"labels/{size}/{name}": _or_none(value) for name, value in values.items()}
    most = found.headline
    return result if most is None else {**result, "worth": _or_none(found.needs[most].labels - most), "worth_at": most}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(found: LabelsSaved) -> str:
    """Markdown: a line for each number of labels, and what it comes to."""
    columns = differing(found.made_with)
    scores = f"{readable(found.metric)} {note(found)} {verdict(found)}"
    return f"{markdown_table([*HEAD, *columns], lines(found, columns))}\n{scores}\n" + caveats([found])


def caveats(tables: Sequence[LabelsSaved]) -> str:
    """What the runs of some tables were made with, and what is missing; a line each."""
    pairs = [pair for found in tables for of_size in found.conditions.values() for pair in of_size]
    said = sentences([runs for found in tables for runs in found.made_with], unequal(pairs))
    for found in tables:
        if found.diverged:
            sizes = ", ".join(f"{size:,}" for size in found.diverged)
            said.append(f"Without a finite loss, so not in the table: {found.title} with {sizes} labels.")
    return "".join(f"{line}\n" for line in said)


def note(found: LabelsSaved) -> str:
    """What the scores and brackets of a table are."""
    rows = "A label is that of a row: all tags of a sentence are one."
    if len(found.full[found.sizes[0]]) == 1:
        return f"on the test part, of one seed, so how far another would lie from it is not known. {rows}"
    spread = "mean ± standard deviation over seeds; brackets: 95 %,\nfrom paired t-tests over seeds."
    return f"on the test part, {spread} {rows}"


def lines(found: LabelsSaved, columns: Sequence[str]) -> list[list[str]]:
    """The cells of a line for each number of labels, below `HEAD` and columns of conditions."""

    def line(size: int, runs: Runs) -> list[str]:
        scores = [format_score(found.arms[arm][size]) for arm in (FULL, SCRATCH)]
        baseline = shown(found.baselines[size]) if size in found.baselines else ""
        made = (value_of(runs, name) for name in columns)
        return [f"{size:,}", *scores, baseline, needed_text(found.needs[size], found.sizes), *made]

    return [line(size, runs) for size, runs in zip(found.sizes, found.made_with, strict=True)]


def needed_text(need: Need, sizes: Sequence[int]) -> str:
    """Labels with their interval, as 1,240 [900, 1,600]; beyond the numbers that were measured it says so."""
    least, most = sizes[0], sizes[-1]

    def words(value: float) -> str:
        return f"> {most:,}" if value == math.inf else f"≤ {least:,}" if value <= least else f"{value:,.0f}"

    if need.interval is None:
        return words(need.labels)
    return f"{words(need.labels)} [{words(need.interval[0])}, {words(need.interval[1])}]"


def verdict(found: LabelsSaved) -> str:
    """What pretraining is worth, in a sentence or two."""
    size, most = found.headline, found.sizes[-1]
    if not any(map(found.beats_baseline, found.sizes)):
        return f"With none of these numbers of labels is {FULL} better than the best baseline."
    if size is None and any(need.certain for need in found.needs.values()):
        return f"Where {SCRATCH} needs more labels than {FULL}, the best baseline is better than both."
    if size is None:
        return f"These runs leave open whether pretraining saves labels: {SCRATCH} may need no more of them."
    need, score = found.needs[size], metrics.mean_and_deviation(found.full[size])[0]
    begin = f"With {size:,} labels {FULL} scores {shown(score)}"
    if size == most:
        return f"{begin}, and {SCRATCH} does worse: it needs more labels for that than were tried."
    least = need.labels if need.interval is None else need.interval[0]
    if least == math.inf:
        return f"{begin}, and {SCRATCH} does not with {most:,}: pretraining is worth more than {most - size:,} labels."
    reached = needed_text(need, found.sizes)
    worth = f"more than {least - size:,.0f}" if need.labels == math.inf else f"{need.labels - size:,.0f}"
    return f"{begin}; {SCRATCH} needs {reached} labels for that: pretraining is worth {worth} labels."
