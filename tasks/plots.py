"""Plots of a test, as figures of matplotlib that need no screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.metrics import confusion as confusion_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELS = 40  # of a confusion matrix that can be read


def axes(width: float, height: float) -> Any:
    """Axes of a new figure."""
    from matplotlib.figure import Figure  # takes a while

    return Figure(figsize=(width, height), layout="constrained").subplots()


def confusion(gold: Sequence[int], predicted: Sequence[int], labels: Sequence[str]) -> dict[str, Figure]:
    """Rows: gold, columns: predicted; none of very many labels."""
    if len(labels) > MOST_LABELS:
        return {}
    counts = confusion_counts(gold, predicted, len(labels)).tolist()
    size = 2.5 + 0.6 * len(labels)
    place = axes(size + 1, size)
    place.imshow(counts, cmap="Blues", vmin=0)
    top = max(max(row) for row in counts)
    for i, row in enumerate(counts):
        for j, value in enumerate(row):
            place.text(j, i, str(value), ha="center", va="center", color="white" if value > top / 2 else "black")
    place.set_xticks(range(len(labels)), labels, rotation=30)
    place.set_yticks(range(len(labels)), labels)
    place.set_xlabel("predicted")
    place.set_ylabel("gold")
    return {"confusion": place.figure}


def types(by_type: dict[str, dict[str, float]]) -> dict[str, Figure]:
    """Precision, recall and F1 of each type of span, with how many there are; none without spans."""
    if not by_type:
        return {}
    names = sorted(by_type, key=lambda name: -by_type[name]["support"])
    place = axes(3 + 1.1 * len(names), 4)
    for number, score in enumerate(("precision", "recall", "f1")):
        positions = [i + 0.27 * (number - 1) for i in range(len(names))]
        bars = place.bar(positions, [by_type[name][score] for name in names], width=0.25, label=score)
        place.bar_label(bars, fmt="%.2f", fontsize=7)
    place.set_xticks(range(len(names)), [f"{name}\n({by_type[name]['support']:,})" for name in names])
    place.set_ylim(0, 1.08)
    place.set_xlabel("type of span (how many in the test)")
    place.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.12))
    return {"types": place.figure}
