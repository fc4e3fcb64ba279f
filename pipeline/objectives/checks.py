"""Checks of the audit: a name, whether it passed, and the numbers behind it; and what they look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeline.models.base import Encoder

SIGMAS = 4.5  # width of the intervals: one false alarm in 150,000 checks
CLOSE = 1e-4  # float32: the same sums in another order


@dataclass
class Check:
    """One line of the report."""

    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'pass' if self.passed else 'FAIL'}  {self.name}: {self.detail}"


def share(name: str, count: float, total: float, expected: float) -> Check:
    """Whether a share of `total` random draws lies in the interval that chance leaves around `expected`."""
    width = SIGMAS * math.sqrt(expected * (1 - expected) / max(1, total))
    observed = count / max(1, total)
    detail = f"{observed:.4f} of {total:,.0f}, expected {expected:.4f} ± {width:.4f}"
    return Check(name, abs(observed - expected) <= width, detail)


def none(name: str, count: float, of: str) -> Check:
    """Whether a count is zero."""
    return Check(name, count == 0, f"{count:,.0f} {of}")


def equal(name: str, difference: float) -> Check:
    """Whether the largest difference of two results is rounding."""
    return Check(name, difference <= CLOSE, f"largest difference {difference:.2g}")


@contextmanager
def watched_embedding(encoder: Encoder) -> Iterator[list[Tensor]]:
    """Gets the vectors of the tokens (B, T, ...), cut off the graph below, so that they collect a gradient."""
    seen: list[Tensor] = []

    def watch(vectors: Tensor) -> Tensor:
        seen.append(vectors.detach().requires_grad_())
        return seen[-1]

    if encoder.token_embedding is not None:
        handle = encoder.token_embedding.register_forward_hook(lambda module, args, vectors: watch(vectors))
        try:
            yield seen
        finally:
            handle.remove()
        return
    embed: Callable[[Any], Tensor] = encoder.embed
    encoder.embed = lambda inputs: watch(embed(inputs))  # type: ignore[method-assign, assignment]
    try:
        yield seen
    finally:
        del encoder.embed
