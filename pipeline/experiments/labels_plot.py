"""The plot of labels saved: scores over labels, and the labels that fresh weights need."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import metrics
from pipeline.tracking import plots

if TYPE_CHECKING:
    from pipeline.experiments.labels_saved import LabelsSaved

NAMES = {"full": "pretrained (full)", "scratch": "fresh weights (scratch)"}


def plot(found: LabelsSaved, file: Path) -> None:
    """Left: both arms, mean ± standard deviation. Right: labels needed over labels given, above the line of equals."""
    figure, (left, right) = plots.subplots(1, 2, figsize=(11, 4.4))
    for number, (arm, name) in enumerate(NAMES.items()):
        means, spread = zip(*(metrics.mean_and_deviation(found.arms[arm][size]) for size in found.sizes), strict=True)
        left.errorbar(found.sizes, means, yerr=spread, marker="o", capsize=3, color=plots.COLORS[number], label=name)
    left.set_ylabel(f"{plots.readable(found.metric)} on the test part")
    left.legend(fontsize="small")
    draw_needs(right, found)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(found.sizes, [f"{size:,}" for size in found.sizes], rotation=30)
        axes.minorticks_off()
        axes.set_xlabel("labels")
    figure.suptitle(f"{found.title}: the labels that pretraining saves")
    plots.save_figure(figure, file)


def draw_needs(axes: Any, found: LabelsSaved) -> None:
    """Labels that fresh weights need for the same score; a triangle at the top where the most are too few."""
    sizes, ceiling = found.sizes, found.sizes[-1] * 1.6
    axes.plot(sizes, sizes, color=plots.GREY, linewidth=1.0, linestyle=(0, (4, 3)), label="as many: nothing saved")
    reached = {size: need for size, need in found.needs.items() if need.labels < math.inf}
    if reached:
        needed = [need.labels for need in reached.values()]
        axes.plot(list(reached), needed, "o-", color=plots.COLORS[1], label="needed")
    if beyond := [size for size in sizes if size not in reached]:
        axes.plot(beyond, [ceiling] * len(beyond), "^", color=plots.COLORS[1], label="more than were tried")
    for size, need in found.needs.items():
        if need.interval is not None:
            low, high = (min(value, ceiling) for value in need.interval)
            axes.plot([size, size], [low, high], color=plots.COLORS[1], linewidth=1.2, alpha=0.6)
    axes.set_yscale("log")
    axes.set_yticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_ylabel("labels that scratch needs for the score of full")
    axes.legend(fontsize="small", loc="best")
