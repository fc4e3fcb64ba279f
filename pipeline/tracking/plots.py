"""Plots of a run, written atomically as PNG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.storage.atomic import open_atomically
from pipeline.tracking.history import History


def subplots(*args: Any, **options: Any) -> tuple[Any, Any]:
    """`pyplot.subplots` without a screen."""
    import matplotlib  # takes a second

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(*args, layout="constrained", **options)


def plot_curves(history: History, file: Path, *, baselines: dict[str, float], losses: list[str]) -> None:
    """Loss curves, with a line for each baseline, and the learning rate."""
    figure, (above, below) = subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(3, 1))
    for name in losses:
        steps, values = history.series(name)
        if steps:
            above.plot(steps, values, label=name, marker="o" if name.startswith("val/") else None, markersize=3)
    for name, value in baselines.items():
        above.axhline(value, linestyle="--", color="grey", linewidth=0.8)
        where = ("axes fraction", "data")
        above.annotate(name, (0.01, value), xycoords=where, fontsize=8, color="grey", va="bottom")
    above.set_ylabel("loss")
    above.legend()
    below.plot(*history.series("train/learning_rate"))
    below.set_ylabel("learning rate")
    below.set_xlabel("optimizer step")
    save_figure(figure, file)


def plot_mix(history: History, file: Path) -> None:
    """The weight of each layer in the scalar mix, over the run."""
    figure, axes = subplots(figsize=(6, 4))
    for name in sorted(name for name in history.names() if name.startswith("mix/layer_")):
        axes.plot(*history.series(name), label=name.removeprefix("mix/"), marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("softmax weight of the layer")
    axes.legend()
    save_figure(figure, file)


def plot_shots(by_shots: dict[int, dict[str, float]], file: Path) -> None:
    """Accuracy by the number of few-shot examples, with the range over templates."""
    shots = sorted(by_shots)
    means = [by_shots[count]["accuracy"] for count in shots]
    figure, axes = subplots(figsize=(6, 4))
    axes.plot(shots, means, marker="o", label="mean of the templates")
    low, high = ([by_shots[count][f"accuracy_{side}"] for count in shots] for side in ("min", "max"))
    axes.fill_between(shots, low, high, alpha=0.2, label="lowest to highest template")
    if "chance" in by_shots[shots[0]]:
        axes.axhline(by_shots[shots[0]]["chance"], linestyle="--", color="grey", linewidth=0.8, label="chance")
    axes.set_xticks(shots)
    axes.set_xlabel("few-shot examples")
    axes.set_ylabel("accuracy")
    axes.legend()
    save_figure(figure, file)


def save_figure(figure: Any, file: Path) -> None:
    """Writes a PNG atomically, and closes the figure."""
    with open_atomically(file, "wb") as stream:
        figure.savefig(stream, dpi=120, format="png")
    from matplotlib import pyplot

    pyplot.close(figure)
