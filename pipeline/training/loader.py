"""The loader of pretraining: the next batch is made while a step is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from torch.utils.data import DataLoader

from pipeline.objectives.batch import Batch


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
