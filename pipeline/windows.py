"""Which tokens make row i of an epoch: random access into a token store, without a plan in memory.

Row i of epoch e is a pure function of (store, length, seed, e, i), so any batch of any step can be made at
once, on any number of workers, and a resumed run needs no saved data state.
"""

from __future__ import annotations

import numpy as np

from pipeline.store import TokenStore


def shuffled(index: np.ndarray, size: int, seed: int) -> np.ndarray:
    """A pseudorandom permutation of range(size), evaluated at `index`, in no memory: a Feistel network.

    Four rounds on 2k bits (Luby and Rackoff 1988); values beyond `size` walk on until they fall inside.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    keys = np.random.default_rng((seed, size)).integers(1 << 63, size=4, dtype=np.uint64)

    def rounds(value: np.ndarray) -> np.ndarray:
        left, right = value >> np.uint64(half), value & mask
        for key in keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return left << np.uint64(half) | right

    value = rounds(np.asarray(index, dtype=np.uint64))
    while (outside := value >= size).any():
        value[outside] = rounds(value[outside])
    return value.astype(np.int64)


class Windows:
    """The documents of a store cut into windows of about `length` tokens that begin with a sentence.

    A document of at most `length` tokens is one window. A longer one is cut every `length` tokens, each cut
    moved back to the begin of its sentence (a sentence longer than half a window is cut inside), so that
    windows are disjoint and hold every token. `phase` shifts all cuts, for another cutting every epoch.
    """

    def __init__(self, store: TokenStore, length: int, phase: int = 0) -> None:
        self.store, self.length = store, length
        self.starts = np.asarray(store.document_starts)
        sizes = np.diff(self.starts)
        self.phases = np.where(sizes <= length, 0, phase % length)
        self.first = np.concatenate([[0], np.cumsum(-(-(sizes + self.phases) // length))])

    def __len__(self) -> int:
        return int(self.first[-1])

    def bounds(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Windows `index` (n,) -> their documents, begins and ends in the tokens of the store, each (n,)."""
        document = np.searchsorted(self.first, index, side="right") - 1
        cut = (index - self.first[document]) * self.length - self.phases[document]
        begin, end = self._snap(document, cut), self._snap(document, cut + self.length)
        return document, begin, end

    def _snap(self, document: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Cuts relative to their document -> the begin of the sentence there, in tokens of the store."""
        low, high = self.starts[document], self.starts[document + 1]
        position = np.clip(low + cut, low, high)
        sentences = self.store.sentences
        sentence = sentences[np.searchsorted(sentences, position, side="right") - 1]
        return np.where(position - sentence < self.length // 2, np.maximum(sentence, low), position)

    def sentence_starts(self, begin: int, end: int) -> np.ndarray:
        """Sentence begins strictly inside (begin, end)."""
        sentences = self.store.sentences
        low = np.searchsorted(sentences, begin, side="right")
        return sentences[low : np.searchsorted(sentences, end, side="left")]
