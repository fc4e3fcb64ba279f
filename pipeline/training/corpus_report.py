"""What a corpus holds: as text, before a run, and as numbers, `corpus.json` of its folder, for pages."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np

from pipeline.data import files
from pipeline.data.seen_lines import shared_lines
from pipeline.data.store_builder import LONG_SENTENCE
from pipeline.data.token_store import TokenStore
from pipeline.tokenization.overlong_words import OVERLONG
from pipeline.tokenization.spelled_words import LONGEST_WORD
from pipeline.training.corpus_data import CorpusData
from tasks.dataset import listed

CASED = "Été"  # which normalizers that drop case or accents change
MUCH_ASIDE = 0.25  # tokens of validation for each of training, where they are set aside by documents
MANY_SHARED = 0.2  # of the lines of validation text: headings and stock phrases alone are less
BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # tokens, from each to below the next


def corpus_report(data: CorpusData) -> str:
    """What a corpus holds, as `make data` prints it."""
    parts = (("train", data.train), ("validation", data.valid))
    about_parts = [line for name, part in parts for line in _part_lines(name, part, data)]
    return "\n".join([*_tokenizer_lines(data), *about_parts, *_split_lines(data)])


def _tokenizer_lines(data: CorpusData) -> list[str]:
    lines = [f"tokenizer   {len(data.tokenizer):,} pieces, hash {data.tokenizer.hash[:12]}"]
    if not data.options.file:
        where = "spread over the corpus" if data.hub is None else "at its beginning"  # a stream has no size
        lines[0] += f", trained on at most {data.options.train_megabytes:g} MB {where}"
        if len(data.tokenizer) > data.options.vocab_size and not data.tokenizer.spells:
            lines.append(
                f"            Note: data.tokenizer.vocab_size is {data.options.vocab_size:,}; special tokens and the "
                "characters or bytes of the text alone are more."
            )
    return lines


def _part_lines(name: str, part: TokenStore, data: CorpusData) -> list[str]:
    meta = part.meta
    units, unit = ("bytes of words", "bytes") if data.tokenizer.spells else ("tokens", "tokens")
    between = "" if data.tokenizer.generative else "; nor are the spaces between words"
    lines = [
        f"{name:<11} {meta['documents']:,} documents, {meta['sentences']:,} sentences, {meta['tokens']:,} {units}",
        f"            {meta['words']:,} words, {meta['tokens'] / max(1, meta['words']):.2f} {unit} per word, "
        f"{data.objective.unknown(part, data.tokenizer):.3%} unknown",
        f"            {meta['lines']:,} lines, about {meta['duplicate_lines']:,} of them repeated, "
        f"{meta['long_sentences']:,} sentences over {LONG_SENTENCE:,} characters",
        f"            {part.raw_bytes / 1e6:.1f} MB of text, {part.tokens.nbytes / 1e6:.1f} MB of tokens",
        f"            {part.unpredicted_bytes / part.raw_bytes:.2%} of the text is not predicted: blank lines, "
        f"spaces around sentences{between}",
    ]
    if meta["long_words"]:
        lines.append(f"            {meta['long_words']:,} words over {LONGEST_WORD} bytes are cut there")
    if meta["endless_words"]:
        lines.append(
            f"            {meta['endless_words']:,} words over {OVERLONG:,} characters are cut into "
            f"pieces of at most {data.tokenizer.longest_piece:,}"
        )
    if meta["duplicate_lines"] > 0.3 * meta["lines"]:
        lines.append("            Note: many lines are repeated; a model learns to copy these first.")
    return lines


def _split_lines(data: CorpusData) -> list[str]:
    """How far the validation part tells of new text, and what is in no part."""
    lines = []
    if data.tokenizer.generative and unicodedata.normalize("NFC", data.tokenizer.normalize(CASED)) != CASED:
        lines.append("            Note: case and accents are dropped; bits per byte leave out what they would cost.")
    shared = shared_lines(data.valid, data.train)
    if shared is not None:
        lines.append(f"            about {shared:.1%} of its distinct lines are in the training part too")
    if shared is not None and shared > MANY_SHARED:
        lines.append("            Warning: validation says little of new text where so much of it is trained on.")
    if data.section:
        lines.append(
            f"sections    The corpus has few documents: they are cut into sections of about {data.section:,} lines, "
            "before some are set aside for validation."
        )
    if data.set_aside and (share := len(data.valid.tokens) / len(data.train.tokens)) > MUCH_ASIDE:
        lines.append(
            f"            Warning: validation has {share / (1 + share):.0%} of the text, since the documents are few; "
            "add a file named valid.txt."
        )
    if data.left_out:
        lines.append(f"left out    {', '.join(data.left_out)}: named as a test part")
    if data.ignored:
        lines.append(f"left out    {listed(data.ignored)}: not {', '.join(files.FORMATS)}")
    return lines


def corpus_facts(data: CorpusData, corpus: str) -> dict[str, Any]:
    """Sizes, fertility, unknown share and lengths of both parts of a corpus, and its tokenizer.

    Args:
        corpus: its name.
    """
    tokenizer = data.tokenizer
    return {
        "corpus": corpus,
        "unit": "bytes of words" if tokenizer.spells else "tokens",
        "tokenizer": {"pieces": len(tokenizer), "hash": tokenizer.hash[:12]},
        "parts": {
            name: {**_sizes(store), "unknown": data.objective.unknown(store, tokenizer)}
            for name, store in (("train", data.train), ("validation", data.valid))
        },
    }


def _sizes(store: TokenStore) -> dict[str, Any]:
    meta = store.meta
    counts = {name: meta[name] for name in ("documents", "sentences", "words", "tokens", "lines", "duplicate_lines")}
    return {
        **counts,
        "bytes": store.raw_bytes,
        "tokens_per_word": meta["tokens"] / max(1, meta["words"]),
        "sentence_lengths": lengths(store.sentences),
        "document_lengths": lengths(store.document_starts),
    }


def lengths(starts: np.ndarray) -> dict[str, Any]:
    """Of what begins at `starts`, with the end behind the last: mean and median in tokens, and how many in each bin."""
    sizes = np.diff(starts)
    counts, _ = np.histogram(sizes, bins=[*BINS, np.iinfo(np.int64).max])
    return {
        "mean": round(float(sizes.mean()), 2),
        "median": float(np.median(sizes)),
        "longest": int(sizes.max()),
        "bins": list(BINS),
        "counts": counts.tolist(),
    }
