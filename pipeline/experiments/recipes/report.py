"""The results of recipes: a table, the runs, and a plot."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.experiments.comparison.gains import format_score
from pipeline.experiments.conditions import CONDITIONS, differing, sentences, unequal, value_of
from pipeline.metrics import Difference
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.tracking import plots
from pipeline.tracking.amounts import count
from pipeline.tracking.metric_names import readable
from pipeline.tracking.tables import markdown_table

BASE = "base"
CERTAIN = 0.01  # p of a paired t-test below which a change is said to be one


@dataclass(frozen=True)
class Change(Difference):
    """The mean difference of a recipe from the base, over seeds that both have; below 0: better."""

    @property
    def is_certain(self) -> bool:
        return self.p is not None and self.p < CERTAIN

    @property
    def is_loss(self) -> bool:
        return self.is_certain and self.mean > 0

    @property
    def verdict(self) -> str:
        if self.p is None:
            return "one seed"
        if not self.is_certain:
            return "no gain"
        return "loss" if self.is_loss else "**gain**"


@dataclass(frozen=True)
class Measured:
    """What was measured.

    Args:
        title: model and corpus.
        metric: in the metrics of runs; less is better.
        titles: recipe -> its title and its source.
        runs: recipe -> seed -> metrics of the run.
        diverged: recipe -> seeds whose loss was not finite.
    """

    title: str
    metric: str
    titles: dict[str, tuple[str, str]]
    runs: dict[str, dict[int, dict[str, Any]]]
    diverged: dict[str, list[int]] = field(default_factory=dict)

    def scores(self, name: str) -> list[float]:
        return [metrics[self.metric] for metrics in self.runs[name].values()]

    @cached_property
    def changes(self) -> dict[str, Change]:
        """Of each recipe that has a seed in common with the base."""
        return {name: change for name in self.runs if name != BASE and (change := self._change(name)) is not None}

    def _change(self, name: str) -> Change | None:
        pairs = self.pairs(name)
        return Change.of(*zip(*pairs, strict=True)) if pairs else None

    def pairs(self, name: str) -> list[tuple[float, float]]:
        """A recipe and the base, for each seed that both have."""
        return [(ours[self.metric], base[self.metric]) for ours, base in self._paired(name)]

    @property
    def compared(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The runs of each recipe, each with that of the base of its seed."""
        return [pair for name in self.changes for pair in self._paired(name)]

    def _paired(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        base = self.runs[BASE]
        return [(run, base[seed]) for seed, run in self.runs[name].items() if seed in base]

    def seconds(self, name: str) -> float:
        return statistics.fmean(metrics["seconds"] for metrics in self.runs[name].values())


def write(measured: Measured, out: Path) -> None:
    """Writes recipes.csv, recipes.md and recipes.png."""
    write_atomically(out / "recipes.csv", runs_table(measured))
    write_atomically(out / "recipes.md", table(measured))
    if measured.changes:
        plot(measured, out / "recipes.png")


def runs_table(measured: Measured) -> str:
    """CSV: a line for each run."""
    names = ["seconds", "tokens", "steps", *CONDITIONS]
    rows = [
        [recipe, seed, metrics[measured.metric], *(metrics.get(name, "") for name in names)]
        for recipe, runs in measured.runs.items()
        for seed, metrics in runs.items()
    ]
    return csv_table(["recipe", "seed", measured.metric, *names], rows)


def table(measured: Measured) -> str:
    """Markdown: a line for each recipe with a finished run."""
    found = [name for name, runs in measured.runs.items() if runs]
    lines = [list(measured.runs[name].values()) for name in found]
    conditions = differing(lines)
    rows = []
    for name, metrics in zip(found, lines, strict=True):
        title, source = measured.titles[name]
        change = measured.changes.get(name)
        seeds = len(measured.runs[name])
        said = ["", "", ""] if change is None else [change.text, p_text(change), change.verdict]
        cells = [f"{title} ({source})" if source else title, format_score(measured.scores(name)), *said]
        made = (value_of(metrics, condition) for condition in conditions)
        rows.append([*cells, str(seeds), f"{measured.seconds(name):,.0f}", *made])
    head = ["recipe", f"{measured.metric} (less is better)", "change", "p", "", "seeds", "seconds", *conditions]
    tokens = sorted(metrics["tokens"] for runs in measured.runs.values() for metrics in runs.values())
    ends = dict.fromkeys(count(number) for number in (*tokens[:1], *tokens[-1:]))  # of equal ones one
    note = [
        f"{measured.title}; {' to '.join(ends)} tokens a run." if ends else "",
        "Mean ± standard deviation over seeds; a change is the mean difference from the first line for equal seeds,",
        "with its 95 % interval (paired t); p is that of a paired t-test. "
        f"A change with p of {CERTAIN} or more is no gain.",
        *(f"{_diverged(measured, name)} ended without a finite loss." for name in measured.diverged),
        *sentences(lines, unequal(measured.compared, ("tokens", *CONDITIONS))),
    ]
    return markdown_table(head, rows) + "\n" + "\n".join(line for line in note if line) + "\n"


def _diverged(measured: Measured, name: str) -> str:
    """As `blocks without effect (seeds 0, 2)`."""
    seeds = measured.diverged[name]
    return f"{measured.titles[name][0]} (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})"


def p_text(change: Change) -> str:
    if change.p is None:
        return ""
    return "< 0.001" if change.p < 0.001 else f"{change.p:.3f}"


def plot(measured: Measured, file: Path) -> None:
    """The change of each recipe with its interval and that of each seed.

    A certain loss has another look than a gain; hollow: not certain.
    """
    names = list(measured.changes)
    seeds = {name: [ours - base for ours, base in measured.pairs(name)] for name in names}
    titles = [f"{measured.titles[name][0]} (n\u00a0=\u00a0{len(seeds[name])})" for name in names]
    labels = [textwrap.fill(title, 36) for title in titles]  # a long one leaves no room for the plot
    lines = sum(1 + label.count("\n") for label in labels)
    figure, axes = plots.subplots(1, 1, figsize=(8.5, 1.8 + 0.2 * (len(names) + lines)))
    for height, name in enumerate(names):
        change = measured.changes[name]
        look = {"fmt": "s", "color": plots.COLORS[1]} if change.is_loss else {"fmt": "o", "color": plots.COLORS[0]}
        fill = {} if change.is_certain else {"markerfacecolor": "white"}
        axes.errorbar(change.mean, height, xerr=change.half, capsize=3, markeredgewidth=2, **look, **fill)
        if len(seeds[name]) > 1:
            below = [height + 0.25] * len(seeds[name])
            axes.plot(seeds[name], below, ".", color=plots.GREY, markersize=5)
    axes.axvline(0, color=plots.GREY, linewidth=1.2, zorder=1)
    axes.set_yticks(range(len(names)), labels, parse_math=False)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    metric = readable(measured.metric)
    unit = " (nats)" * measured.metric.endswith("loss")
    orange = "orange squares: worse, " * any(change.is_loss for change in measured.changes.values())
    scale = ""
    if (near := _near(measured.changes.values())) is not None:
        axes.set_xscale("symlog", linthresh=near)
        axes.xaxis.set_major_formatter("{x:g}")
        scale = f"scale logarithmic beyond {near:g}, "
    notes = f"n: seeds (gray dots), bars: 95 % intervals over them;\n{scale}{orange}hollow: uncertain, or one seed"
    axes.set_xlabel(f"change of the validation {metric}{unit}: to the left is better;\n{notes}")
    axes.set_title(
        textwrap.fill(f"{measured.title}, compared with: {measured.titles[BASE][0]}", 60), loc="left", parse_math=False
    )
    plots.save_figure(figure, file)


def _near(changes: Collection[Change]) -> float | None:
    """The distance from 0 beyond which a plot needs a logarithmic scale, so that the nearest change can be seen.

    None: it needs none.
    """
    widths = [abs(change.mean) + (change.half or 0) for change in changes]
    near = 10.0 ** math.ceil(math.log10(min(widths) or 1))
    return near if max(widths) >= 20 * near else None
