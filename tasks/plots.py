"""Plots of a test, as figures of matplotlib that need no screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.dataset import shortened
from tasks.metrics import confusion as confusion_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELS = 40  # of a plot that can be read
LONGEST_LABEL = 24  # characters of a name beside an axis
MOST_WITH_COUNTS = 8  # of one whose cells have room for a percentage and a count


def axes(width: float, height: float) -> Any:
    """Axes of a new figure."""
    from matplotlib.figure import Figure  # takes a while

    return Figure(figsize=(width, height), layout="constrained").subplots()


def plain(texts: Sequence[str]) -> list[str]:
    """Texts as matplotlib shows them letter by letter: between two dollar signs it reads a formula."""
    return [text.replace("$", r"\$") for text in texts]


def confusion(
    gold: Sequence[int], predicted: Sequence[int], labels: Sequence[str], *, unit: str = "rows"
) -> dict[str, Figure]:
    """Rows: true labels, columns: predicted ones; colored by the share of the true label. None of very many labels.

    Args:
        unit: what has the labels.
    """
    if len(labels) > MOST_LABELS:
        return {}
    counts = confusion_counts(gold, predicted, len(labels))
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    few = len(labels) <= MOST_WITH_COUNTS
    size = 1.8 + (0.95 if few else 0.42) * len(labels)
    place = axes(size + 1.6, max(3.2, size))
    image = place.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for i, j in np.ndindex(*counts.shape):
        if few or shares[i, j] >= 0.005:
            text = f"{shares[i, j]:.0%}\n{counts[i, j]:,}" if few else f"{100 * shares[i, j]:.0f}"
            color = "white" if shares[i, j] > 0.55 else "black"
            place.text(j, i, text, ha="center", va="center", color=color, fontsize=10 if few else 6)
    names = [shortened(name, LONGEST_LABEL) for name in labels]
    flat = few and len(labels) < 5 and max(map(len, names), default=0) <= 12
    place.set_xticks(range(len(labels)), plain(names), rotation=0 if flat else 90)
    totals = [f"{name} ({count:,})" for name, count in zip(names, counts.sum(axis=1).tolist(), strict=True)]
    place.set_yticks(range(len(labels)), plain(totals))
    place.set_xlabel("predicted label")
    place.set_ylabel(f"true label ({unit})")
    bar = place.figure.colorbar(image, ax=place, shrink=0.8, format=lambda share, _: f"{share:.0%}")
    bar.set_label(f"share of the {unit} with the true label")
    return {"confusion": place.figure}


def f1_bars(name: str, scores: dict[str, tuple[float, int]], *, y_label: str) -> dict[str, Figure]:
    """F1 of each label or the like, the most frequent on top, as a figure of this name; none of very many.

    Args:
        scores: label -> F1, and how many texts have it.
    """
    if len(scores) > MOST_LABELS:
        return {}
    names = sorted(scores, key=lambda label: scores[label][1])
    place = axes(6.5, 1.2 + 0.26 * len(names))
    bars = place.barh(range(len(names)), [scores[label][0] for label in names])
    place.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    place.set_yticks(
        range(len(names)), plain([f"{shortened(label, LONGEST_LABEL)} ({scores[label][1]:,})" for label in names])
    )
    place.set_xlim(0, 1.05)
    place.set_xlabel("F1")
    place.set_ylabel(y_label)
    place.spines[["top", "right"]].set_visible(False)
    return {name: place.figure}


def alignments(shown: Sequence[tuple[Any, list[str], list[str]]]) -> Figure:
    """Heat maps of attention, of which each row is a token of a translation and sums to 1.

    Args:
        shown: weights (U, T), the U tokens of the translation and the T of the source.
    """
    from matplotlib.figure import Figure

    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(6 * columns, 5.2 * rows), layout="constrained")
    places = np.ravel(figure.subplots(rows, columns, squeeze=False))
    for place in places[len(shown) :]:
        place.set_axis_off()
    for place, (weights, target, source) in zip(places, shown, strict=False):
        image = place.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        size = 8 if max(len(target), len(source)) <= 24 else 5
        place.set_xticks(range(len(source)), plain(source), rotation=90, fontsize=size)
        place.set_yticks(range(len(target)), plain(target), fontsize=size)
        place.set_xlabel("tokens of the source")
        place.set_ylabel("tokens of the translation")
    bar = figure.colorbar(image, ax=list(places), shrink=0.6, format=lambda share, _: f"{share:.0%}")
    bar.set_label("share of the attention")
    return figure


def types(by_type: dict[str, dict[str, float]]) -> dict[str, Figure]:
    """Precision, recall and F1 of each type of span, with how many there are; none without spans."""
    if not by_type:
        return {}
    names = sorted(by_type, key=lambda name: -by_type[name]["support"])
    place = axes(3 + 1.1 * len(names), 4)
    for number, score in enumerate(("precision", "recall", "f1")):
        positions = [i + 0.27 * (number - 1) for i in range(len(names))]
        bars = place.bar(
            positions, [by_type[name][score] for name in names], width=0.25, label={"f1": "F1"}.get(score, score)
        )
        place.bar_label(bars, fmt="%.2f", fontsize=7)
    place.set_xticks(range(len(names)), plain([f"{name}\n({by_type[name]['support']:,})" for name in names]))
    place.set_ylim(0, 1.08)
    place.set_ylabel("score of whole spans")
    place.set_xlabel("type of span (how many in the test)")
    place.legend(ncols=3, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    place.spines[["top", "right"]].set_visible(False)
    return {"types": place.figure}
