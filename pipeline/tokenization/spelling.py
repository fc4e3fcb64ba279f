"""What it costs to spell a word that a vocabulary does not have, so that a small vocabulary has no advantage."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def byte_nats(words: Iterable[bytes]) -> np.ndarray:
    """(257,) nats of each byte, and of the end of a word, by their frequency in a list of words."""
    words = list(words)
    counts = np.bincount(np.frombuffer(b"".join(words), dtype=np.uint8), minlength=257) + 1
    counts[256] += len(words)
    return -np.log(counts / counts.sum())


def nats_of(words: Iterable[bytes], costs: np.ndarray) -> float:
    """Nats of spelling all these words, by `byte_nats`."""
    words = list(words)
    used = np.bincount(np.frombuffer(b"".join(words), dtype=np.uint8), minlength=257)
    return float(used @ costs + len(words) * costs[256])
