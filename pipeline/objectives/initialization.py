"""How the vectors of tokens start, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from pipeline.console.messages import inform
from pipeline.data.token_store import TokenStore
from pipeline.models.base import Encoder
from pipeline.objectives.ppmi_init import initialize_from_ppmi

EmbeddingStart = Literal["random", "cooccurrence", "translations", "one-vector"]


def keep_random(encoder: Encoder, store: TokenStore, seed: int) -> None:
    """The vectors stay as the encoder was made."""


def from_cooccurrences(encoder: Encoder, store: TokenStore, seed: int) -> None:
    """The vectors of tokens that occur in similar places are similar from the start."""
    _count(encoder, store, seed, by_document=False)


def from_translations(encoder: Encoder, store: TokenStore, seed: int) -> None:
    """As `from_cooccurrences`, and those of words and their translations are similar too."""
    _count(encoder, store, seed, by_document=True)


def _count(encoder: Encoder, store: TokenStore, seed: int, *, by_document: bool) -> None:
    inform("embeddings  start from co-occurrences, which are being counted")
    assert encoder.token_embedding is not None
    special = encoder.tokenizer.special_ids
    initialize_from_ppmi(encoder.token_embedding.weight, store, special=special, seed=seed, by_document=by_document)


@torch.no_grad()
def from_one_vector(encoder: Encoder, store: TokenStore, seed: int) -> None:
    """All tokens have the same random vector, so that rare ones are near all others (Le et al. 2010, section 3)."""
    assert encoder.token_embedding is not None
    table, unused = encoder.token_embedding, encoder.token_embedding.padding_idx
    for weight in (table.weight, encoder.output_embedding):
        if weight is not None:
            weight.copy_(weight[int(encoder.tokenizer.ordinary_ids[0])].clone().expand_as(weight))
    if unused is not None:
        table.weight[unused] = 0.0


INITIALIZERS: dict[EmbeddingStart, Callable[[Encoder, TokenStore, int], None]] = {
    "random": keep_random,
    "cooccurrence": from_cooccurrences,
    "translations": from_translations,
    "one-vector": from_one_vector,
}
