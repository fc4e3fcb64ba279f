"""The log-probability of every token of a text, from a causal model: for mixtures, loss by context, and colored text.

Shapes: N predicted tokens in the order of the text, B rows, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.console import typed
from pipeline.console.progress import progress
from pipeline.data.rows import OverlappingBlocks, PackedBlocks
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoding import eval_mode
from pipeline.objectives.base import Objective, perplexity

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class TokenLogProbs:
    """What a model predicts of a text, in whole rows: the same tokens as `evaluate`, whatever the stride.

    Attributes:
        tokens: (N,) ids of the predicted tokens; the token that begins a document is one of them.
        log_probs: (N,) nats, negative.
        context: (N,) tokens to the left that the model was given, and could see.
        documents: (N,) the document of each token.
        spelling: (N,) nats of spelling unknown words, on average over the text; only bits per byte include them.
        per_byte: predictions of the whole text per UTF-8 byte of it.
    """

    tokens: np.ndarray
    log_probs: np.ndarray
    context: np.ndarray
    documents: np.ndarray
    spelling: np.ndarray
    per_byte: float

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return -float(self.log_probs.mean())

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)

    @property
    def bits_per_byte(self) -> float:
        return bits_per_byte(self.loss + float(self.spelling.mean()), self.per_byte)


def bits_per_byte(loss: float, per_byte: float) -> float:
    """Nats per token, and tokens per byte of the text -> bits per byte."""
    return loss * per_byte / math.log(2)


@torch.no_grad()
def token_log_probs(
    encoder: Encoder,
    store: TokenStore,
    objective: Objective,
    *,
    length: int,
    stride: int | None = None,
    batch_size: int = 32,
) -> TokenLogProbs:
    """The log-probability of each token of whole rows; what is left at the end of the text fills no row.

    Args:
        store: a text in the tokens of the encoder.
        objective: makes batches; where its rows are `consecutive`, the state of a model that has one goes from each row
            to the next.
        length: T, tokens of a row.
        stride: tokens from the beginning of a row to that of the next; each row predicts only its last `stride`, so
            that every token has at least `length` - `stride` + 1 tokens of context, but for the first row's. None: rows
            are cut anywhere, and the token at place t of a row has t tokens of context.
        batch_size: B.

    Raises:
        UserError: the model is not causal; the stride is above `length`, or the objective has consecutive rows.
    """
    check(encoder, objective, length=length, stride=stride)
    blocks = objective.rows(store, encoder.tokenizer, length=length, phase=0, seed=0)
    if not isinstance(blocks, PackedBlocks):
        raise UserError(f"{type(objective).__name__} does not cut a text into rows: its tokens cannot be scored.")
    rows = OverlappingBlocks(blocks, stride or length)
    lanes = Lanes(len(rows), batch_size, consecutive=objective.consecutive)
    bar = progress(lanes, total=len(lanes), desc="tokens", unit="batch", leave=False, delay=1)
    with eval_mode(encoder):
        parts = list(_scored(encoder, objective, rows, bar))
    places, tokens, log_probs, context = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(places)
    unknown = tokens[order] == encoder.tokenizer.id("unk") if store.unknown_nats else np.zeros(len(order), bool)
    return TokenLogProbs(
        tokens=tokens[order],
        log_probs=log_probs[order],
        context=context[order],
        documents=np.searchsorted(blocks.starts, places[order] + 1, side="right") - 1,
        spelling=np.float32(store.unknown_nats) * unknown,
        per_byte=blocks.predictions_per_byte,
    )


def _scored(encoder: Encoder, objective: Objective, rows: OverlappingBlocks, lanes: Iterable[Any]) -> Iterator[Arrays]:
    """Of each batch the places in the text, ids, log-probabilities and contexts of the tokens that it predicts."""
    length, new = rows.blocks.length, rows.stride
    columns, state = np.arange(length), None
    for index, unread, before in lanes:
        batch = objective.batch(rows, index, encoder.tokenizer, rng=np.random.default_rng(0)).to(encoder.device)
        read = 0 if state is None else before * length
        encoded = encoder(batch.inputs | batch.shared, state)
        state = encoded.state if objective.consecutive else None
        labels, places = batch.targets[objective.main].labels, index[:, None] * new + columns
        wanted = unread[:, None] & (places < len(rows.blocks) * length) & (labels >= 0).cpu().numpy()
        wanted &= (columns >= length - new) | (index[:, None] == 0)
        here = torch.from_numpy(wanted).to(encoder.device)
        scores = encoder.token_log_probs(encoded.layers[-1][here], labels[here])
        context = read + columns + 1 - _unseen(batch.inputs.get("documents"), wanted.shape)
        yield places[wanted], labels[here].cpu().numpy(), scores.float().cpu().numpy(), context[wanted]


def _unseen(documents: Tensor | None, shape: tuple[int, ...]) -> np.ndarray:
    """(B, T): the tokens of a row before the document at each position, where the model does not see past that."""
    if documents is None:
        return np.zeros(shape, np.int64)
    ids = documents.cpu().numpy()
    begins = np.diff(ids, axis=1, prepend=ids[:, :1]) != 0
    return np.maximum.accumulate(begins * np.arange(shape[1]), axis=1)


def check(encoder: Encoder, objective: Objective, *, length: int, stride: int | None, name: str | None = None) -> None:
    """Raises UserError where tokens cannot be scored so; `name`: of the model, in messages."""
    name = name or encoder.model_type
    if encoder.scoring != "causal":
        raise UserError(
            f"{name} is {encoder.scoring}: only causal models, which read from left to right, score a text token by "
            "token."
        )
    if length > encoder.max_length:
        raise UserError(
            f"data.length is {length}, but {name} has only {encoder.max_length} positions; "
            f"set {typed.setting('data.length', encoder.max_length)}."
        )
    if stride is not None and stride > length:
        raise UserError(f"The stride is {stride}, but rows have {length} tokens: set it to 1 to {length}.")
    if stride is not None and objective.consecutive:
        raise UserError("Where rows continue each other, every token has all its context: leave the stride out.")


class Lanes:
    """Which rows a batch has: those that follow each other, or, where rows are `consecutive`, B lanes of text.

    Yields:
        Row numbers (B,), whether they are new ones (B,), and how many rows of its lane are before each. Lanes differ
        by at most one row; a lane that has ended repeats its last row.
    """

    def __init__(self, rows: int, batch_size: int, *, consecutive: bool) -> None:
        self.rows, self.width, self.consecutive = rows, min(rows, batch_size), consecutive

    def __len__(self) -> int:
        return -(-self.rows // self.width)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
        bounds = np.linspace(0, self.rows, self.width + 1).astype(np.int64)
        for step in range(len(self)):
            if self.consecutive:
                index = bounds[:-1] + step
                yield np.minimum(index, bounds[1:] - 1), index < bounds[1:], step
            else:
                index = np.arange(step * self.width, min((step + 1) * self.width, self.rows))
                yield index, np.ones(len(index), dtype=bool), 0
