"""The plot of a comparison: for each task the scores of every arm beside the best baseline, and what was gained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.experiments.comparison.gains import Line, has_intervals, has_several_runs, why_no_interval
from pipeline.tracking import plots

LOOKS = {arm: (marker, plots.COLORS[color]) for arm, (color, marker) in plots.ARM_LOOKS.items()}
ARM_GAP = 0.16  # between the marks of two arms, of the height of a model


def plot(lines: Sequence[Line], tuned: str | None, file: Path) -> None:
    """A row of two axes for each task, a line in them for each model.

    Args:
        tuned: the arm whose gain over scratch is shown; None: the right axes are left out.
    """
    if not lines:
        file.unlink(missing_ok=True)  # of rows that are gone
        return
    tasks = list(dict.fromkeys(line.task for line in lines))
    by_task = [[line for line in lines if line.task == task] for task in tasks]
    heights = [0.5 + 0.42 * len(group) for group in by_task]
    columns = 2 if tuned else 1
    figure, places = plots.subplots(
        len(tasks),
        columns,
        figsize=(4.5 + 4.5 * (columns - 1), 1.9 + sum(heights)),
        height_ratios=heights,
        width_ratios=(1.25, 1)[:columns],
        sharex="none",
        squeeze=False,
    )
    for number, group in enumerate(by_task):
        _draw_scores(places[number, 0], group)
        if tuned:
            _draw_gains(places[number, 1], group)
    if tuned:
        _share_limits([place for place, group in zip(places[:, 1], by_task, strict=True) if group[0].rows])
        chance = f"{why_no_interval(lines)}: it may be chance"
        spread = "with 95 % intervals over seeds" if has_intervals(lines) else chance
        places[0, 1].set_title(f"gain of {tuned}, {spread}", loc="left", fontsize="medium")
        places[-1, 1].set_xlabel("difference of scores (above 0: pretraining helps)")
    small = " (small marks: single runs)" if has_several_runs(lines) else ""
    places[-1, 0].set_xlabel(f"score on the test part{small}")
    _add_legend(figure, lines, tuned)
    plots.save_figure(figure, file)


def _draw_scores(place: Any, group: Sequence[Line]) -> None:
    """The arms of a model stand a little below each other, so that equal scores do not hide each other."""
    for height, line in enumerate(group):
        arms = {arm: scores for arm, scores in line.arms.items() if scores}
        for number, (arm, scores) in enumerate(arms.items()):
            marker, color = LOOKS[arm]
            at = height + ARM_GAP * (number - (len(arms) - 1) / 2)
            place.plot(scores, [at] * len(scores), marker, color=color, markersize=3.5, alpha=0.45)
            place.plot(sum(scores) / len(scores), at, marker, color=color, markersize=8, zorder=3)
        if (best := line.best_baseline) is not None:
            place.plot([best.mean, best.mean], [height - 0.32, height + 0.32], color="black", linewidth=2, zorder=2)
    place.set_title(f"{group[0].task_name}: {group[0].metric}", loc="left", fontweight="bold", parse_math=False)
    _name_lines(place, group)
    if max(place.dataLim.intervalx) <= 1 < place.get_xlim()[1]:  # no figure beyond what a share can be
        place.set_xticks([tick for tick in place.get_xticks() if place.get_xlim()[0] <= tick <= 1])


def _draw_gains(place: Any, group: Sequence[Line]) -> None:
    """The gain over scratch, and a little lower that over the best baseline."""
    for height, line in enumerate(group):
        for gain, shift, marker, color in (
            (line.gain_over_scratch, -0.12, "o", plots.COLORS[0]),
            (line.gain_over_baseline, 0.16, "|", "black"),
        ):
            if gain is not None:
                style: dict[str, Any] = {"color": color, "markersize": 7 if marker == "o" else 10, "markeredgewidth": 2}
                fill = {"markerfacecolor": "white"} if gain.is_open and marker == "o" else {}
                place.errorbar(
                    gain.mean, height + shift, xerr=gain.half, fmt=marker, elinewidth=1.5, capsize=3, **style, **fill
                )
    place.axvline(0, color=plots.GREY, linewidth=1.2, zorder=1)
    _name_lines(place, group)


def _name_lines(place: Any, group: Sequence[Line]) -> None:
    """Models from the top down, each with the same room whatever their number."""
    place.set_yticks(range(len(group)), [line.model for line in group])
    place.set_ylim(len(group) - 0.45, -0.55)
    place.grid(axis="y", visible=False)
    place.margins(x=0.06)
    place.tick_params(axis="y", length=0)
    place.locator_params(axis="x", nbins=6)


def _share_limits(places: Sequence[Any]) -> None:
    """The same scale of gains for all tasks, unless one has much larger figures, as squared errors."""
    widths = [place.get_xlim()[1] - place.get_xlim()[0] for place in places]
    if max(widths) > 10 * min(widths):
        return
    low, high = (choose(place.get_xlim()[side] for place in places) for side, choose in ((0, min), (1, max)))
    for place in places:
        place.set_xlim(low, high)


def _add_legend(figure: Any, lines: Sequence[Line], tuned: str | None) -> None:
    from matplotlib.lines import Line2D

    arms = [arm for arm in LOOKS if any(line.arms.get(arm) for line in lines)]
    marks = {arm: Line2D([], [], marker=LOOKS[arm][0], color=LOOKS[arm][1], linestyle="none") for arm in arms}
    bar: dict[str, Any] = {"marker": "|", "color": "black", "markersize": 11, "markeredgewidth": 2}
    marks["best baseline"] = Line2D([], [], linestyle="none", **bar)
    options: dict[str, Any] = {"frameon": False, "fontsize": "small"}
    figure.legend(marks.values(), marks.keys(), loc="outside upper left", ncols=3, **options)
    if tuned:
        hollow = "hollow: open" if has_intervals(lines) else "hollow: no interval"
        gains = {
            f"over scratch ({hollow})": Line2D([], [], marker="o", color=plots.COLORS[0]),
            "over the best baseline": Line2D([], [], **bar),
        }
        figure.legend(gains.values(), gains.keys(), loc="outside upper right", **options)
