"""Which rows a step has: batch = f(store, seed, step).

Nothing here keeps a state, so a resumed run starts at its step and needs no saved data state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

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
