"""The token store: a corpus tokenised once, memory-mapped, content-addressed.

A folder with `tokens.bin` (uint16, or uint32 for a vocabulary above 65,536), `sentences.bin` (int64: where
each sentence begins, and the end), `documents.bin` (int64: the first sentence of each document, and the
end) and `meta.json`; `words.bin` (int64: words before each sentence) where tokens spell words. It is built in
constant memory, written aside and renamed when whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from pipeline import UserError
from pipeline.folders import damage, digest, file_hash, locked, write_folder
from pipeline.text import Source, sentences
from pipeline.tokenizer import LONGEST_WORD, Tokenizer

FORMAT = 4  # part of every key: raise it when the layout, the sentence splitter or the way to tokens changes
LONG_SENTENCE = 2_000  # characters: longer "sentences" are counted, being lists or unsplit text most often
Keep = Callable[[int], bool]
BATCH = 4_000  # sentences tokenised at once: enough to keep the tokenizer's threads busy, about 1 MB of text


class NoText(UserError):
    """A corpus, or the part of it that was asked for, without a word."""


@dataclass(frozen=True)
class TokenStore:
    """Flat tokens with sentence and document boundaries.

    Attributes:
        tokens: (N,) token ids of the whole corpus, no special tokens.
        sentences: (S + 1,) begin of each sentence in `tokens`, ending with N.
        documents: (D + 1,) first sentence of each document, ending with S.
        meta: counts and hashes, as in `meta.json`.
        words: (S + 1,) words before each sentence, where tokens are the bytes of words.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    meta: dict[str, Any]
    words: np.ndarray | None = None

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        meta = json.loads((folder / "meta.json").read_text())
        dtypes = {"tokens": meta["dtype"], "sentences": "int64", "documents": "int64"}
        if (folder / "words.bin").exists():
            dtypes["words"] = "int64"
        # As plain arrays: indexing a memmap object costs several times as much.
        arrays = {
            name: np.asarray(np.memmap(folder / f"{name}.bin", dtype=dtype, mode="r")) for name, dtype in dtypes.items()
        }
        if len(arrays["tokens"]) != meta["tokens"] or len(arrays["sentences"]) != meta["sentences"] + 1:
            raise UserError(f"The token store {folder} is damaged; delete this folder and run again.")
        return cls(meta=meta, **arrays)

    @property
    def document_starts(self) -> np.ndarray:
        """(D + 1,) begin of each document in `tokens`, ending with N."""
        return self.sentences[self.documents]

    def unigram_entropy(self, vocab_size: int) -> float:
        """Nats per token of the best guess that ignores context: the floor that a loss must fall below."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for begin in range(0, len(self.tokens), 1 << 24):
            counts += np.bincount(self.tokens[begin : begin + (1 << 24)], minlength=vocab_size)
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())


class _Seen:
    """Counts lines seen before in fixed memory: a Bloom filter (Bloom 1970) of 2^29 bits, 3 probes.

    At 50 million lines about 1.5 % of new lines are taken for old ones: "about" in the report.
    """

    BITS = 29

    def __init__(self) -> None:
        self.bits = bytearray(1 << (self.BITS - 3))  # zero pages: costs memory only where written

    def add(self, line: str) -> bool:
        value, seen = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little"), True
        for _ in range(3):
            value = (value * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            index = value >> (64 - self.BITS)
            if not self.bits[index >> 3] >> (index & 7) & 1:
                seen = False
                self.bits[index >> 3] |= 1 << (index & 7)
        return seen


def build(
    source: Source,
    tokenizer: Tokenizer,
    root: Path,
    *,
    keep: Keep | None = None,
    most: int | None = None,
    name: str = "corpus",
) -> TokenStore:
    """Opens the token store of `source` under `root`, building it first when it is not there.

    Args:
        keep: predicate on the number of a document; documents for which it is false are left out.
        most: read so many documents only; None: all.
        name: stands on the progress bar and, when `keep` is given, in the key.
    """
    key = digest(FORMAT, source.fingerprint(), tokenizer.hash, name if keep else "all")[:16]
    folder = root / key

    def write(aside: Path) -> None:
        aside.mkdir(parents=True)
        meta = _write(source, tokenizer, aside, keep, most, name)
        (aside / "meta.json").write_text(json.dumps({"key": key, **meta}, indent=2) + "\n")

    with locked(folder, "the token store"):
        there = (folder / "meta.json").exists()
        if there and (why := damage(folder, file_hash)):
            print(f"Warning: {why} The token store is built anew.")
            there = False
        if not there:
            write_folder(folder, write)
    return TokenStore.open(folder)


def _write(
    source: Source, tokenizer: Tokenizer, folder: Path, keep: Keep | None, most: int | None, name: str
) -> dict[str, Any]:
    dtype = np.uint16 if tokenizer.spells or len(tokenizer) <= 1 << 16 else np.uint32
    unk, seen = tokenizer.id("unk"), _Seen()
    count = dict.fromkeys(("documents", "sentences", "tokens", "words", "bytes", "lines", "unknown"), 0)
    count |= {"duplicate_lines": 0, "long_sentences": 0, "empty_sentences": 0, "spelled_words": 0, "long_words": 0}

    def labelled_sentences(bar: tqdm) -> Iterator[tuple[bool, str]]:
        """(begins a document, sentence)"""
        for number, (document, position) in enumerate(islice(source.documents(), most)):
            if bar.total is not None:
                bar.update(position - bar.n)
            if keep is not None and not keep(number):
                continue
            first = True
            for line in document:
                count["lines"] += 1
                count["duplicate_lines"] += seen.add(line)
                for sentence in sentences(line):
                    yield first, sentence if first or not tokenizer.keeps_spaces else f" {sentence}"
                    first = False

    with (
        ExitStack() as stack,
        open(folder / "tokens.bin", "wb") as tokens_file,
        open(folder / "sentences.bin", "wb") as sentences_file,
        open(folder / "documents.bin", "wb") as documents_file,
        tqdm(
            total=source.size(), unit="B", unit_scale=True, desc=f"tokenise {name}", leave=False, mininterval=1, delay=1
        ) as bar,
    ):
        words_file = stack.enter_context(open(folder / "words.bin", "wb")) if tokenizer.spells else None
        stream = labelled_sentences(bar)
        pending = False  # a document has begun whose sentences were all empty so far
        for batch, encoded in _encoded(stream, tokenizer):
            starts: list[int] = []
            begins: list[int] = []
            for (first, sentence), ids in zip(batch, encoded, strict=True):
                pending |= first
                if not ids:  # nothing but characters that the normaliser removes
                    count["empty_sentences"] += 1
                    continue
                if pending:
                    begins.append(count["sentences"])
                    pending = False
                starts.append(count["tokens"])
                count["sentences"] += 1
                count["tokens"] += len(ids)
                count["words"] += len(sentence.split())
                count["bytes"] += len(sentence.strip().encode()) + 1
                count["long_sentences"] += len(sentence) > LONG_SENTENCE
            count["documents"] += len(begins)
            flat = np.fromiter(chain.from_iterable(encoded), dtype=dtype, count=sum(map(len, encoded)))
            count["unknown"] += int((flat == unk).sum())
            flat.tofile(tokens_file)
            np.asarray(starts, dtype=np.int64).tofile(sentences_file)
            np.asarray(begins, dtype=np.int64).tofile(documents_file)
            if words_file is not None:
                _count_words(flat, np.asarray(starts) - count["tokens"] + len(flat), count).tofile(words_file)
            bar.set_postfix(documents=count["documents"], tokens=f"{count['tokens'] / 1e6:.1f}M")
        np.asarray([count["tokens"]], dtype=np.int64).tofile(sentences_file)
        np.asarray([count["sentences"]], dtype=np.int64).tofile(documents_file)
        if words_file is not None:
            np.asarray([count["spelled_words"]], dtype=np.int64).tofile(words_file)
    if not count["tokens"]:
        raise NoText(f"The corpus holds no text ({name}).")
    hashes = {"corpus": source.fingerprint(), "tokenizer": tokenizer.hash}
    return {**count, "dtype": np.dtype(dtype).name, "vocab_size": len(tokenizer), **hashes}


def _encoded(
    stream: Iterator[tuple[bool, str]], tokenizer: Tokenizer
) -> Iterator[tuple[list[tuple[bool, str]], list[list[int]]]]:
    """Batches of a stream and their tokens; while one is tokenised, the one before is written and the next is read."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        before: tuple[list[tuple[bool, str]], Future[list[list[int]]]] | None = None
        while batch := list(islice(stream, BATCH)):
            job = pool.submit(tokenizer.encode_plain, [sentence for _, sentence in batch])
            if before is not None:
                yield before[0], before[1].result()
            before = batch, job
        if before is not None:
            yield before[0], before[1].result()


def _count_words(flat: np.ndarray, starts: np.ndarray, count: dict[str, int]) -> np.ndarray:
    """Words before each sentence of a batch of spelled tokens; adds to the counts."""
    begins = np.flatnonzero(flat < 256)
    before = count["spelled_words"] + np.searchsorted(begins, starts)
    count["spelled_words"] += len(begins)
    count["long_words"] += int((np.diff(begins, append=len(flat)) > LONGEST_WORD).sum())
    return before.astype(np.int64)
