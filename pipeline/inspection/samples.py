"""What a pretrained encoder says about held-out text, to look at: masks filled, texts gone on with, words guessed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.tokenization.spelled_words import split_words

COUNT = 12  # examples
SHOWN = 4  # guesses
LENGTHS = (8, 48)  # tokens of a sentence that is taken


def examples(encoder: Encoder, store: TokenStore) -> tuple[list[str], list[list[str]]]:
    """Columns and rows about sentences spread over a token store; the word asked for stands in their middle."""
    bounds, room = store.sentences, encoder.max_length - 2
    sizes = np.diff(bounds)
    good = np.flatnonzero((sizes >= LENGTHS[0]) & (sizes <= min(LENGTHS[1], room)))
    if not len(good):
        good = np.flatnonzero((sizes >= 4) & (sizes <= room))
    chosen = good[np.unique(np.linspace(0, len(good) - 1, min(COUNT, len(good))).astype(np.int64))]
    sentences = [store.tokens[bounds[i] : bounds[i + 1]].astype(np.int64) for i in chosen]
    was_training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad():
            if isinstance(encoder, Elmo):
                return _next_words(encoder, sentences)
            return _gone_on(encoder, sentences) if isinstance(encoder, Gpt) else _masks(encoder, sentences)
    finally:
        encoder.train(was_training)


def _masks(encoder: Encoder, sentences: list[np.ndarray]) -> tuple[list[str], list[list[str]]]:
    name, rows = encoder.tokenizer.backend.id_to_token, []
    for sentence in sentences:
        place = len(sentence) // 2
        ids = [*sentence[:place], encoder.tokenizer.id("mask"), *sentence[place + 1 :]]
        batch = _on_device(encoder, [[int(i) for i in ids]])
        logits = encoder.logits(encoder(batch).layers[-1])[0, place + 1]
        guesses = [str(name(i)) for i in logits.topk(SHOWN).indices.tolist()]
        text = encoder.tokenizer.backend.decode([int(i) for i in ids], skip_special_tokens=False)
        rows.append([text, str(name(int(sentence[place]))), ", ".join(guesses)])
    return ["text", "masked", "guesses"], rows


def _gone_on(encoder: Gpt, sentences: list[np.ndarray]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for sentence in sentences:
        ids = [int(i) for i in sentence]
        place = len(ids) // 2
        prompt = [encoder.tokenizer.id("bos"), *ids[:place]]
        new = encoder.generate(prompt, tokens=len(ids) - place, seed=0, temperature=0.8, top_k=0, top_p=0.95)
        rows.append([encoder.tokenizer.decode(part) for part in (ids[:place], ids[place:], new)])
    return ["text", "goes on", "generated"], rows


def _next_words(encoder: Elmo, sentences: list[np.ndarray]) -> tuple[list[str], list[list[str]]]:
    names = {index: word.decode(errors="replace") for word, index in encoder.tokenizer.outputs.items()}
    rows = []
    for sentence in sentences:
        words = split_words(sentence)
        place = len(words) // 2
        batch = _on_device(encoder, [words])
        logits = encoder.logits(encoder(batch).layers[-1])[0]
        # Forward, the position before says what follows; backward, the one behind says what stood in front of it.
        guesses = [_words(logits[place, 0], names), _words(logits[place + 2, 1], names)]
        shown = [word.decode(errors="replace") for word in words]
        rows.append([" ".join([*shown[:place], "____", *shown[place + 1 :]]), shown[place], *guesses])
    return ["text", "word", "guesses forward", "guesses backward"], rows


def _words(logits: Tensor, names: dict[int, str]) -> str:
    return ", ".join(names.get(i, "[UNK]") for i in logits.topk(SHOWN).indices.tolist())


def _on_device(encoder: Encoder, texts: list[list[int]] | list[list[bytes]]) -> dict[str, Tensor]:
    return {name: value.to(encoder.device) for name, value in encoder.collate(texts).items()}
