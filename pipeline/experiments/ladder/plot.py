"""The plot of a ladder: bits per byte against the year of each model and against the seconds of training, or along a
choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.tracking import plots

LOOKS = {kind: (marker, plots.COLORS[color]) for kind, (color, marker) in plots.KIND_LOOKS.items()}
GAP = 0.042  # least distance of two labels, of the height of the axes


def plot(results: dict[str, Any], file: Path) -> None:
    """Two axes with the same scale of bits per byte; of a product of choices, one."""
    models, title = results["models"], f"Language models on {results['corpus']}"
    if models and all(row["axes"] for row in models):
        plot_choices(models, file, title=title)
        return
    figure, (years, seconds) = plots.subplots(1, 2, title=title, figsize=(13, 6), sharey=True)
    for row in models:
        marker, color = LOOKS[row["kind"]]
        years.plot(row["year"], row["bits_per_byte"], marker, color=color, markersize=7)
        if row["history"]:
            points = [(p["seconds"], p["bits_per_byte"]) for p in row["history"] if p["seconds"] > 0]
            seconds.plot(*zip(*points, strict=True), color=color, linewidth=1.5)
            seconds.plot(*points[-1], marker, color=color, markersize=6)
        elif row["seconds"]:
            seconds.plot(row["seconds"], row["validation_rows_bits_per_byte"], marker, color=color, markersize=7)
    years.set_xlabel("year")
    years.set_ylabel("bits per byte of the validation text (less is better)")
    first = ", of the first seed" * any(len(row["by_seed"]) > 1 for row in models)
    seconds.set_xlabel(f"seconds of training (on the validation rows of training{first})")
    if any(row["seconds"] for row in models):
        seconds.set_xscale("log")
        seconds.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        seconds.xaxis.set_minor_formatter(lambda value, _: "")
    counting = [row for row in models if row["kind"] == "counting"]
    if counting:
        best = min(counting, key=lambda row: row["validation_rows_bits_per_byte"])
        value = best["validation_rows_bits_per_byte"]
        seconds.axhline(value, linestyle=(0, (4, 3)), color=LOOKS["counting"][1], linewidth=1, label="best by counting")
    years.margins(x=0.05)
    name_points(years, [(row["year"], row["bits_per_byte"], row) for row in models])
    ends = [(row["seconds"], last_of(row), row) for row in models if row["seconds"]]
    seconds.margins(x=0.04)
    name_points(seconds, ends)
    for kind in (kind for kind in LOOKS if any(row["kind"] == kind for row in models)):
        years.plot([], [], LOOKS[kind][0], color=LOOKS[kind][1], label=kind)
    if models:
        figure.legend(loc="outside lower center", ncols=6, fontsize="small", frameon=False)
    plots.save_figure(figure, file)


def plot_choices(models: Sequence[Mapping[str, Any]], file: Path, *, title: str) -> None:
    """Bits per byte along one of the choices, a line for each combination of the others."""
    along, choices, lines = lines_of(models)
    figure, axes = plots.subplots(figsize=(9, 6), title=title)
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    axes.set_xticks(range(len(choices)), choices)
    axes.set_xlabel(along)
    axes.set_ylabel("bits per byte of the validation text (less is better)")
    axes.legend(title=", ".join(axis for axis in models[0]["axes"] if axis != along) or None)
    plots.save_figure(figure, file)


Line = list[tuple[float, float]]


def lines_of(models: Sequence[Mapping[str, Any]]) -> tuple[str, list[str], dict[str, Line]]:
    """A product of choices -> the axis to show from left to right (one of numbers, where there is one), its choices,
    and points of bits per byte for each combination of the other axes."""
    choices = {axis: list(dict.fromkeys(model["axes"][axis] for model in models)) for axis in models[0]["axes"]}
    along = max(choices, key=lambda axis: (all(choice.isdigit() for choice in choices[axis]), len(choices[axis])))
    lines: dict[str, Line] = {}
    for model in models:
        others = [choice for axis, choice in model["axes"].items() if axis != along]
        point = (choices[along].index(model["axes"][along]), model["bits_per_byte"])
        lines.setdefault(", ".join(others) or along, []).append(point)
    return along, choices[along], {name: sorted(points) for name, points in lines.items()}


def last_of(row: dict[str, Any]) -> float:
    """Where the curve of a model ends, or its point is."""
    return row["history"][-1]["bits_per_byte"] if row["history"] else row["validation_rows_bits_per_byte"]


def name_points(axes: Any, points: list[tuple[float, float, dict[str, Any]]]) -> None:
    """The title of each point to its right; labels that would meet are moved apart, and joined to their points."""
    low, high = axes.get_ylim()
    points = sorted(points, key=lambda point: point[1])
    heights = plots.pushed_apart([(bits - low) / (high - low) for _, bits, _ in points], GAP)
    for (x, bits, row), height in zip(points, heights, strict=True):
        axes.annotate(
            f"{row['title']} {bits:.2f}",
            xy=(x, bits),
            xytext=(1.04, height),
            textcoords="axes fraction",
            fontsize="small",
            va="center",
            color="#333333",
            arrowprops={"arrowstyle": "-", "color": "#cccccc", "linewidth": 0.7, "relpos": (0, 0.5)},
            annotation_clip=False,
        )
