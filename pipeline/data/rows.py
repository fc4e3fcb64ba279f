"""Rows of an epoch: which tokens of a store make row i, by random access, without an index in memory.

`SentenceWindows` begin with a sentence and vary in length (masked LM and sentence pairs); `PackedBlocks` and
`WordBlocks` cut the corpus as one stream into rows of equal length (left-to-right and bidirectional LM), and
`OverlappingBlocks` read it in rows that overlap (evaluation).

Row i of epoch e is a pure function of (store, length, seed, e, i), so that any worker can make any batch of any step,
and a resumed run needs no saved data state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.tokenization.spelled_words import split_words

LEAST = 8  # tokens of a window at the beginning of a long document: of fewer no pair of texts can be made


def shuffled(index: np.ndarray, size: int, seed: int) -> np.ndarray:
    """A pseudorandom permutation of range(size), evaluated at `index` (n,) in constant memory: a Feistel network.

    Four rounds on 2k bits (Luby and Rackoff 1988), repeated for values of at least `size` (cycle walking).
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


class SentenceWindows:
    """The documents of a store in windows of about `length` tokens that begin with a sentence.

    A document of at most `length` tokens is one window. A longer one is cut every `length` tokens, and each cut is
    moved back to the beginning of its sentence (a sentence longer than half a window is cut inside), so that windows
    are disjoint, hold every token, and have at most 1.5 x `length` tokens.

    Args:
        phase: shifts all cuts, so that each epoch has others.
    """

    def __init__(self, store: TokenStore, length: int, phase: int = 0) -> None:
        self.store, self.length = store, length
        self.starts = np.asarray(store.document_starts)
        sizes = np.diff(self.starts)
        most = max(0, length - LEAST)
        self.phases = np.where(sizes <= length, 0, min(phase % length, most))
        self.first = np.concatenate([[0], np.cumsum(-(-(sizes + self.phases) // length))])

    def __len__(self) -> int:
        return int(self.first[-1])

    def bounds(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers of windows (n,) -> their documents, and begins and ends in the tokens of the store, each (n,)."""
        document = np.searchsorted(self.first, index, side="right") - 1
        cut = (index - self.first[document]) * self.length - self.phases[document]
        begin, end = self._snap(document, cut), self._snap(document, cut + self.length)
        return document, begin, end

    def _snap(self, document: np.ndarray, cut: np.ndarray) -> np.ndarray:
        """Cuts relative to their documents (n,) -> the beginnings of their sentences in the store (n,)."""
        low, high = self.starts[document], self.starts[document + 1]
        position = np.clip(low + cut, low, high)
        sentences = self.store.sentences
        sentence = sentences[np.searchsorted(sentences, position, side="right") - 1]
        # Never back to the beginning of the document: the window before would be empty.
        return np.where((position - sentence < self.length // 2) & (sentence > low), sentence, position)

    def sentence_starts(self, begin: int, end: int) -> np.ndarray:
        """(n,): the sentences that begin strictly between two tokens of the store."""
        sentences = self.store.sentences
        low = np.searchsorted(sentences, begin, side="right")
        return sentences[low : np.searchsorted(sentences, end, side="left")]


class PackedBlocks:
    """The corpus as one stream, `boundary` before each document, cut into rows of `length` + 1 tokens.

    Rows overlap by one token: the last target of a row is the first input of the next.

    Args:
        boundary: ids of the tokens between documents, which also stand before the first: one that ends a document and
            begins the next, or one of each kind.
        phase: shifts all cuts, so that each epoch has others.
    """

    def __init__(self, store: TokenStore, length: int, *, boundary: int | Sequence[int], phase: int) -> None:
        self.store, self.length, self.boundary = store, length, np.atleast_1d(boundary)
        self.starts = np.asarray(store.document_starts) + len(self.boundary) * np.arange(len(store.documents))
        self.offset = phase % length if self.starts[-1] > 2 * length else 0

    def __len__(self) -> int:
        return max(1, int(self.starts[-1] - self.offset) // self.length)

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of rows (n,) -> token ids and documents, each (n, T + 1); document -1 is past the end."""
        return self.beginning_at(self.offset + rows * self.length)

    def beginning_at(self, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As a call, of rows that begin at these tokens of the stream (n,)."""
        position = begins[:, None] + np.arange(self.length + 1)
        end, size = self.starts[-1], len(self.boundary)
        document = np.searchsorted(self.starts, position, side="right") - 1
        since = position - self.starts[document]
        begun = np.searchsorted(self.starts + size - 1, position, side="right") - 1  # what ends one belongs to it
        inside = np.minimum(position, end - 1) - size * (np.minimum(document, len(self.starts) - 2) + 1)
        between = self.boundary[np.minimum(since, size - 1)]
        tokens = np.where(since < size, between, self.store.tokens[np.maximum(inside, 0)]).astype(np.int64)
        return tokens, np.where(position < end, np.maximum(begun, 0), -1)

    @property
    def predictions_per_byte(self) -> float:
        """Predicted tokens of the whole stream per UTF-8 byte of the raw text."""
        return float(self.starts[-1]) / self.store.raw_bytes


class OverlappingBlocks:
    """The text of `PackedBlocks` in rows of the same length, one every `stride` tokens.

    The first row begins where theirs does, and the last one ends where theirs does, or less than `stride` behind it.
    """

    def __init__(self, blocks: PackedBlocks, stride: int) -> None:
        self.blocks, self.store, self.stride = blocks, blocks.store, stride

    def __len__(self) -> int:
        return 1 - (-(len(self.blocks) - 1) * self.blocks.length // self.stride)

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of rows (n,) -> token ids and documents, each (n, T + 1); document -1 is past the end."""
        return self.blocks.beginning_at(self.blocks.offset + rows * self.stride)


class WordBlocks:
    """The words of the corpus as one stream, each sentence between two marks, cut into rows of `length` + 2 words.

    The first and the last word of a row are targets only: of the backward and of the forward direction.

    Args:
        begin: the mark at the beginning of a sentence, in place of a word.
        end: the mark at its end.
        phase: shifts all cuts, so that each epoch has others.

    Raises:
        UserError: the store holds tokens, not words.
    """

    def __init__(self, store: TokenStore, length: int, *, begin: bytes, end: bytes, phase: int) -> None:
        if store.words is None:
            raise UserError("This model is trained on words, not on tokens: set data.tokenizer.scheme to words.")
        self.store, self.length, self.begin, self.end = store, length, begin, end
        self.words = store.words
        self.total = int(self.words[-1]) + 2 * (len(self.words) - 1)
        self.offset = phase % length if self.total > 3 * length else 0
        self._last: tuple[int, list[bytes]] = (-1, [])

    def __len__(self) -> int:
        return max(1, (self.total - self.offset - 2) // self.length)

    def __call__(self, rows: np.ndarray) -> list[list[bytes]]:
        """Numbers of rows (n,) -> n lists of at most T + 2 words in UTF-8."""
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
        low, high = 0, len(self.words) - 1  # bisection by hand: sums of words and marks are not stored
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._start(middle) <= position else (low, middle)
        return low

    def _marked(self, sentence: int) -> list[bytes]:
        """The words of a sentence between both marks; the last one is cached: it can be as long as a book."""
        if self._last[0] != sentence:
            ids = self.store.tokens[self.store.sentences[sentence] : self.store.sentences[sentence + 1]]
            self._last = (sentence, [self.begin, *split_words(ids), self.end])
        return self._last[1]

    @property
    def predictions_per_byte(self) -> float:
        """Predicted words of the whole stream, in one direction, per UTF-8 byte of the raw text."""
        return self.total / self.store.raw_bytes


def word_windows(counts: Sequence[int], max_length: int) -> list[tuple[range, range]]:
    """Splits a sentence that is too long into overlapping windows: the words of each, and those to predict there.

    Windows overlap by about a quarter. Each word is predicted once, in the window where it is further from the edge.

    Args:
        counts: tokens of each word, each at most `max_length`.
        max_length: tokens of a window.
    """
    windows: list[tuple[range, range]] = []
    begin, first = 0, 0
    while True:
        end, used = begin, 0
        while end < len(counts) and used + counts[end] <= max_length:
            used += counts[end]
            end += 1
        if end == len(counts):
            return [*windows, (range(begin, end), range(first, end))]
        shared = min(max_length // 4, max_length - counts[end])  # so that the next one reaches further
        start, used = end, 0
        while used + counts[start - 1] <= shared:
            start -= 1
            used += counts[start]
        middle = (start + end) // 2
        windows.append((range(begin, end), range(first, middle)))
        begin, first = start, middle
