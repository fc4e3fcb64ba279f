"""What a corpus holds, as numbers: `corpus.json` of a run folder, for reports."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.data.token_store import TokenStore
from pipeline.training.corpus_data import CorpusData

BINS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # tokens, from each to below the next


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
