"""Predictions of a pretrained encoder in held-out text, to look at: filled masks, continued texts, guessed words.

Each function takes an encoder and a token store, and returns a table: its columns and its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.encoding import eval_mode
from pipeline.objectives.infilling import Infilled

COUNT = 12  # samples
SHOWN = 4  # guesses
BETWEEN = " · "  # guesses, of which many are commas
LENGTHS = (8, 48)  # tokens of a sentence that is taken
SHORTEST = 4  # where none is of these lengths

Table = tuple[list[str], list[list[str]]]  # columns and rows


def _chosen(encoder: Encoder, store: TokenStore) -> np.ndarray:
    """(n,) the numbers of sentences spread over a token store, of a length that is shown."""
    bounds, room = store.sentences, encoder.max_length - encoder.special.count()
    sizes = np.diff(bounds)
    good = np.flatnonzero((sizes >= LENGTHS[0]) & (sizes <= min(LENGTHS[1], room)))
    if not len(good):
        good = np.flatnonzero((sizes >= SHORTEST) & (sizes <= room))
    return good[np.unique(np.linspace(0, len(good) - 1, min(COUNT, len(good))).astype(np.int64))]


@contextmanager
def _sentences(encoder: Encoder, store: TokenStore) -> Iterator[list[list[Any]]]:
    """The chosen sentences as units of the encoder, which is in eval mode meanwhile."""
    bounds = store.sentences
    with eval_mode(encoder), torch.no_grad():
        yield [encoder.units(store.tokens[bounds[i] : bounds[i + 1]].tolist()) for i in _chosen(encoder, store)]


def filled_masks(encoder: Encoder, store: TokenStore) -> Table:
    """Guesses of a masked model for the word in the middle."""
    rows = []
    with _sentences(encoder, store) as sentences:
        for sentence in sentences:
            place = len(sentence) // 2
            ids = [*sentence[:place], encoder.tokenizer.id("mask"), *sentence[place + 1 :]]
            top = encoder(encoder.on_device(encoder.collate([ids]))).layers[-1]
            logits = encoder.logits(top)[0, encoder.special.prefix + place]
            guesses = [encoder.unit_text(i) for i in logits.topk(SHOWN).indices.tolist()]
            text = encoder.tokenizer.backend.decode(ids, skip_special_tokens=False)
            rows.append([text, encoder.unit_text(sentence[place]), BETWEEN.join(guesses)])
    return ["text", "masked", "guesses"], rows


def continuations(encoder: Encoder, store: TokenStore) -> Table:
    """The second half of each sentence, and what a left-to-right model generates instead."""
    rows = []
    with _sentences(encoder, store) as sentences:
        for ids in sentences:
            place = len(ids) // 2
            prompt = [encoder.tokenizer.id("bos"), *ids[:place]]
            new = encoder.generate(prompt, tokens=len(ids) - place, seed=0, temperature=0.8, top_k=0, top_p=0.95)
            rows.append([encoder.tokenizer.decode(part) for part in (ids[:place], ids[place:], new)])
    return ["text", "continuation", "generated"], rows


def restored(encoder: EncoderDecoder, store: TokenStore, noisy: Callable[..., Infilled]) -> Table:
    """Sentences with noise, see `Denoising.noisy`, and what an encoder-decoder makes of them."""
    rows, rng = [], np.random.default_rng(0)
    with _sentences(encoder, store) as sentences:
        for ids, language in zip(sentences, _languages(encoder, store), strict=True):
            source = noisy(np.asarray(ids), np.zeros(0, dtype=np.int64), encoder.tokenizer, rng).ids.tolist()
            with encoder.in_language(language):
                written = encoder.generate(source, tokens=len(ids) + SHOWN)
            shown = encoder.tokenizer.backend.decode(source, skip_special_tokens=False)
            rows.append([encoder.tokenizer.decode(ids), shown, encoder.shown(written)])
    return ["text", "noisy", "written"], rows


def _languages(encoder: Encoder, store: TokenStore) -> list[str | None]:
    """The token of each chosen sentence's language, None where texts say none."""
    chosen = _chosen(encoder, store)
    if store.languages is None:
        return [None] * len(chosen)
    documents = np.searchsorted(store.documents, chosen, side="right") - 1
    return [encoder.tokenizer.backend.id_to_token(int(store.languages[i])) for i in documents]


def guessed_words(encoder: Encoder, store: TokenStore) -> Table:
    """Guesses of a model of both directions for the word in the middle, from either side."""
    names = {index: word.decode(errors="replace") for word, index in encoder.tokenizer.outputs.items()}
    names |= {0: "<S>", 1: "</S>"}  # see `SpelledWords.outputs`
    rows = []
    with _sentences(encoder, store) as sentences:
        for words in sentences:
            place = len(words) // 2
            at = encoder.special.prefix + place
            logits = encoder.logits(encoder(encoder.on_device(encoder.collate([words]))).layers[-1])[0]
            # Forward, the position before predicts the word; backward, the one behind.
            likeliest = [logits[at - 1, 0], logits[at + 1, 1]]
            guesses = [
                BETWEEN.join(names.get(i, "[UNK]") for i in one.topk(SHOWN).indices.tolist()) for one in likeliest
            ]
            shown = [encoder.unit_text(word) for word in words]
            rows.append([" ".join([*shown[:place], "____", *shown[place + 1 :]]), shown[place], *guesses])
    return ["text", "word", "guesses forward", "guesses backward"], rows
