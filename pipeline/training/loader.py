"""Batches of steps, in micro-batches and shares of processes; the next one is made while a step is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from torch.utils.data import DataLoader, Dataset, Sampler

from pipeline.objectives.batch import Batch


class Steps(Protocol):
    """A step's whole batch, and shares of it."""

    def __call__(self, step: int) -> Any: ...

    def part(self, batch: Any, index: int, parts: int) -> Any: ...


class MicroBatches(Dataset[list[Any]]):
    """Item i = the `parts` micro-batches of step i, of each the share of process `rank` of `world`.

    They are one item, since they share the step's whole batch: as items of their own, several workers would make it.
    """

    def __init__(self, steps: Steps, *, parts: int, world: int, rank: int) -> None:
        self.steps, self.parts, self.world, self.rank = steps, parts, world, rank

    def __getitem__(self, step: int) -> list[Any]:
        whole, count = self.steps(step), self.parts * self.world
        if count == 1:
            return [whole]
        shares = [self.steps.part(whole, part * self.world + self.rank, count) for part in range(self.parts)]
        return [share if len(share) else empty_share(self.steps.part(whole, 0, len(whole))) for share in shares]


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


class StepLoader(DataLoader):
    """The micro-batches of each step, one after the other.

    Args:
        order: steps.
    """

    def __init__(self, data: MicroBatches, order: Iterable[int], **options: Any) -> None:
        super().__init__(data, sampler=order, batch_size=None, **options)
        self.parts = data.parts

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for step in self.steps():
            yield from step

    def __len__(self) -> int:
        return super().__len__() * self.parts

    def steps(self) -> Iterator[list[Batch]]:
        """The micro-batches of each step together."""
        return super().__iter__()


class Loader(StepLoader):
    """Makes the next step while one is computed, and counts the seconds for which training waited all the same."""

    waited = 0.0

    def steps(self) -> Iterator[list[Batch]]:
        steps = super().steps()
        if self.num_workers:  # worker processes make batches ahead; only the main thread may wait for them
            yield from self._timed(lambda: next(steps, None))
            return
        with ThreadPoolExecutor(max_workers=1) as pool:
            ahead = [pool.submit(next, steps, None)]

            def take() -> list[Batch] | None:
                step = ahead.pop().result()
                ahead.append(pool.submit(next, steps, None))
                return step

            yield from self._timed(take)

    def _timed(self, take: Callable[[], list[Batch] | None]) -> Iterator[list[Batch]]:
        while True:
            begin = time.perf_counter()
            step = take()
            self.waited += time.perf_counter() - begin
            if step is None:
                return
            yield step
