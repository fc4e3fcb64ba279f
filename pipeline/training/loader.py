"""Batches of steps, in micro-batches and shares of processes; the next one is made while a step is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, Sampler

from pipeline.objectives.batch import Batch


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


class Loader(DataLoader):
    """Makes the next batch while a step is computed, and counts the seconds for which training waited all the same."""

    waited = 0.0

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        batches = super().__iter__()
        if self.num_workers:  # worker processes make batches ahead; only the main thread may wait for them
            yield from self._timed(lambda: next(batches, None))
            return
        with ThreadPoolExecutor(max_workers=1) as pool:
            ahead = [pool.submit(next, batches, None)]

            def take() -> Batch | None:
                batch = ahead.pop().result()
                ahead.append(pool.submit(next, batches, None))
                return batch

            yield from self._timed(take)

    def _timed(self, take: Callable[[], Batch | None]) -> Iterator[Batch]:
        while True:
            begin = time.perf_counter()
            batch = take()
            self.waited += time.perf_counter() - begin
            if batch is None:
                return
            yield batch
