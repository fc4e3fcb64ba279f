"""Building a token store: documents -> sentences -> token ids on disk, in constant memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from pipeline.console.progress import progress
from pipeline.data.documents import Document, Source
from pipeline.data.seen_lines import SeenLines
from pipeline.data.sentences import after_space, sentences
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.storage.checksums import digest, file_hash, unsealed
from pipeline.storage.folders import write_folder
from pipeline.storage.locks import built_once
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import LONGEST_WORD

FORMAT = 7  # part of every key: raise it when the layout, the sentence splitter or the tokenization changes
LONG_SENTENCE = 2_000  # characters; longer "sentences" are counted: most of them are lists or unsplit text
BATCH = 4_000  # sentences tokenized at once: they keep the tokenizer's threads busy, and are about 1 MB of text
MAX_CHARACTERS = 1 << 21  # of a batch of long sentences: Ctrl-C waits for the end of a batch
COUNTS = (
    *("documents", "sentences", "tokens", "words", "bytes", "raw_bytes", "lines", "unknown", "duplicate_lines"),
    *("long_sentences", "empty_sentences", "spelled_words", "long_words", "endless_words"),
    "unknown_nats",
)
Keep = Callable[[int], bool]


class Sentence(NamedTuple):
    """A sentence of the text.

    Attributes:
        first: whether it begins a document.
        spaced: whether a space, the end of a line or nothing stands before it; not so within lines of Chinese.
        text: with that space, where the tokenizer keeps spaces.
        language: of its document.
    """

    first: bool
    spaced: bool
    text: str
    language: str | None


class NoText(UserError):
    """A corpus, or the requested part of it, has no words."""


def build(
    source: Source,
    tokenizer: Tokenizer,
    root: Path,
    *,
    keep: Keep | None = None,
    most: int | None = None,
    name: str = "corpus",
) -> TokenStore:
    """Opens the token store of `source` under `root`; builds it first if there is none, or a damaged one.

    Args:
        keep: predicate on the number of a document; others are left out.
        most: read only the first documents, this many; None: all.
        name: shown on the progress bar and, when `keep` is given, part of the key.

    Raises:
        NoText: the corpus has no words.
    """
    key = digest(FORMAT, source.fingerprint, tokenizer.hash, name if keep else "all")[:16]
    folder = root / key

    def write(aside: Path) -> None:
        aside.mkdir(parents=True)
        meta = _write(source, tokenizer, aside, keep, most, name)
        (aside / "meta.json").write_text(json.dumps({"key": key, **meta}, indent=2) + "\n")

    with built_once(folder, "the token store"):
        store = _open_whole(folder, partial(file_hash, verify=source.verify)) if folder.exists() else None
        if store is None:
            write_folder(folder, write)
    return store or TokenStore.open(folder)


def _open_whole(folder: Path, hash_of: Callable[[Path], str]) -> TokenStore | None:
    """The token store of a folder; None, with a warning, if it is damaged."""
    try:
        if why := unsealed(folder, hash_of):
            raise UserError(why)
        return TokenStore.open(folder)
    except UserError as error:
        print(f"Warning: {error} The token store is rebuilt.")
        return None


def _write(
    source: Source, tokenizer: Tokenizer, folder: Path, keep: Keep | None, most: int | None, name: str
) -> dict[str, Any]:
    """Writes the files of a store but `meta.json`, and returns its content."""
    with (
        _Writer(folder, tokenizer, whole_lines=source.parallel) as writer,
        progress(total=source.size(), unit="B", unit_scale=True, desc=f"tokenize {name}", leave=False, delay=1) as bar,
    ):
        documents = _documents(source, bar, keep, most)
        for batch, encoded in _encoded(writer.sentences_of(documents), tokenizer):
            writer.write(batch, encoded)
            bar.set_postfix(documents=f"{writer.count['documents']:,}", tokens=f"{writer.count['tokens'] / 1e6:.1f}M")
    if not writer.count["tokens"]:
        part = "The validation part of the corpus" if name.startswith("validation") else "The corpus"
        raise NoText(f"{part} holds no text.")
    hashes = {"corpus": source.fingerprint, "tokenizer": tokenizer.hash}
    return {**writer.count, "dtype": np.dtype(writer.dtype).name, "vocab_size": len(tokenizer), **hashes}


def _documents(source: Source, bar: tqdm, keep: Keep | None, most: int | None) -> Iterator[Document]:
    for number, (document, position) in enumerate(islice(source.documents(), most)):
        if bar.total is not None:
            bar.update(position - bar.n)
        if keep is None or keep(number):
            yield document


class _Writer:
    """Writes the arrays of a store batch by batch, and counts what is in them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, whole_lines: bool) -> None:
        self.folder, self.tokenizer, self.whole_lines = folder, tokenizer, whole_lines
        self.dtype = np.uint16 if tokenizer.spells or len(tokenizer) <= 1 << 16 else np.uint32
        self.unknown = tokenizer.id("unk")
        self.count: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        self.seen = SeenLines()
        self.stack, self.files = ExitStack(), dict[str, IO[bytes]]()
        self.pending = False  # a document has begun, but all its sentences were empty so far
        self.languages = list[int]()  # of documents, as ids of their tokens

    def __enter__(self) -> _Writer:
        names = ["tokens", "sentences", "documents", *(["words"] if self.tokenizer.spells else [])]
        for name in names:
            self.files[name] = self.stack.enter_context(open(self.folder / f"{name}.bin", "wb"))
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        with self.stack:
            if error is None:
                self._append("sentences", [self.count["tokens"]])
                self._append("documents", [self.count["sentences"]])
                if self.tokenizer.spells:
                    self._append("words", [self.count["spelled_words"]])
                if self.languages:
                    np.asarray(self.languages, dtype=np.int64).tofile(self.folder / "languages.bin")
                self.seen.smallest.tofile(self.folder / "lines.bin")
                found = self.count["duplicate_lines"]
                self.count["duplicate_lines"] = self.seen.repeated(self.count["lines"], found)

    def _append(self, name: str, values: Any) -> None:
        np.asarray(values, dtype=np.int64).tofile(self.files[name])

    def sentences_of(self, documents: Iterator[Document]) -> Iterator[Sentence]:
        """The sentences of documents; counts lines and bytes."""
        for document in documents:
            first = True
            self.count["raw_bytes"] += document.raw_bytes
            for line in document:
                self.count["lines"] += 1
                self.count["duplicate_lines"] += self.seen.add(line)
                parts = [line] if self.whole_lines else sentences(line)
                for part, spaced in zip(parts, after_space(line, parts), strict=True):
                    space = " " if spaced and not first and self.tokenizer.keeps_spaces else ""
                    yield Sentence(first, spaced, space + part, document.language)
                    first = False

    def write(self, batch: list[Sentence], encoded: list[list[int]]) -> None:
        """Appends a batch of sentences and their token ids."""
        count, starts, begins = self.count, list[int](), list[int]()
        for (first, spaced, sentence, language), ids in zip(batch, encoded, strict=True):
            self.pending |= first
            if not ids:  # nothing but characters that the normalizer removes
                count["empty_sentences"] += 1
                continue
            if self.pending:
                begins.append(count["sentences"])
                self.languages += [] if language is None else [self.tokenizer.language_id(language)]
                self.pending = False
            starts.append(count["tokens"])
            count["sentences"] += 1
            count["tokens"] += len(ids)
            count["words"] += len(sentence.split())
            count["bytes"] += len(sentence.strip().encode()) + (spaced or first)
            count["long_sentences"] += len(sentence) > LONG_SENTENCE
            count["unknown_nats"] += self.tokenizer.unknown_nats(sentence, ids)
            count["endless_words"] += self.tokenizer.overlong_words(sentence)
        count["documents"] += len(begins)
        flat = np.fromiter(chain.from_iterable(encoded), dtype=self.dtype, count=sum(map(len, encoded)))
        count["unknown"] += int((flat == self.unknown).sum())
        flat.tofile(self.files["tokens"])
        self._append("sentences", starts)
        self._append("documents", begins)
        if self.tokenizer.spells:
            self._append("words", self._words_before(flat, np.asarray(starts) - count["tokens"] + len(flat)))

    def _words_before(self, flat: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """The number of words in the store before each sentence of a batch of spelled tokens; counts them."""
        begins = np.flatnonzero(flat < 256)
        before = self.count["spelled_words"] + np.searchsorted(begins, starts)
        self.count["spelled_words"] += len(begins)
        self.count["long_words"] += int((np.diff(begins, append=len(flat)) > LONGEST_WORD).sum())
        return before


def _encoded(stream: Iterator[Sentence], tokenizer: Tokenizer) -> Iterator[tuple[list[Sentence], list[list[int]]]]:
    """Batches of a stream with their token ids; while one is tokenized, the caller writes the one before."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        before: tuple[list[Sentence], Future[list[list[int]]]] | None = None
        while batch := _batch(stream):
            job = pool.submit(tokenizer.encode_plain, [sentence.text for sentence in batch])
            if before is not None:
                yield before[0], before[1].result()
            before = batch, job
        if before is not None:
            yield before[0], before[1].result()


def _batch(stream: Iterator[Sentence]) -> list[Sentence]:
    batch: list[Sentence] = []
    characters = 0
    while characters < MAX_CHARACTERS and len(batch) < BATCH and (sentence := next(stream, None)):
        batch.append(sentence)
        characters += len(sentence.text)
    return batch
