"""Which tokens make row i of an epoch: random access into a token store, without a plan in memory.

`Windows` begin with a sentence and have many lengths (masked LM and pairs); `Blocks` and `WordBlocks` cut the
corpus as one stream into rows of the same length (left-to-right and bidirectional LM).

Row i of epoch e is a pure function of (store, length, seed, e, i), so any batch of any step can be made at
once, on any number of workers, and a resumed run needs no saved data state.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from pipeline.data.token_store import TokenStore


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
    windows are disjoint, hold every token, and are at most half as long again as asked for. `phase` shifts all
    cuts, for another cutting every epoch.
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
        # Not back to the begin of the document: the window before would be empty.
        return np.where((position - sentence < self.length // 2) & (sentence > low), sentence, position)

    def sentence_starts(self, begin: int, end: int) -> np.ndarray:
        """Sentence begins strictly inside (begin, end)."""
        sentences = self.store.sentences
        low = np.searchsorted(sentences, begin, side="right")
        return sentences[low : np.searchsorted(sentences, end, side="left")]


class Blocks:
    """The corpus as one stream, each document begun by `boundary`, cut into rows of `length` + 1 tokens.

    Rows overlap by one token: what a row is asked last is what the next is given first. `phase` shifts all cuts.

    Args:
        boundary: id of the token that begins and so also ends each document.
    """

    def __init__(self, store: TokenStore, length: int, *, boundary: int, phase: int = 0) -> None:
        self.store, self.length, self.boundary = store, length, boundary
        self.starts = np.asarray(store.document_starts) + np.arange(len(store.documents))
        self.offset = phase % length if self.starts[-1] > 2 * length else 0

    def __len__(self) -> int:
        return max(1, int(self.starts[-1] - self.offset) // self.length)

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows (n,) -> token ids and documents, each (n, T + 1); the end of the stream is document -1."""
        position = self.offset + rows[:, None] * self.length + np.arange(self.length + 1)
        end = self.starts[-1]
        document = np.searchsorted(self.starts, position, side="right") - 1
        inside = np.minimum(position, end - 1) - np.minimum(document, len(self.starts) - 2)
        tokens = np.where(
            position == self.starts[document], self.boundary, self.store.tokens[np.maximum(inside - 1, 0)]
        ).astype(np.int64)
        return tokens, np.where(position < end, document, -1)

    @property
    def predictions_per_byte(self) -> float:
        """Predictions that the stream asks for, per UTF-8 byte of the raw text."""
        return float(self.starts[-1]) / self.store.raw_bytes


class WordBlocks:
    """The words of the corpus as one stream, each sentence between two marks, cut into rows of `length` + 2.

    A row has one more word at both ends: what the first word is asked backward and the last one forward.

    Args:
        begin: the mark at the begin of a sentence, in place of a word.
        end: the mark at its end.
    """

    def __init__(self, store: TokenStore, length: int, *, begin: bytes, end: bytes, phase: int = 0) -> None:
        assert store.words is not None
        self.store, self.length, self.begin, self.end = store, length, begin, end
        self.words = store.words
        self.total = int(self.words[-1]) + 2 * (len(self.words) - 1)
        self.offset = phase % length if self.total > 3 * length else 0
        self._last: tuple[int, list[bytes]] = (-1, [])

    def __len__(self) -> int:
        return max(1, (self.total - self.offset - 2) // self.length)

    def __call__(self, rows: np.ndarray) -> list[list[bytes]]:
        """Rows (n,) -> n lists of at most T + 2 words."""
        return [self._row(self.offset + int(row) * self.length) for row in rows]

    def _row(self, position: int) -> list[bytes]:
        sentence = self._sentence_at(position)
        skipped = position - self._start(sentence)
        result: list[bytes] = []
        while len(result) < self.length + 2 and sentence < len(self.words) - 1:
            result += self._marked(sentence)[skipped : skipped + self.length + 2 - len(result)]
            sentence, skipped = sentence + 1, 0
        return result

    def _start(self, sentence: int) -> int:
        return int(self.words[sentence]) + 2 * sentence

    def _sentence_at(self, position: int) -> int:
        low, high = 0, len(self.words) - 1  # bisection: the sum of words and marks is no array
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._start(middle) <= position else (low, middle)
        return low

    def _marked(self, sentence: int) -> list[bytes]:
        """The words of a sentence between both marks; kept for the next row, since one can be as long as a book."""
        if self._last[0] != sentence:
            ids = self.store.tokens[self.store.sentences[sentence] : self.store.sentences[sentence + 1]]
            self._last = (sentence, [self.begin, *split_words(ids), self.end])
        return self._last[1]

    @property
    def predictions_per_byte(self) -> float:
        """Predictions that the stream asks for in either direction, per UTF-8 byte of the raw text."""
        return self.total / self.store.raw_bytes


def word_windows(counts: Sequence[int], room: int) -> list[tuple[range, range]]:
    """A sentence that is too long -> windows of words, and which words of each are asked for.

    Windows overlap by about a quarter, and a word is asked for in the one where it stands further from the edge: so
    every word is asked for once.

    Args:
        counts: positions that each word takes, each at most `room`.
        room: positions of a window.
    """
    windows: list[tuple[range, range]] = []
    begin, asked = 0, 0
    while True:
        end, used = begin, 0
        while end < len(counts) and used + counts[end] <= room:
            used += counts[end]
            end += 1
        if end == len(counts):
            return [*windows, (range(begin, end), range(asked, end))]
        shared = min(room // 4, room - counts[end])  # so that the next one reaches further
        start, used = end, 0
        while used + counts[start - 1] <= shared:
            start -= 1
            used += counts[start]
        middle = (start + end) // 2
        windows.append((range(begin, end), range(asked, middle)))
        begin, asked = start, middle


def split_words(ids: np.ndarray) -> list[bytes]:
    """Spelled tokens -> words in UTF-8; a token below 256 begins a word."""
    ids = np.asarray(ids)
    text = (ids & 255).astype(np.uint8).tobytes()
    begins = np.flatnonzero(ids < 256).tolist()
    return [text[low:high] for low, high in itertools.pairwise([*begins, len(text)])] if begins else []
