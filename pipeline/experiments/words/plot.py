"""The plot of accuracy over words seen: all rows above, groups of them below."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.experiments.words.saved import Curve
from pipeline.tracking import plots
from pipeline.tracking.words_seen import shortest

COLUMNS = 4  # of panels
DASHES = (":", (0, (6, 2)), "-.", (0, (1, 4)), (0, (3, 1, 1, 1, 1, 1)))  # of published models


def plot(curves: Sequence[Curve], column: str | None, groups: Sequence[str], file: Path, *, title: str) -> None:
    """A line for each run, a grey one for each published model, chance as a dotted ground.

    Args:
        column: whose groups have a panel each; None: no such panels.
    """
    across = min(COLUMNS, len(groups))
    down = -(-len(groups) // COLUMNS)
    with plots.styled() as pyplot:
        figure = pyplot.figure(figsize=(9.5, 4.6 + 1.75 * down), layout="constrained")
        whole, *below = figure.subfigures(2, 1, height_ratios=[4.2, 1.75 * down + 0.2]) if down else [figure]
        axes = whole.subplots()
        drawn = draw(axes, curves, "zeroshot/accuracy", "")
        axes.set_ylabel("accuracy, all rows")
        axes.set_xlabel("words seen")
        axes.legend(handles=drawn, fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))
        panels = below[0].subplots(down, across, sharex=True, sharey=True, squeeze=False).flat if below else []
        for place, group in itertools.zip_longest(panels, groups):
            if group is None:
                place.set_axis_off()
                continue
            draw(place, curves, f"zeroshot/{column}/{group}", f"/{column}/{group}")
            place.set_title(group.replace("_", " "), fontsize="small", parse_math=False)
            place.tick_params(labelsize="small")
        figure.suptitle(f"{title}: accuracy over words seen", parse_math=False)
    plots.save_figure(figure, file)


def draw(axes: Any, curves: Sequence[Curve], key: str, group: str) -> list[Any]:
    """Lines of a panel; returns what the legend lists.

    Args:
        key: of the metric.
        group: whose figures were published, see `Curve.published`.
    """
    handles = []
    for number, curve in enumerate(curves):
        words = [saved.words for saved in curve.saved]
        color = plots.COLORS[number % len(plots.COLORS)]
        handles += axes.plot(words, curve.series(key), marker="o", markersize=4, color=color, label=curve.name)
    first = curves[0].metrics[0]
    for number, (model, value) in enumerate(curves[0].published(group).items()):
        dashes, label = DASHES[number % len(DASHES)], f"{model}, published"
        handles.append(axes.axhline(value, linestyle=dashes, color=plots.GREY, linewidth=1.2, zorder=1, label=label))
    if "zeroshot/chance" in first:
        handles.append(axes.axhline(first["zeroshot/chance"], color="#bbbbbb", linewidth=2.5, zorder=0, label="chance"))
    axes.set_xscale("log")
    shown = ticks([saved.words for curve in curves for saved in curve.saved])
    axes.set_xticks(shown, [shortest(words) for words in shown])
    axes.minorticks_off()
    return handles


def ticks(words: Sequence[int]) -> list[int]:
    """1, 10, 100, ..., and where that is few also 2 and 5 of each; the least and the most where there are none."""
    low, high = min(words), max(words)
    for digits in ((1,), (1, 2, 5)):
        found = [n for power in range(13) for digit in digits if low <= (n := digit * 10**power) <= high]
        if len(found) > 1:
            return found
    return sorted({low, high})
