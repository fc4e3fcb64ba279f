"""Which rows a step has: batch = f(store, seed, step), cut into micro-batches and shares of processes.

Nothing here keeps a state, so a resumed run starts at its step and needs no saved data state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset, Sampler

from pipeline.data.rows import shuffled
from pipeline.data.token_store import TokenStore
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch
from pipeline.tokenization.base import Tokenizer


class StepBatches:
    """The batch of each step: epochs follow each other, each with its own order and cutting of the text.

    An epoch ends with its last full batch; a corpus smaller than a batch is one smaller batch.

    Args:
        length: most positions of a row.
        batch_size: rows of an optimizer step.
        seed: of order and corruption.
        total: steps of the run, over which the objective may change; None: it is as at the end of one.
    """

    def __init__(
        self,
        objective: Objective,
        store: TokenStore,
        tokenizer: Tokenizer,
        *,
        length: int,
        batch_size: int,
        seed: int,
        total: int | None = None,
    ) -> None:
        self.objective, self.store, self.tokenizer = objective, store, tokenizer
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.total = total
        self._start(0, 0)

    def _start(self, epoch: int, first_step: int) -> None:
        self.epoch, self.first_step = epoch, first_step
        self.epoch_seed = int(np.random.default_rng((self.seed, epoch)).integers(1 << 31)) if epoch else self.seed
        self.rows = self.objective.rows(
            self.store,
            self.tokenizer,
            length=self.length,
            phase=self.epoch_seed if epoch else 0,
            seed=self.epoch_seed,
        )
        self.steps = max(1, len(self.rows) // self.batch_size)

    def __call__(self, step: int) -> Batch:
        if step < self.first_step:
            self._start(0, 0)
        while step >= self.first_step + self.steps:
            self._start(self.epoch + 1, self.first_step + self.steps)
        return self._batch(step)

    def first_epoch(self) -> Iterator[Batch]:
        """The batches of the first epoch with the rows after the last full one, which consecutive rows leave out."""
        self._start(0, 0)
        count = self.steps if self.objective.consecutive else -(-len(self.rows) // self.batch_size)
        return (self._batch(step) for step in range(count))

    def _batch(self, step: int) -> Batch:
        if self.objective.consecutive:
            index = np.arange(min(self.batch_size, len(self.rows))) * self.steps + step - self.first_step
        else:
            begin = (step - self.first_step) * self.batch_size
            places = np.arange(begin, min(begin + self.batch_size, len(self.rows)))
            index = shuffled(places, len(self.rows), self.epoch_seed)
        rng = np.random.default_rng((self.seed, step))
        objective = self.objective.at(1.0 if self.total is None else min(1.0, step / self.total))
        batch = objective.batch(self.rows, index.astype(np.int64), self.tokenizer, rng=rng)
        return replace(batch, begins=step == self.first_step)

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """One of `parts` shares of a step's batch."""
        return self.objective.part(batch, index, parts)


class Steps(Protocol):
    """A step's whole batch, and shares of it."""

    def __call__(self, step: int) -> Any: ...

    def part(self, batch: Any, index: int, parts: int) -> Any: ...


class MicroBatches(Dataset[Any]):
    """Item i = micro-batch (i mod `parts`) of step (i div `parts`), the share of process `rank` of `world`."""

    def __init__(self, steps: Steps, *, parts: int, world: int, rank: int) -> None:
        self.steps, self.parts, self.world, self.rank = steps, parts, world, rank
        self._last: tuple[int, Any] | None = None

    def __getitem__(self, index: int) -> Any:
        step, part = divmod(index, self.parts)
        if self._last is None or self._last[0] != step:  # the micro-batches of a step share its whole batch
            self._last = (step, self.steps(step))
        parts, whole = self.parts * self.world, self._last[1]
        if parts == 1:
            return whole
        share = self.steps.part(whole, part * self.world + self.rank, parts)
        return share if len(share) else empty_share(self.steps.part(whole, 0, len(whole)))


def empty_share(batch: Batch) -> Batch:
    """The share of a process for which the step has no row: `batch` stands in, and its losses count nothing."""
    return replace(batch, empty=True)


class ResumableSampler(Sampler[int]):
    """first, first + 1, ... total - 1; its length is `total`, since Lightning counts from the beginning of the run."""

    def __init__(self, *, first: int, total: int) -> None:
        self.first, self.total = first, total

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.total))

    def __len__(self) -> int:
        return self.total
