"""Loss by context: how many nats a token costs after 1, 2, 3-4, 5-8, ... tokens of its text.

A model with a fixed reach is flat behind it; one that reads on falls (Khandelwal et al. 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.inspection.token_log_probs import TokenLogProbs
from pipeline.tracking import plots


class Bucket(NamedTuple):
    """Tokens with `first` to `last` tokens of context, and their mean loss in nats."""

    first: int
    last: int
    tokens: int
    loss: float

    @property
    def name(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first:,}-{self.last:,}"


def loss_by_context(scores: TokenLogProbs) -> list[Bucket]:
    """The mean loss of tokens by the power of two that their context reaches: 1, 2, 3-4, 5-8, ..."""
    edge = np.ceil(np.log2(scores.context)).astype(np.int64)  # contexts of 2^(e - 1) + 1 to 2^e tokens
    counts = np.bincount(edge)
    with np.errstate(invalid="ignore"):
        means = np.bincount(edge, weights=-scores.log_probs.astype(np.float64)) / counts
    longest = int(scores.context.max())
    return [
        Bucket(int(2 ** (e - 1)) + 1 if e else 1, min(2**e, longest), int(counts[e]), float(means[e]))
        for e in np.flatnonzero(counts).tolist()
    ]


def table(curves: Mapping[str, Sequence[Bucket]]) -> str:
    """Mean losses in nats by tokens of context, a column for each model; a model may lack the longest contexts."""
    longest = max(curves.values(), key=len)
    losses = [{bucket.first: bucket for bucket in buckets} for buckets in curves.values()]
    widths = [max(12, len(name) + 6) for name in curves]
    lines = ["  ".join(["context", f"{'tokens':>9}", *(f"{f'nats, {name}':>12}" for name in curves)])]
    for bucket in longest:
        found = [_loss(by_first.get(bucket.first), bucket.last) for by_first in losses]
        cells = [f"{loss:>{width}}" for loss, width in zip(found, widths, strict=True)]
        lines.append("  ".join([f"{bucket.name:<7}", f"{bucket.tokens:>9,}", *cells]))
    return "\n".join(lines)


def _loss(bucket: Bucket | None, last: int) -> str:
    """The loss of a bucket, and its last context where that is another."""
    if bucket is None:
        return ""
    return f"{bucket.loss:.4f}" + (f" (to {bucket.last})" if bucket.last != last else "")


def plot(curves: Mapping[str, Sequence[Bucket]], file: Path, *, title: str) -> None:
    """Nats against tokens of context, a line for each model."""
    figure, axes = plots.subplots(figsize=(6.5, 4), title=title)
    for name, buckets in curves.items():
        axes.plot([bucket.last for bucket in buckets], [bucket.loss for bucket in buckets], marker="o", label=name)
    buckets = max(curves.values(), key=len)
    axes.set_xscale("log", base=2)
    axes.set_xticks([bucket.last for bucket in buckets], [bucket.name for bucket in buckets])
    axes.minorticks_off()
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("loss (nats per token)")
    if len(curves) > 1:
        axes.legend(fontsize="small", frameon=False)
    plots.save_figure(figure, file)
