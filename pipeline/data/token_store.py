"""The token store: a corpus tokenised once, memory-mapped, content-addressed.

A folder with `tokens.bin` (uint16, or uint32 for a vocabulary above 65,536), `sentences.bin` (int64: where
each sentence begins, and the end), `documents.bin` (int64: the first sentence of each document, and the
end) and `meta.json`; `words.bin` (int64: words before each sentence) where tokens spell words; `lines.bin` (uint64:
a sketch of its lines, to be compared with another's). It is built in constant memory, written aside and renamed when
whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field
from tqdm import tqdm
from typing_extensions import TypedDict

from pipeline.data.documents import Source
from pipeline.data.sentences import sentences
from pipeline.errors import UserError
from pipeline.storage.checksums import SUMS, damage, digest, file_hash
from pipeline.storage.folders import write_folder
from pipeline.storage.locks import built_once
from pipeline.storage.validation import read_json
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import LONGEST_WORD

FORMAT = 5  # part of every key: raise it when the layout, the sentence splitter or the way to tokens changes
LONG_SENTENCE = 2_000  # characters: longer "sentences" are counted, being lists or unsplit text most often
Keep = Callable[[int], bool]
BATCH = 4_000  # sentences tokenised at once: enough to keep the tokenizer's threads busy, about 1 MB of text
MOST_CHARACTERS = 1 << 21  # of them together, where sentences are long: Ctrl-C waits for so many


class NoText(UserError):
    """A corpus, or the part of it that was asked for, without a word."""


Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]


class Meta(TypedDict):
    """What `meta.json` must hold; other counts stand there too."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    dtype: Literal["uint16", "uint32"]
    corpus: str
    tokenizer: str
    documents: Some
    sentences: Some
    tokens: Some
    words: Count
    bytes: Some
    raw_bytes: Some
    lines: Some
    duplicate_lines: Count
    unknown: Count
    spelled_words: Count
    endless_words: Count


@dataclass(frozen=True)
class TokenStore:
    """Flat tokens with sentence and document boundaries.

    Attributes:
        tokens: (N,) token ids of the whole corpus, no special tokens.
        sentences: (S + 1,) begin of each sentence in `tokens`, ending with N.
        documents: (D + 1,) first sentence of each document, ending with S.
        meta: counts and hashes, as in `meta.json`.
        words: (S + 1,) words before each sentence, where tokens are the bytes of words.
        lines: sorted hashes of lines (see `_Seen`), where it was built of text.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    meta: dict[str, Any]
    words: np.ndarray | None = None
    lines: np.ndarray | None = None

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Maps the files of a store.

        Raises:
            UserError: it is damaged; names the file.
        """
        meta: dict[str, Any] = read_json(folder / "meta.json", Meta)
        sizes: dict[str, tuple[str, int | None]] = {
            "tokens": (meta["dtype"], meta["tokens"]),
            "sentences": ("int64", meta["sentences"] + 1),
            "documents": ("int64", meta["documents"] + 1),
            "words": ("int64", meta["sentences"] + 1),
            "lines": ("uint64", None),
        }
        arrays = {}
        for name, (dtype, count) in sizes.items():
            file = folder / f"{name}.bin"
            if name == "words" and not file.exists():
                continue
            size = file.stat().st_size if file.is_file() else 0
            if not size or (count is not None and size != count * np.dtype(dtype).itemsize):
                raise UserError(f"The token store {folder} is damaged: {file.name} has {size:,} bytes.")
            # As plain arrays: indexing a memmap object costs several times as much.
            arrays[name] = np.asarray(np.memmap(file, dtype=dtype, mode="r"))
        ends = {"sentences": meta["tokens"], "documents": meta["sentences"], "words": meta["spelled_words"]}
        for name, end in ends.items():
            if name in arrays and (arrays[name][0] != 0 or arrays[name][-1] != end):
                raise UserError(f"The token store {folder} is damaged: {name}.bin does not end with {end:,}.")
        return cls(meta=meta, **arrays)

    @property
    def raw_bytes(self) -> int:
        """UTF-8 bytes of the text as it was read."""
        return self.meta["raw_bytes"]

    @property
    def unpredicted_bytes(self) -> int:
        """Raw bytes that are in no sentence and between no two: of blank lines, line ends, spaces side by side."""
        return max(0, self.raw_bytes - self.meta["bytes"])

    @property
    def document_starts(self) -> np.ndarray:
        """(D + 1,) begin of each document in `tokens`, ending with N."""
        return self.sentences[self.documents]

    def unigram_entropy(self, vocab_size: int) -> float:
        """Nats per token of the best prediction that ignores context: a language model's loss should fall below it."""
        counts = np.zeros(vocab_size, dtype=np.int64)
        for begin in range(0, len(self.tokens), 1 << 24):
            counts += np.bincount(self.tokens[begin : begin + (1 << 24)], minlength=vocab_size)
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())


