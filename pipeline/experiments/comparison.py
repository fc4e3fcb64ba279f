"""Comparison: the table and the plot of many fine-tunes, and what pretraining gained."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.presets import ARMS
from pipeline.storage.atomic import write_atomically
from pipeline.tracking import plots
from pipeline.tracking.tables import markdown_table

Rows = list[dict[str, Any]]  # fine-tunes: model, task, arm, seed, metric, score, ... (see grid.summary)


def report(rows: Rows, out: Path) -> None:
    """Writes compare.csv, compare.md and compare.png into `out`: models and tasks in the order of the rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out / "compare.csv", text.getvalue())
    write_atomically(out / "compare.md", table(rows))
    plot(rows, out / "compare.png")


def show(out: Path) -> None:
    """Prints the table in `out`, and the names of all its files."""
    print((out / "compare.md").read_text())
    print(f"Saved {', '.join(path.name for path in sorted(out.glob('compare.*')))} in {out}")


def in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def arms_of(rows: Rows) -> list[str]:
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


def scores_of(rows: Rows, model: str, task: str, arm: str) -> list[float]:
    return [row["score"] for row in rows if (row["model"], row["task"], row["arm"]) == (model, task, arm)]


def pretrained_arm(arms: list[str]) -> str | None:
    """The arm whose gain over scratch is reported."""
    return next((arm for arm in ("full", "frozen", "random") if arm in arms and "scratch" in arms), None)


def best_baseline(rows: Rows) -> tuple[str, list[float]]:
    """The name of the baseline that is best on the mean, and its score beside each run: training rows may differ.

    Of those in the metric of the task: one in another metric has a second slash.
    """
    names = [name for name in rows[0] if name.startswith("baseline/") and name.count("/") == 1]
    scores = {name: [float(row[name]) for row in rows] for name in names}
    best = max(scores, key=lambda name: sign_of(rows) * sum(scores[name]))
    return best.removeprefix("baseline/").replace("_", " "), scores[best]


def sign_of(rows: Rows) -> int:
    """1 where more of the metric is better, -1 where less is: a gain is positive where pretraining helped."""
    return -1 if rows[0].get("mode") == "min" else 1


def table(rows: Rows) -> str:
    """Markdown: a line for each model and task."""
    arms = arms_of(rows)
    gains = [f"gain of {arm} over scratch" for arm in [pretrained_arm(arms)] if arm]
    head = ["task", "model", *arms, *gains, "best baseline", "tokens", "minutes"]
    lines = []
    for task, model in itertools.product(in_order(rows, "task"), in_order(rows, "model")):
        mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        if mine:
            lines.append(_cells(mine, task, model, arms))
    return markdown_table(head, lines) + "\n" + NOTE


NOTE = """\
Scores on the test part: mean ± standard deviation over seeds (all runs). A gain is the mean of the differences of
runs with the same seed, with its 95 % interval (paired t) where there are several; where a baseline is better than
scratch, the gain over it is added. "No gain": one of the intervals is not all above 0 (with one seed: a difference
is not). N†: N of the runs predict the same for all rows. Tokens and minutes are means of the runs.
"""


def _cells(rows: Rows, task: str, model: str, arms: list[str]) -> list[str]:
    cells = [f"{Path(task).stem} ({rows[0]['metric'].replace('_', ' ')})", model]
    by_arm = {arm: scores_of(rows, model, task, arm) for arm in arms}
    for arm, scores in by_arm.items():
        flat = sum(bool(row["degenerate"]) for row in rows if row["arm"] == arm)
        cells.append(format_scores(scores) + (f" {flat}†" if flat else ""))
    name, values = best_baseline(rows)
    if tuned := pretrained_arm(arms):
        beside = [value for value, row in zip(values, rows, strict=True) if row["arm"] == tuned]
        signed = [[sign_of(rows) * score for score in scores] for scores in (by_arm[tuned], by_arm["scratch"], beside)]
        cells.append(gain_over_scratch(*signed))
    cells.append(f"{sum(values) / len(values):.3f} ({name})")
    tokens, minutes = (sum(row[name] for row in rows) / len(rows) for name in ("tokens", "minutes"))
    return [*cells, f"{tokens:,.0f}", f"{minutes:.1f}"]


def format_scores(scores: list[float]) -> str:
    """Mean, standard deviation and the scores of all runs."""
    if not scores:
        return ""
    mean, deviation = metrics.mean_and_deviation(scores)
    if len(scores) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {deviation:.3f} ({', '.join(f'{score:.3f}' for score in scores)})"


def gain_over_scratch(scores: list[float], scratch: list[float], baseline: list[float]) -> str:
    """The gain over scratch, and over the best baseline where that beats scratch; "no gain" where one may be 0."""
    runs = list(zip(scores, scratch, baseline, strict=False))
    if not runs:
        return ""
    ours, theirs, simple = zip(*runs, strict=True)
    text, helped = gain(ours, theirs)
    if sum(simple) > sum(theirs):
        over_simple, helped_too = gain(ours, simple)
        text, helped = f"{text}; {over_simple} over the baseline", helped and helped_too
    return text if helped else f"{text}: no gain"


def gain(scores: Sequence[float], others: Sequence[float]) -> tuple[str, bool]:
    """Mean of the differences with its interval, and whether that is above 0."""
    mean, half = metrics.paired_gain(scores, others)
    if half is None:
        return f"{mean:+.3f}", mean > 0
    return f"**{mean:+.3f}** [{mean - half:+.3f}, {mean + half:+.3f}]", mean > half


def plot(rows: Rows, file: Path) -> None:
    """The gain over scratch of each model on each task, with intervals; crosses: the best baseline over scratch."""
    arm = pretrained_arm(arms_of(rows))
    if arm is None:
        file.unlink(missing_ok=True)  # of rows that are gone
        return
    tasks, models = in_order(rows, "task"), in_order(rows, "model")
    figure, axes = plots.subplots(figsize=(3 + 1.6 * len(tasks), 4))
    for place, model in enumerate(models):
        offset = 0.2 * (place - (len(models) - 1) / 2)
        for number, task in enumerate(tasks):
            pairs = list(zip(*(scores_of(rows, model, task, side) for side in (arm, "scratch")), strict=False))
            if not pairs:
                continue
            mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
            mean, half = metrics.paired_gain(*zip(*pairs, strict=True))
            axes.errorbar(number + offset, sign_of(mine) * mean, yerr=half, fmt="o", color=f"C{place}", capsize=3)
            _, values = best_baseline(mine)
            over = sign_of(mine) * (sum(values) / len(values) - sum(score for _, score in pairs) / len(pairs))
            axes.plot(number + offset, over, "x", color=f"C{place}", alpha=0.6)
        axes.plot([], [], "o", color=f"C{place}", label=model)
    axes.plot([], [], "x", color="grey", label="best baseline")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(tasks)), [Path(task).stem for task in tasks])
    axes.set_ylabel(f"gain of {arm} over scratch")
    if any(row["seed"] for row in rows):
        axes.set_title("bars: 95 % interval over seeds", fontsize="medium")
    axes.legend()
    plots.save_figure(figure, file)
