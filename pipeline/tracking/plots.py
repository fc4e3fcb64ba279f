"""Plots of a run, written atomically as PNG files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.storage.atomic import open_atomically
from pipeline.tracking.amounts import rounded
from pipeline.tracking.history import History
from pipeline.tracking.metric_names import readable

# Colors that stay apart for the color-blind (Okabe and Ito 2008), from the darkest.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555")
GREY = "#777777"
# Place among the colors, the same in plots and on pages, and marker.
ARM_LOOKS = {"full": (0, "o"), "scratch": (1, "s"), "frozen": (2, "D"), "random": (3, "v")}
KIND_LOOKS = {
    "baseline": (6, "x"),
    "counting": (4, "s"),
    "feed-forward": (2, "^"),
    "recurrent": (1, "D"),
    "attention": (0, "o"),
    "convolution": (3, "h"),
}
STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "font.size": 10,
    "legend.frameon": False,
    "figure.titlesize": "large",
}
LABEL_GAP = 0.055  # least distance of the labels of two baselines, of the height of the axes


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis.

    Args:
        label: of the y axis, with its unit.
        curves: metrics without `train/` and `val/`: both are drawn.
        baselines: name -> value, each a horizontal line.
        training: of a metric that training logs under another name: that name.
        height: of the panel, relative to other panels.
    """

    label: str
    curves: Sequence[str]
    baselines: Mapping[str, float] = field(default_factory=dict)
    training: Mapping[str, str] = field(default_factory=dict)
    height: float = 3.0

    def metrics(self, curve: str) -> tuple[str, str]:
        """A curve's names in the history, of training and of validation."""
        return f"train/{self.training.get(curve, curve)}", f"val/{curve}"


@contextlib.contextmanager
def styled() -> Iterator[Any]:
    """`pyplot` without a screen, in the style of all plots."""
    import matplotlib  # takes a second

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.rcsetup import cycler

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=COLORS)}):
        yield pyplot


def subplots(*args: Any, title: str | None = None, **options: Any) -> tuple[Any, Any]:
    """`pyplot.subplots` in the style of all plots, with a title above all axes."""
    with styled() as pyplot:
        figure, places = pyplot.subplots(*args, layout="constrained", **options)
    if title is not None:
        figure.suptitle(title, parse_math=False)  # of names, which may have two dollar signs
    return figure, places


# ---------------------------------------------------------------------- curves of training


def plot_curves(
    history: History, file: Path, *, title: str, panels: Sequence[Panel], chosen: int | None = None
) -> None:
    """Training and validation curves, a panel below the other, with the learning rate at the bottom.

    Args:
        panels: from the top; one whose metrics were not logged is left out.
        chosen: the step whose checkpoint is tested; marked in the first panel.
    """
    rates = [Panel("learning\nrate", ["learning_rate"], height=1.0), Panel("gradient\nnorm", ["grad_norm"], height=1.0)]
    shown = [panel for panel in (*panels, *rates) if _is_logged(history, panel)]
    heights = [panel.height for panel in shown]
    figure, places = subplots(
        len(shown),
        1,
        title=title,
        figsize=(8, 1 + 0.95 * sum(heights)),
        sharex=True,
        height_ratios=heights,
        squeeze=False,
    )
    for place, panel in zip(places[:, 0], shown, strict=True):
        _draw_panel(place, history, panel)
    if chosen is not None:
        _mark_step(places[0, 0], history, shown[0], chosen)
    places[-1, 0].set_xlabel("optimizer step")
    _add_token_axis(places[0, 0], history)
    save_figure(figure, file)


def _is_logged(history: History, panel: Panel) -> bool:
    return any(history.series(name)[0] for curve in panel.curves for name in panel.metrics(curve))


def _draw_panel(place: Any, history: History, panel: Panel) -> None:
    """A color for each metric: a thin line for training, one with markers for validation."""
    labeled = 0
    styles: tuple[tuple[str, dict[str, Any]], ...] = (
        ("training", {"linewidth": 1.0, "alpha": 0.55}),
        ("validation", {"marker": "o", "markersize": 4}),
    )
    for number, curve in enumerate(panel.curves):
        for name, (split, style) in zip(panel.metrics(curve), styles, strict=True):
            steps, values = history.series(name)
            if steps:
                label = f"{readable(curve)}, {split}" if len(panel.curves) > 1 else split
                dot = {"marker": "."} if len(steps) == 1 else {}  # a line of one point cannot be seen
                place.plot(steps, values, label=label, color=COLORS[number % len(COLORS)], **{**dot, **style})
                labeled += 1
    draw_baselines(place, panel.baselines)
    place.set_ylabel(panel.label)
    place.margins(x=0.01)
    if labeled > 1:
        beside = len(panel.curves) > 1 and not panel.baselines  # where no baseline is named
        where: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if beside else {}
        place.legend(fontsize="small", frameon=False, **where)


