"""Batches: what a model reads, and what it is trained to predict.

Shapes: B rows, T positions, M predicted positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class Target:
    """The labels of one loss.

    Attributes:
        labels: (B, ...), -1 where nothing is predicted; (M,) when there are `positions`.
        count: (), how many predictions the whole optimizer step has: the summed loss is divided by it.
        positions: (M,) places of the labels among the B * T positions, flattened; None: labels have the shape of rows.
        spelling: (B,) nats of spelling the unknown words among the labels, which bits per byte include.
    """

    labels: Tensor
    count: Tensor
    positions: Tensor | None = None
    spelling: Tensor | None = None

    @property
    def predicted(self) -> Tensor:
        """(M,) the positions b T + t of a batch at which something is predicted."""
        return (self.labels.flatten() >= 0).nonzero()[:, 0] if self.positions is None else self.positions

    @property
    def spelling_sum(self) -> Tensor | None:
        """(), the nats of spelling of all rows; None where the tokenizer spells nothing."""
        return None if self.spelling is None else self.spelling.sum()


def joined(targets: Sequence[Target]) -> Target:
    """Several losses of the same kind as one."""
    if len(targets) == 1:
        return targets[0]
    labels = torch.cat([target.labels.flatten()[target.labels.flatten() >= 0] for target in targets])
    counts = torch.stack([target.count for target in targets])
    return Target(labels, counts.sum(), torch.cat([target.predicted for target in targets]))


@dataclass
class Batch:
    """The rows of an optimizer step, or the part of them that one process computes at a time.

    Attributes:
        inputs: tensors (B, ...) for the model, one row of each for each row of the batch; `mask` (B, T) among them.
        targets: name of a loss -> its labels.
        rows: (B,) row numbers in the epoch.
        shared: tensors for the model that do not belong to rows.
        tokens: (), tokens of the whole optimizer step; by default those that the mask shows.
        empty: there was no row for this process: one row stands in, and its losses count nothing.
        state: recurrent state before the batch, for objectives whose rows continue those of the step before; they
            replace it by the state after the batch.
        begins: rows begin anew, as an epoch does: no state of the step before belongs to them.
    """

    inputs: dict[str, Tensor]
    targets: dict[str, Target]
    rows: Tensor
    shared: dict[str, Tensor] = field(default_factory=dict)
    tokens: Tensor = None  # type: ignore[assignment]
    empty: bool = False
    state: Any = None
    begins: bool = False

    def __post_init__(self) -> None:
        if self.tokens is None:
            self.tokens = self.mask.sum()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def mask(self) -> Tensor:
        return self.inputs["mask"]

    def part(self, index: int, parts: int, *, unit: int = 1) -> Batch:
        """One of `parts` nearly equal shares of the rows; counts stay those of the whole step.

        Args:
            unit: rows that stay together, from the first on.
        """
        size, longer = divmod(-(-len(self) // unit), parts)
        low = index * size + min(index, longer)
        return self.select(slice(low * unit, (low + size + (index < longer)) * unit))

    def select(self, rows: slice) -> Batch:
        """Some of the rows; with `positions` in a target, rows that follow each other."""
        low, high, step = rows.indices(len(self))
        width = self.mask.shape[1]

        def of(target: Target) -> Target:
            spelling = None if target.spelling is None else target.spelling[rows]
            if target.positions is None:
                return replace(target, labels=target.labels[rows], spelling=spelling)
            assert step == 1
            inside = (target.positions >= low * width) & (target.positions < high * width)
            positions = target.positions[inside] - low * width
            return replace(target, labels=target.labels[inside], positions=positions, spelling=spelling)

        return replace(
            self,
            inputs={name: value[rows] for name, value in self.inputs.items()},
            targets={name: of(target) for name, target in self.targets.items()},
            rows=self.rows[rows],
        )

    def to(self, device: torch.device | str) -> Batch:
        """The batch on another device."""
        kind = torch.device(device).type

        def moved(tensor: Tensor) -> Tensor:
            if kind == "mps" and tensor.dtype == torch.float64:  # which Apple's GPUs do not have
                tensor = tensor.float()
            return tensor.to(device, non_blocking=kind == "cuda")  # Apple's would read memory that is free again

        return self._map(moved)

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies while it computes."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def changed(target: Target) -> Target:
            return Target(
                change(target.labels),
                change(target.count),
                None if target.positions is None else change(target.positions),
                None if target.spelling is None else change(target.spelling),
            )

        return replace(
            self,
            inputs={name: change(value) for name, value in self.inputs.items()},
            targets={name: changed(target) for name, target in self.targets.items()},
            shared={name: change(value) for name, value in self.shared.items()},
            rows=change(self.rows),
            tokens=change(self.tokens),
        )
