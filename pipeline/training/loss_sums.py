"""Sums of losses between two log lines: no step waits for a GPU, and float64 keeps every digit.

An update of `torchmetrics.SumMetric` costs ten times as much, and by default looks for NaN, which asks the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from pipeline.models.losses import Loss

EMPTY = [0.0] * 4


class LossSums:
    """Sum, count, correct and spelling of each loss (see `Loss.statistics`), by `SPLIT/NAME`."""

    def __init__(self) -> None:
        self.pending: list[tuple[str, Tensor]] = []  # on the device, one for each loss and micro-batch
        self.sums: dict[str, list[float]] = defaultdict(lambda: list(EMPTY))

    def add(self, split: str, losses: Mapping[str, Loss], *, empty: bool = False) -> None:
        """Adds the losses of a batch; of an `empty` one they count nothing, but every process has the same names."""
        for name, loss in losses.items():
            statistics = loss.statistics()
            self.pending.append((f"{split}/{name}", torch.zeros_like(statistics) if empty else statistics))

    def expect(self, split: str, names: Iterable[str]) -> None:
        """Gives losses that this process may not see a sum of zero: all processes reduce the same names."""
        for name in names:
            self.sums[f"{split}/{name}"]

    def discard_after(self, count: int) -> None:
        """Forgets all but the first `count` pending losses."""
        del self.pending[count:]

    def local(self) -> dict[str, list[float]]:
        """The sums of this process."""
        if self.pending:
            names, statistics = zip(*self.pending, strict=True)
            for name, values in zip(names, torch.stack(statistics).tolist(), strict=True):
                self.sums[name] = [a + b for a, b in zip(self.sums[name], values, strict=True)]
            self.pending.clear()
        return self.sums

    def take(self, split: str, reduce: Callable[[Tensor], Tensor]) -> dict[str, tuple[float, dict[str, float]]]:
        """Removes and returns the sums of a split over all processes: `SPLIT/NAME` -> sum, and means by name.

        A loss without predictions, where others have some, has no means: 0 would look like a perfect one.

        Args:
            reduce: adds up a float64 tensor (4,) over processes.
        """
        self.local()
        keys = [key for key in self.sums if key.startswith(f"{split}/")]
        sums = {key: reduce(torch.tensor(self.sums.pop(key), dtype=torch.float64)).tolist() for key in keys}
        predicted = any(count for _, count, _, _ in sums.values())
        results = {}
        for key, (total, count, correct, spelling) in sums.items():
            means = {"loss": total, "accuracy": correct, "spelling": spelling} if count or not predicted else {}
            results[key] = total, {name: value / max(1, count) for name, value in means.items() if value == value}
        return results
