"""What a pretrained encoder predicts in held-out text, to look at: masks filled, texts continued, words guessed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder, eval_mode
from pipeline.models.inputs import Batch

COUNT = 12  # samples
SHOWN = 4  # guesses
LENGTHS = (8, 48)  # tokens of a sentence that is taken
SHORTEST = 4  # where none is of these lengths

Table = tuple[list[str], list[list[str]]]  # columns and rows


def samples(encoder: Encoder, store: TokenStore) -> Table:
    """Predictions in sentences spread over a token store, each of the word in the middle."""
    bounds, room = store.sentences, encoder.max_length - encoder.special.count()
    sizes = np.diff(bounds)
    good = np.flatnonzero((sizes >= LENGTHS[0]) & (sizes <= min(LENGTHS[1], room)))
    if not len(good):
        good = np.flatnonzero((sizes >= SHORTEST) & (sizes <= room))
    chosen = good[np.unique(np.linspace(0, len(good) - 1, min(COUNT, len(good))).astype(np.int64))]
    sentences = [encoder.units(store.tokens[bounds[i] : bounds[i + 1]].tolist()) for i in chosen]
    with eval_mode(encoder), torch.no_grad():
        return SAMPLES[encoder.scoring](encoder, sentences)


def _masks(encoder: Encoder, sentences: Sequence[list[Any]]) -> Table:
    rows = []
    for sentence in sentences:
        place = len(sentence) // 2
        ids = [*sentence[:place], encoder.tokenizer.id("mask"), *sentence[place + 1 :]]
        logits = encoder.logits(encoder(_batch(encoder, ids)).layers[-1])[0, encoder.special.prefix + place]
        guesses = [encoder.unit_text(i) for i in logits.topk(SHOWN).indices.tolist()]
        text = encoder.tokenizer.backend.decode(ids, skip_special_tokens=False)
        rows.append([text, encoder.unit_text(sentence[place]), ", ".join(guesses)])
    return ["text", "masked", "guesses"], rows


def _continuations(encoder: Encoder, sentences: Sequence[list[Any]]) -> Table:
    rows = []
    for ids in sentences:
        place = len(ids) // 2
        prompt = [encoder.tokenizer.id("bos"), *ids[:place]]
        new = encoder.generate(prompt, tokens=len(ids) - place, seed=0, temperature=0.8, top_k=0, top_p=0.95)
        rows.append([encoder.tokenizer.decode(part) for part in (ids[:place], ids[place:], new)])
    return ["text", "goes on", "generated"], rows


def _next_words(encoder: Encoder, sentences: Sequence[list[Any]]) -> Table:
    names = {index: word.decode(errors="replace") for word, index in encoder.tokenizer.outputs.items()}
    rows = []
    for words in sentences:
        place = len(words) // 2
        at = encoder.special.prefix + place
        logits = encoder.logits(encoder(_batch(encoder, words)).layers[-1])[0]
        # Forward, the position before predicts the word; backward, the one behind.
        likeliest = [logits[at - 1, 0], logits[at + 1, 1]]
        guesses = [", ".join(names.get(i, "[UNK]") for i in one.topk(SHOWN).indices.tolist()) for one in likeliest]
        shown = [encoder.unit_text(word) for word in words]
        rows.append([" ".join([*shown[:place], "____", *shown[place + 1 :]]), shown[place], *guesses])
    return ["text", "word", "guesses forward", "guesses backward"], rows


SAMPLES: dict[str, Callable[[Encoder, Sequence[list[Any]]], Table]] = {
    "masked": _masks,
    "causal": _continuations,
    "bidirectional": _next_words,
}


def _batch(encoder: Encoder, units: list[Any]) -> Batch:
    return {name: value.to(encoder.device) for name, value in encoder.collate([units]).items()}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """As Markdown."""
    cells = [columns, ["---"] * len(columns), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