def draw_baselines(place: Any, baselines: Mapping[str, float]) -> None:
    """A dashed line for each baseline, named at the right of the axes; names that would meet are moved apart."""
    for value in baselines.values():
        place.axhline(value, linestyle=(0, (4, 3)), color=GREY, linewidth=1.0, zorder=1)
    place.autoscale_view()  # a line within the limits of now may still move them with the next curve
    low, high = place.get_ylim()
    names = sorted(baselines, key=lambda name: baselines[name])
    heights = pushed_apart([(baselines[name] - low) / (high - low) for name in names], LABEL_GAP)
    for name, height in zip(names, heights, strict=True):
        place.annotate(
            f"{readable(name)} {rounded(baselines[name], 3)}",
            (1.01, height),
            xycoords="axes fraction",
            fontsize="small",
            color=GREY,
            va="center",
            annotation_clip=False,
        )


def pushed_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Rising positions moved up where needed, so that no two are closer than `gap`."""
    moved: list[float] = []
    for position in positions:
        moved.append(position if not moved else max(position, moved[-1] + gap))
    return moved


def _mark_step(place: Any, history: History, panel: Panel, chosen: int) -> None:
    for name in panel.curves:
        steps, values = history.series(f"val/{name}")
        if chosen in steps:
            place.plot(chosen, values[steps.index(chosen)], "*", color="black", markersize=13, zorder=5, clip_on=False)
    place.axvline(chosen, color="black", linestyle=":", linewidth=1.0, label=f"tested checkpoint (step {chosen:,})")
    place.legend(fontsize="small", frameon=False)


def _add_token_axis(place: Any, history: History) -> None:
    """Tokens seen, above: a step has about as many as any other."""
    steps, tokens = history.series("tokens")
    if not steps or not steps[-1] or not tokens[-1]:
        return
    per_step = tokens[-1] / steps[-1]
    unit, word = (1e6, "million tokens seen") if tokens[-1] >= 2e6 else (1e3, "thousand tokens seen")
    above = place.secondary_xaxis("top", functions=(lambda x: x * per_step / unit, lambda x: x * unit / per_step))
    above.set_xlabel(word, fontsize="small")
    above.tick_params(labelsize="small")
    above.spines["top"].set_visible(False)


# ---------------------------------------------------------------------- other plots of a run


def plot_mix(history: History, file: Path, *, title: str) -> None:
    """The weight of each layer in the scalar mix, over the run."""
    figure, axes = subplots(figsize=(6.5, 4), title=title)
    names = history.mixed_layers()
    for name in names:
        number = name.removeprefix("mix/layer_")
        label = "layer 0 (embeddings)" if number == "0" else f"layer {number}"
        axes.plot(*history.series(name), label=label, marker="o", markersize=3)
    if names:
        axes.axhline(1 / len(names), linestyle=(0, (4, 3)), color=GREY, linewidth=1.0, label="equal weights")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("weight of the layer (they sum to 1)")
    axes.legend(fontsize="small", frameon=False)
    save_figure(figure, file)


def plot_shots(by_shots: dict[int, dict[str, float]], file: Path, *, title: str) -> None:
    """Accuracy by the number of few-shot examples, with the range over templates, beside what guessing reaches."""
    shots = sorted(by_shots)
    means = [by_shots[count]["accuracy"] for count in shots]
    figure, axes = subplots(figsize=(6.5, 4), title=title)
    axes.plot(shots, means, marker="o", label="mean of the templates")
    low, high = ([by_shots[count][f"accuracy_{side}"] for count in shots] for side in ("min", "max"))
    axes.fill_between(shots, low, high, alpha=0.2, label="lowest to highest template")
    first = by_shots[shots[0]]
    draw_baselines(axes, {name: first[name] for name in ("chance", "majority") if name in first})
    axes.set_xticks(shots)
    axes.set_xlabel("solved examples in the prompt")
    axes.set_ylabel("accuracy on the test part")
    axes.legend(fontsize="small", frameon=False)
    save_figure(figure, file)


def plot_characters(scores: Mapping[int, float], whole: float, file: Path, *, label: str, title: str) -> None:
    """A score by the number of characters of each text that are shown; evenly spaced, whole texts last.

    Args:
        whole: the score with whole texts.
        label: of the score.
    """
    figure, axes = subplots(figsize=(6.5, 4), title=title)
    shown = [f"{number:,}" for number in scores] + ["all"]
    values = [*scores.values(), whole]
    axes.plot(range(len(shown)), values, marker="o")
    for place, value in enumerate(values):
        axes.annotate(f"{value:.3f}", (place, value), (0, 7), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(len(shown)), shown)
    axes.margins(y=0.12)
    axes.set_xlabel("first characters of each text that are shown")
    axes.set_ylabel(label)
    save_figure(figure, file)


def save_figure(figure: Any, file: Path) -> None:
    """Writes a PNG atomically, and closes the figure."""
    with open_atomically(file, "wb") as stream:
        figure.savefig(stream, dpi=120, format="png")
    from matplotlib import pyplot

    pyplot.close(figure)
