"""Building a tokenizer: trained on text spread over a corpus, and kept in the cache."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.console.progress import progress
from pipeline.data import files
from pipeline.data.documents import Source
from pipeline.errors import UserError
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest, sha256
from pipeline.storage.locks import built_once
from pipeline.storage.validation import read_text
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.base import Tokenizer

FORMAT = 5  # part of a tokenizer's key: raise it when their training changes

LONG = 0.1  # of what a tokenizer is trained on: a document above it is long


@dataclass
class TokenizerOptions:
    """How the tokenizer is made.

    Args:
        scheme: `wordpiece` (BERT), `bpe` (GPT), `bpe-seq2seq` (encoder-decoders), `words` (ELMo) or `whole-words`
            (causal models: split at spaces).
        file: an existing `tokenizer.json`; otherwise one is trained on the corpus.
        vocab_size: V, the most pieces (or words) of the vocabulary.
        lowercase: lower-case the text and strip accents.
        train_megabytes: train on at most this much text, chosen evenly over the corpus.
        min_frequency: of `whole-words`: a word that occurs less often there is [UNK].
        languages: of `bpe-seq2seq`: names as en, each of which gets a token.
        sentinels: of `bpe-seq2seq`: how many tokens stand for hidden spans (T5: <extra_id_0>, ...).
    """

    scheme: Literal["wordpiece", "bpe", "bpe-seq2seq", "words", "whole-words"]
    file: str | None
    vocab_size: int
    lowercase: bool
    train_megabytes: float
    min_frequency: int = 1
    languages: list[str] = field(default_factory=list)
    sentinels: int = 0

    def load(self) -> Tokenizer | None:
        """The tokenizer of `file`, where there is one.

        Raises:
            UserError: it has another scheme.
        """
        if not self.file:
            return None
        loaded = tokenizers.load(Path(self.file))
        if loaded.scheme != self.scheme:
            raise UserError(f"{self.file} is a {loaded.scheme} tokenizer; this model needs {self.scheme}.")
        return loaded

    def train(self, lines: Iterable[str]) -> Tokenizer:
        """A tokenizer trained on these lines."""
        return tokenizers.train(
            self.scheme,
            lines,
            vocab_size=self.vocab_size,
            lowercase=self.lowercase,
            min_frequency=self.min_frequency,
            languages=self.languages,
            sentinels=self.sentinels,
        )


def build(source: Source, options: TokenizerOptions, root: Path) -> Tokenizer:
    """The tokenizer of a corpus, from the cache when it is there.

    Args:
        root: folder of the cache.

    Raises:
        UserError: the named file is no tokenizer of this scheme.
    """
    if (loaded := options.load()) is not None:
        return loaded
    settings: list[Any] = [options.scheme, options.vocab_size, options.lowercase, options.train_megabytes]
    settings += [options.min_frequency] if options.min_frequency != 1 else []
    settings += [options.languages] if options.languages else []
    settings += [{"sentinels": options.sentinels}] if options.sentinels else []
    key = digest(FORMAT, source.fingerprint, *settings)
    file = root / f"{key[:16]}.json"
    with built_once(file, "the tokenizer"):
        if (known := _known(file, options.scheme)) is None:
            lines = _spread(source, round(options.train_megabytes * 1e6))
            write_atomically(file, interruptible(options.train, lines).backend.to_str())
            write_atomically(file.with_suffix(".sha256"), sha256(file))
    return known or tokenizers.load(file)


def _known(file: Path, scheme: str) -> Tokenizer | None:
    """The tokenizer that was trained before; None where there is none, or, with a warning, another."""
    if not file.exists():
        return None
    checksum = file.with_suffix(".sha256")
    try:
        if not checksum.exists():  # written before 0.13
            write_atomically(checksum, sha256(file))
        if read_text(checksum) != sha256(file):
            raise UserError(f"{file} is not what {checksum.name} says.")
        known = tokenizers.load(file)
        if known.scheme != scheme:
            raise UserError(f"{file} is a {known.scheme} tokenizer.")
        return known
    except UserError as error:
        print(f"Warning: {error} The tokenizer is trained again.")
        return None


def interruptible(train: Callable[[Iterator[str]], Tokenizer], texts: Iterator[str]) -> Tokenizer:
    """Trains in another thread: the library holds the one that it runs in, and Ctrl-C would wait for it to end."""
    stopped, done = threading.Event(), Future[Tokenizer]()

    def work() -> None:
        try:
            done.set_result(train(itertools.takewhile(lambda _: not stopped.is_set(), texts)))
        except BaseException as error:  # raised where it is waited for
            done.set_exception(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        stopped.set()
        worker.join(timeout=1)  # what is still at it ends with the process
        raise


def _is_taken(number: int, share: float) -> bool:
    return not number or int(number * share) != int((number + 1) * share)


def _spread(source: Source, limit: int) -> Iterator[str]:
    """Lines of documents spread evenly over the corpus, at most `limit` characters: the same ones every time.

    Of long documents, which may be whole languages, these are lines from their begin to their end.
    """
    size = source.size() or 0
    compressed = any(path.suffix in (*files.COMPRESSIONS, ".parquet") for path in source.files)
    share = min(1.0, limit / max(1, size * (3.5 if compressed else 1))) if size else 1.0
    taken = seen = 0  # characters; lines of long documents
    how: dict[str, Any] = {"unit": "B", "unit_scale": True, "leave": False, "delay": 1}
    with progress(total=source.size(), desc="read for the tokenizer", **how) as bar:
        for number, (document, position) in enumerate(source.documents()):
            if bar.total is not None:
                bar.update(position - bar.n)
            if sum(map(len, document)) > LONG * limit:
                lines = [line for index, line in enumerate(document, start=seen) if _is_taken(index, share)]
                seen += len(document)
            else:
                lines = document if _is_taken(number, share) else []
            for line in lines:
                taken += len(line)
                yield line
                if taken > limit:
                    return
