"""Repeated lines of a corpus, counted in fixed memory, and the share of one corpus's lines that is in another."""

from __future__ import annotations

import hashlib

import numpy as np

from pipeline.data.token_store import TokenStore

FEW = 100  # with so many the estimate has a standard error of at most 0.05


class SeenLines:
    """Recognizes repeated lines: a Bloom filter (Bloom 1970) of 2^29 bits with 3 probes.

    At 20 million lines fewer than 0.2 % of new lines are taken for repeated ones. Of more, `repeated` is estimated from
    the sketch.

    Also keeps the smallest hashes of all lines (bottom-k sketch, Broder 1997). A line that two texts share is in both
    sketches or in neither, so that two sketches estimate how much of one text is in the other.
    """

    BITS = 29
    KEPT = 1 << 18
    MOST = 20_000_000  # lines that the filter tells apart

    def __init__(self) -> None:
        self.bits = bytearray(1 << (self.BITS - 3))  # zero pages: take memory only where they are written
        self._smallest, self._recent = np.zeros(0, dtype=np.uint64), list[int]()

    @property
    def smallest(self) -> np.ndarray:
        """(n,) uint64: the smallest hashes of lines, sorted, without duplicates."""
        recent = np.asarray(self._recent, dtype=np.uint64)
        self._smallest, self._recent = np.unique(np.concatenate([self._smallest, recent]))[: self.KEPT], []
        return self._smallest

    def repeated(self, lines: int, found: int) -> int:
        """How many of so many lines repeat another.

        Args:
            found: for how many of them `add` said so.
        """
        kept = self.smallest
        if lines <= self.MOST or len(kept) < self.KEPT:
            return found
        return max(0, lines - (self.KEPT - 1) * 2**64 // int(kept[-1]))  # all are evenly spread below 2^64

    def add(self, line: str) -> bool:
        """Adds a line; returns whether it was (most likely) added before."""
        value, seen = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little"), True
        self._recent.append(value)
        if len(self._recent) >= self.KEPT:
            self.smallest  # noqa: B018 (merges the recent ones)
        for _ in range(3):
            value = (value * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            index = value >> (64 - self.BITS)
            if not self.bits[index >> 3] >> (index & 7) & 1:
                seen = False
                self.bits[index >> 3] |= 1 << (index & 7)
        return seen


def shared_lines(store: TokenStore, other: TokenStore) -> float | None:
    """The estimated fraction of a store's distinct lines that is in another store too; None where it is not known.

    The sketch of a large text says of few lines of a small one whether they are in it; FEW are too few to tell.
    """
    if store.lines is None or other.lines is None:
        return None
    # Only hashes up to the one where the shorter sketch ends: so far both are complete.
    limit = min((int(one[-1]) for one in (store.lines, other.lines) if len(one) == SeenLines.KEPT), default=None)
    lines = store.lines if limit is None else store.lines[store.lines <= limit]
    enough = 1 if limit is None else FEW
    return float(np.isin(lines, other.lines).mean()) if len(lines) >= enough else None
