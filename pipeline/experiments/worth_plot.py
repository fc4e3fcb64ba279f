"""The plot of what pretraining is worth: scores over labels, and the labels that fresh weights need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import metrics
from pipeline.tracking import plots

if TYPE_CHECKING:
    from pipeline.experiments.worth_pretraining import LabelsSaved

NAMES = {"full": "pretrained (full)", "scratch": "fresh weights (scratch)"}


def plot(tasks: Sequence[LabelsSaved], file: Path, *, title: str) -> None:
    """Of each task the scores, and the labels needed: of one side by side, of several in a column each."""
    shape, size = ((1, 2), (11, 4.9)) if len(tasks) == 1 else ((2, len(tasks)), (4.2 * len(tasks), 8))
    figure, grid = plots.subplots(*shape, figsize=size, squeeze=False)
    pairs = [grid[0]] if len(tasks) == 1 else grid.T
    for found, pair in zip(tasks, pairs, strict=True):
        draw_scores(pair[0], found)
        draw_needs(pair[1], found)
        for axes in pair:
            axes.set_xscale("log")
            axes.set_xticks(found.sizes, [f"{size:,}" for size in found.sizes], rotation=30)
            axes.minorticks_off()
            axes.set_xlabel("labels")
        if len(tasks) > 1:
            pair[0].set_title(found.title, loc="left")
    for row, place in zip(zip(*pairs, strict=True), ("outside lower left", "outside lower right"), strict=True):
        names = {label: mark for axes in row for mark, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(names.values(), names.keys(), loc=place, fontsize="small", frameon=False)
    figure.suptitle(f"{title}: the labels that pretraining saves")
    plots.save_figure(figure, file)


def draw_scores(axes: Any, found: LabelsSaved) -> None:
    """Both arms over labels, mean ± standard deviation, and the best baseline."""
    if found.baselines:
        sizes, scores = zip(*sorted(found.baselines.items()), strict=True)
        axes.plot(sizes, scores, "_--", color=plots.GREY, label="best baseline")
    for number, (arm, name) in enumerate(NAMES.items()):
        means, spread = zip(*(metrics.mean_and_deviation(found.arms[arm][size]) for size in found.sizes), strict=True)
        axes.errorbar(found.sizes, means, yerr=spread, marker="o", capsize=3, color=plots.COLORS[number], label=name)
    axes.set_ylabel(f"{plots.readable(found.metric)} on the test part")


def draw_needs(axes: Any, found: LabelsSaved) -> None:
    """Labels needed over labels given, above the line of equals; triangles: more or fewer than were tried."""
    sizes, ceiling = found.sizes, found.sizes[-1] * 1.6
    axes.plot(sizes, sizes, color=plots.GREY, linewidth=1.0, linestyle=(0, (4, 3)), label="as many: nothing saved")
    needs = {size: need.labels for size, need in found.needs.items()}
    tried = [need if sizes[0] < need < math.inf else math.nan for need in needs.values()]
    if not all(map(math.isnan, tried)):
        axes.plot(sizes, tried, "o-", color=plots.COLORS[1], label="needed")
    for bound, height, mark, label in (
        ([size for size, need in needs.items() if need == math.inf], ceiling, "^", "more than were tried"),
        ([size for size, need in needs.items() if need <= sizes[0]], sizes[0], "v", "no more than the fewest tried"),
    ):
        if bound:
            axes.plot(bound, [height] * len(bound), mark, color=plots.COLORS[1], label=label)
    for size, need in found.needs.items():
        if need.interval is not None:
            low, high = (min(value, ceiling) for value in need.interval)
            axes.plot([size, size], [low, high], color=plots.COLORS[1], linewidth=1.2, alpha=0.6)
    axes.set_yscale("log")
    axes.set_yticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_ylabel("labels that scratch needs\nfor the score of full")
