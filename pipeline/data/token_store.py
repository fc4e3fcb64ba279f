"""The token store: a corpus as token ids, tokenized once, memory-mapped, addressed by its content.

A folder with `tokens.bin` (uint16, or uint32 for a vocabulary above 65,536), `sentences.bin` (int64: the first token of
each sentence, and the end), `documents.bin` (int64: the first sentence of each document, and the end), `meta.json`,
`words.bin` (int64: words before each sentence) where tokens spell words, `languages.bin` (int64: a token id for each
document) where texts are in several languages, and `lines.bin` (uint64: a sketch of its
lines, see seen_lines.py). It is built by store_builder.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.storage.validation import read_json

Count = Annotated[int, Field(ge=0)]
Some = Annotated[int, Field(ge=1)]


class Meta(TypedDict):
    """Required entries of `meta.json`; it has other counts too."""

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
    """The token ids of a corpus, with the boundaries of sentences and documents.

    Attributes:
        tokens: (N,) token ids of the whole corpus, without special tokens.
        sentences: (S + 1,) first token of each sentence, then N.
        documents: (D + 1,) first sentence of each document, then S.
        meta: counts and hashes, as in `meta.json`.
        words: (S + 1,) words before each sentence, where tokens are the bytes of words.
        lines: sorted hashes of lines (see SeenLines); None for a store that was not built from text.
        languages: (D,) token id of each document's language; None: the corpus is in one.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    meta: dict[str, Any]
    words: np.ndarray | None = None
    lines: np.ndarray | None = None
    languages: np.ndarray | None = None

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """Maps the files of a store into memory.

        Raises:
            UserError: a file is damaged; names it.
        """
        meta: dict[str, Any] = read_json(folder / "meta.json", Meta)
        sizes: dict[str, tuple[str, int | None]] = {
            "tokens": (meta["dtype"], meta["tokens"]),
            "sentences": ("int64", meta["sentences"] + 1),
            "documents": ("int64", meta["documents"] + 1),
            "words": ("int64", meta["sentences"] + 1),
            "lines": ("uint64", None),
            "languages": ("int64", meta["documents"]),
        }
        arrays = {}
        for name, (dtype, count) in sizes.items():
            file = folder / f"{name}.bin"
            if name in ("words", "languages") and not file.exists():
                continue
            size = file.stat().st_size if file.is_file() else 0
            if not size or (count is not None and size != count * np.dtype(dtype).itemsize):
                raise UserError(f"The token store {folder} is damaged: {file.name} has {size:,} bytes.")
            # As a plain array: indexing a memmap object takes several times as long.
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
    def tokens_per_byte(self) -> float:
        """Tokens of the text, each once, per UTF-8 byte."""
        return self.meta["tokens"] / self.raw_bytes

    @property
    def unpredicted_bytes(self) -> int:
        """Raw bytes neither in a sentence nor between two: blank lines, ends of lines, repeated spaces."""
        within = self.meta["bytes"] - self.meta["documents"]  # one was counted behind each sentence, also the last
        return max(0, self.raw_bytes - within)

    @property
    def unknown_nats(self) -> float:
        """Nats of spelling an unknown word, on average; 0 where none is spelled."""
        return self.meta["unknown_nats"] / max(1, self.meta["unknown"]) if "unknown_nats" in self.meta else 0.0

    @property
    def document_starts(self) -> np.ndarray:
        """(D + 1,) first token of each document, then N."""
        return self.sentences[self.documents]

    def unigram_entropy(self, vocab_size: int, marks: Sequence[int] = ()) -> float:
        """Nats per token of the best prediction that ignores context: a language model's loss should fall below it.

        Args:
            marks: ids that stand around each document, and are predicted too.
        """
        counts = np.bincount(marks, minlength=vocab_size) * self.meta["documents"]
        for begin in range(0, len(self.tokens), 1 << 24):
            counts += np.bincount(self.tokens[begin : begin + (1 << 24)], minlength=vocab_size)
        p = counts[counts > 0] / counts.sum()
        return float(-(p * np.log(p)).sum())
