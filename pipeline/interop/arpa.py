"""ARPA: the text format in which n-gram models are exchanged, as KenLM, SRILM and IRSTLM read it.

A line an n-gram: log10 of its probability, its tokens, and log10 of what its continuations leave to shorter contexts.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.storage.atomic import open_atomically

if TYPE_CHECKING:
    from pipeline.models.layers.ngram_counts import Level, Smoothed
    from pipeline.models.ngram import Ngram

BEGIN, END = "<s>", "</s>"  # the end of text, in front of an n-gram and at its end
UNKNOWN = "<unk>"  # what readers take for a word that is not in the file
LINES = 1 << 16  # that are made at once
NEVER = -99.0  # log10 of 0


def write(model: Ngram, file: Path) -> None:
    """Writes a model as ARPA, compressed by gzip.

    Raises:
        UserError: its smoothing leaves nothing to shorter contexts (`add-k`), which ARPA cannot say.
    """
    if not model.probabilities.shortened:
        raise UserError(f"ARPA has no model with the smoothing {model.smoothing}: it does not back off.")
    total = sum(len(level.tokens) for level in model.levels)
    with (
        open_atomically(file, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, filename="", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as text,
        progress(total=total, desc="arpa", unit="n-gram", unit_scale=True, leave=False, delay=1) as bar,
    ):
        for part in _parts(model):
            text.write(part)
            bar.update(part.count("\n"))


def word(token: str) -> str:
    """A token as one word without spaces, and none of ARPA's own: others are written as `\\u0020`."""
    if token in (BEGIN, END, UNKNOWN):
        token = f"\\{token}"
    return re.sub(r"\s|[\x00-\x1f]", lambda space: f"\\u{ord(space[0]):04x}", token)


def _parts(model: Ngram) -> Iterator[str]:
    """The file, in parts of whole lines."""
    end, unknown, backend = model.tokenizer.id("eos"), model.tokenizer.id("unk"), model.tokenizer.backend
    last = [word(backend.id_to_token(i) or f"unused{i}") for i in range(model.config["vocab_size"])]
    last[unknown] = UNKNOWN  # of byte-level BPE, which knows every text, it is the end of text
    first = list(last)
    first[end], last[end] = BEGIN, END
    levels = model.probabilities.levels
    sizes = [len(level.level.tokens) for level in levels]
    sizes[0] += 1  # the end of text is two words
    yield "\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, start=1))

    p, shorter = model.probabilities.unigram, np.zeros(len(last), dtype=np.int64)  # each n-gram without its first token
    for n, level in enumerate(levels, start=1):
        yield f"\n\\{n}-grams:\n"
        p_before, shorter_before, size = p, shorter, len(level.level.tokens)
        p, shorter = (p, shorter) if n == 1 else (np.empty(size), np.empty(size, dtype=np.int64))
        weights = _weights(levels[n]) if n < len(levels) else np.full(size, np.nan)
        if n == 1:
            yield f"{NEVER:.0f}\t{BEGIN}\t{np.nan_to_num(weights[end]):.6f}\n"
            weights[end] = np.nan  # nothing follows the end
        for begin in range(0, size, LINES):
            part = slice(begin, min(begin + LINES, size))
            tokens, owners = level.level.tokens[part], _owners(level.level, np.arange(part.start, part.stop))
            if n > 1:
                shorter[part] = levels[n - 2].level.find(shorter_before[owners], tokens)
                own = level.shares(np.arange(part.start, part.stop), owners)
                p[part] = own + level.rest[owners] * p_before[shorter[part]]
            with np.errstate(divide="ignore"):
                costs = np.maximum(np.log10(p[part]), NEVER)
            starts = _names(levels[: n - 1], owners, first)
            columns = zip(costs.tolist(), starts, tokens.tolist(), weights[part].tolist(), strict=True)
            yield "".join(
                f"{cost:.6f}\t{start}{last[token]}\n"
                if rest != rest
                else f"{cost:.6f}\t{start}{last[token]}\t{rest:.6f}\n"
                for cost, start, token, rest in columns
            )
    yield "\n\\end\\\n"


def _weights(above: Smoothed) -> np.ndarray:
    """log10 of what each n-gram, as a context, leaves to shorter contexts; NaN where nothing follows it."""
    with np.errstate(divide="ignore"):
        return np.where(above.whole > 0, np.maximum(np.log10(above.rest), NEVER), np.nan)


def _owners(level: Level, places: np.ndarray) -> np.ndarray:
    """Places of n-grams -> places of their contexts in the order below."""
    return np.searchsorted(level.starts, places, side="right") - 1


def _names(levels: Sequence[Smoothed], places: np.ndarray, first: Sequence[str]) -> list[str]:
    """Places of contexts in the last of these levels -> their words, with a space behind."""
    if not levels:
        return [""] * len(places)
    distinct, which = np.unique(places, return_inverse=True)
    columns: list[list[str]] = []
    for level in reversed(levels):
        columns.insert(0, [first[token] for token in level.level.tokens[distinct].tolist()])
        distinct = _owners(level.level, distinct)
    names = [" ".join(words) + " " for words in zip(*columns, strict=True)]
    return [names[index] for index in which.tolist()]