class _Seen:
    """Counts lines seen before in fixed memory: a Bloom filter (Bloom 1970) of 2^29 bits, 3 probes.

    At 50 million lines about 1.5 % of new lines are taken for old ones: "about" in the report.

    Also keeps the smallest hashes of all lines (bottom-k sketch: Broder 1997): a line that two texts share is in both
    sketches or in none, so these tell how much of one text is in the other.
    """

    BITS = 29
    KEPT = 1 << 18

    def __init__(self) -> None:
        self.bits = bytearray(1 << (self.BITS - 3))  # zero pages: costs memory only where written
        self._smallest, self._recent = np.zeros(0, dtype=np.uint64), list[int]()

    @property
    def smallest(self) -> np.ndarray:
        """The smallest hashes of lines, sorted, each once."""
        recent = np.asarray(self._recent, dtype=np.uint64)
        self._smallest, self._recent = np.unique(np.concatenate([self._smallest, recent]))[: self.KEPT], []
        return self._smallest

    def add(self, line: str) -> bool:
        value, seen = int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "little"), True
        self._recent.append(value)
        if len(self._recent) >= self.KEPT:
            self.smallest  # noqa: B018 (folds the recent ones in)
        for _ in range(3):
            value = (value * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
            index = value >> (64 - self.BITS)
            if not self.bits[index >> 3] >> (index & 7) & 1:
                seen = False
                self.bits[index >> 3] |= 1 << (index & 7)
        return seen


def shared_lines(store: TokenStore, other: TokenStore) -> float | None:
    """About which share of the distinct lines of a store is in another one too; None where that is not known."""
    if store.lines is None or other.lines is None:
        return None
    # Up to the hash to which both sketches are complete.
    limit = min((int(one[-1]) for one in (store.lines, other.lines) if len(one) == _Seen.KEPT), default=None)
    lines = store.lines if limit is None else store.lines[store.lines <= limit]
    return float(np.isin(lines, other.lines).mean()) if len(lines) else None


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
    key = digest(FORMAT, source.fingerprint, tokenizer.hash, name if keep else "all")[:16]
    folder = root / key

    def write(aside: Path) -> None:
        aside.mkdir(parents=True)
        meta = _write(source, tokenizer, aside, keep, most, name)
        (aside / "meta.json").write_text(json.dumps({"key": key, **meta}, indent=2) + "\n")

    with built_once(folder, "the token store"):
        found = _sound(folder, partial(file_hash, verify=source.verify)) if folder.exists() else None
        if found is None:
            write_folder(folder, write)
    return found or TokenStore.open(folder)


def _sound(folder: Path, hash_of: Callable[[Path], str]) -> TokenStore | None:
    """The token store of a folder; None, with a warning, where it is damaged."""
    try:
        if why := damage(folder, hash_of) if (folder / SUMS).is_file() else f"{folder / SUMS} is missing.":
            raise UserError(why)
        return TokenStore.open(folder)
    except UserError as error:
        print(f"Warning: {error} The token store is built anew.")
        return None


def _write(
    source: Source, tokenizer: Tokenizer, folder: Path, keep: Keep | None, most: int | None, name: str
) -> dict[str, Any]:
    dtype = np.uint16 if tokenizer.spells or len(tokenizer) <= 1 << 16 else np.uint32
    unk, seen = tokenizer.id("unk"), _Seen()
    count = dict.fromkeys(("documents", "sentences", "tokens", "words", "bytes", "raw_bytes", "lines", "unknown"), 0)
    count |= {"duplicate_lines": 0, "long_sentences": 0, "empty_sentences": 0, "spelled_words": 0, "long_words": 0}
    count["endless_words"] = 0

    def labelled_sentences(bar: tqdm) -> Iterator[tuple[bool, str]]:
        """(begins a document, sentence)"""
        for number, (document, position) in enumerate(islice(source.documents(), most)):
            if bar.total is not None:
                bar.update(position - bar.n)
            if keep is not None and not keep(number):
                continue
            first = True
            count["raw_bytes"] += document.raw_bytes
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
                count["endless_words"] += tokenizer.overlong_words(sentence)
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
    seen.smallest.tofile(folder / "lines.bin")
    if not count["tokens"]:
        raise NoText(f"The corpus holds no text ({name}).")
    hashes = {"corpus": source.fingerprint, "tokenizer": tokenizer.hash}
    return {**count, "dtype": np.dtype(dtype).name, "vocab_size": len(tokenizer), **hashes}


def _encoded(
    stream: Iterator[tuple[bool, str]], tokenizer: Tokenizer
) -> Iterator[tuple[list[tuple[bool, str]], list[list[int]]]]:
    """Batches of a stream and their tokens; while one is tokenised, the one before is written and the next is read."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        before: tuple[list[tuple[bool, str]], Future[list[list[int]]]] | None = None
        while batch := _batch(stream):
            job = pool.submit(tokenizer.encode_plain, [sentence for _, sentence in batch])
            if before is not None:
                yield before[0], before[1].result()
            before = batch, job
        if before is not None:
            yield before[0], before[1].result()


def _batch(stream: Iterator[tuple[bool, str]]) -> list[tuple[bool, str]]:
    batch: list[tuple[bool, str]] = []
    characters = 0
    while characters < MOST_CHARACTERS and len(batch) < BATCH and (sentence := next(stream, None)):
        batch.append(sentence)
        characters += len(sentence[1])
    return batch


def _count_words(flat: np.ndarray, starts: np.ndarray, count: dict[str, int]) -> np.ndarray:
    """Words before each sentence of a batch of spelled tokens; adds to the counts."""
    begins = np.flatnonzero(flat < 256)
    before = count["spelled_words"] + np.searchsorted(begins, starts)
    count["spelled_words"] += len(begins)
    count["long_words"] += int((np.diff(begins, append=len(flat)) > LONGEST_WORD).sum())
    return before.astype(np.int64)
