"""The plot of what pretraining is worth: scores over labels, and the labels that fresh weights need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.experiments.worth.labels_saved import LabelsSaved
from pipeline.tracking import plots
from pipeline.tracking.metric_names import readable

NAMES = {"full": "pretrained (full)", "scratch": "fresh weights (scratch)"}


def plot(tasks: Sequence[LabelsSaved], file: Path, *, title: str) -> None:
    """Of each task the scores, and the labels needed: of one side by side, of several in a column each."""
    shape, size = ((1, 2), (11, 4.9)) if len(tasks) == 1 else ((2, len(tasks)), (4.2 * len(tasks), 8))
    seeds = len(tasks[0].full[tasks[0].sizes[0]])
    spread = f"{seeds} seeds, scores ± standard deviation" if seeds > 1 else "one seed"
    title = f"{title}: the labels that pretraining saves ({spread})"
    figure, grid = plots.subplots(*shape, title=title, figsize=size, squeeze=False)
    pairs = [grid[0]] if len(tasks) == 1 else grid.T
    for found, pair in zip(tasks, pairs, strict=True):
        draw_scores(pair[0], found)
        draw_needs(pair[1], found)
        for axes in pair:
            axes.set_xscale("log")
            axes.set_xticks(found.sizes, [f"{size:,}" for size in found.sizes], rotation=30)
            axes.minorticks_off()
            axes.set_xlabel("labeled rows (a sentence with tags is one)")
        if len(tasks) > 1:
            pair[0].set_title(found.title, loc="left", parse_math=False)
    for row, place in zip(zip(*pairs, strict=True), ("outside lower left", "outside lower right"), strict=True):
        names = {label: mark for axes in row for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        columns = -(-len(names) // 3) if len(tasks) > 2 else 1
        figure.legend(names.values(), names.keys(), loc=place, ncols=columns, fontsize="small", frameon=False)
    plots.save_figure(figure, file)


def draw_scores(axes: Any, found: LabelsSaved) -> None:
    """Both arms over labels, mean ± standard deviation, and the best baseline."""
    if found.baselines:
        sizes, scores = zip(*sorted(found.baselines.items()), strict=True)
        axes.plot(sizes, scores, "_--", color=plots.GREY, label="best baseline")
    for number, (arm, name) in enumerate(NAMES.items()):
        means, spread = zip(*(metrics.mean_and_deviation(found.arms[arm][size]) for size in found.sizes), strict=True)
        axes.errorbar(found.sizes, means, yerr=spread, marker="o", capsize=3, color=plots.COLORS[number], label=name)
    axes.set_ylabel(f"{readable(found.metric)} on the test part")


def draw_needs(axes: Any, found: LabelsSaved) -> None:
    """Labels needed over labels given, above the line of equals; triangles: more or fewer than were tried.

    Marks are hollow where a baseline is as good as `full`, or better: what is saved there is worth nothing.
    """
    sizes, ceiling = found.sizes, found.sizes[-1] * 1.6
    axes.plot(sizes, sizes, color=plots.GREY, linewidth=1.0, linestyle=(0, (4, 3)), label="as many: nothing saved")
    needs = {size: need.labels for size, need in found.needs.items()}
    tried = [need if sizes[0] < need < math.inf else math.nan for need in needs.values()]
    if not all(map(math.isnan, tried)):
        axes.plot(sizes, tried, "-", color=plots.COLORS[1])
    for size, need in needs.items():
        mark, height, label = "o", need, "needed"
        if need == math.inf:
            mark, height, label = "^", ceiling, "more than were tried"
        elif need <= sizes[0]:
            mark, height, label = "v", float(sizes[0]), "no more than the fewest tried"
        fill = {} if found.beats_baseline(size) else {"markerfacecolor": "white"}
        label += "; a baseline is as good or better" if fill else ""
        axes.plot(size, height, mark, color=plots.COLORS[1], label=label, zorder=3, **fill)
    for size, given in found.needs.items():
        if given.interval is not None:
            low, high = (min(value, ceiling) for value in given.interval)
            axes.plot([size, size], [low, high], color=plots.COLORS[1], linewidth=1.2, alpha=0.6, label="95 % interval")
    axes.set_yscale("log")
    axes.set_yticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_ylabel("labeled rows that scratch\nneeds for the score of full")
