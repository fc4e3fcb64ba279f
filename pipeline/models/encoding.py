"""Texts in, layers out: what `tokenize` and `encode` of an encoder do.

Shapes: B batch, T positions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models.inputs import Text, check_batch_size, check_texts, count, parts_of
from pipeline.models.outputs import Encoded, join_batches

if TYPE_CHECKING:
    from pipeline.models.base import Encoder


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards that of each module from before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def tokenize(encoder: Encoder, texts: Iterable[Text]) -> list[Any]:
    """See `Encoder.tokenize`."""
    texts = list(texts)
    parts = [part for text in texts if not isinstance(text, list) for part in parts_of(text)]
    ids = map(encoder.units, encoder.tokenizer.encode_batch(parts))
    result: list[Any] = []
    for text in texts:
        if isinstance(text, list):
            result.append([piece for word in encoder.word_pieces(text) for piece in word])
        else:
            pieces = [next(ids) for _ in parts_of(text)]
            result.append((pieces[0], pieces[1]) if isinstance(text, tuple) else pieces[0])
    return result


@torch.no_grad()
def encode(encoder: Encoder, texts: Sequence[Text], *, logits: bool, batch_size: int, state: Any) -> Encoded:
    """See `Encoder.encode`."""
    texts = check_texts(texts)
    check_batch_size(batch_size)
    if not texts:
        raise UserError("encode() was given no text.")
    if logits:
        encoder.check_lm()
    ids = encoder.tokenize(texts)
    order = list(range(len(ids)))
    if not encoder.carries:
        order.sort(key=lambda i: count(ids[i]))
    aligned = any(isinstance(text, list) for text in texts)
    parts: list[tuple[list[int], Encoded]] = []
    with eval_mode(encoder):
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            batch = encoder.on_device(encoder.collate([ids[i] for i in rows]))
            encoded = encoder(batch, state)
            state = encoded.state if encoder.carries else None
            encoded = replace(encoded, logits=encoder.logits(encoded.layers[-1]) if logits else None)
            if aligned:
                encoded.words = words_of(encoder, [texts[i] for i in rows], encoded.mask)
            parts.append((rows, encoded))
    return replace(join_batches(parts, pad=encoder.tokenizer.id("pad")), state=state)


def words_of(encoder: Encoder, texts: Sequence[Text], mask: Tensor) -> Tensor:
    """(B, T): the number of the word at each position, -1 for special tokens, padding, and texts that are no lists
    of words."""
    words, special = torch.full(mask.shape, -1), encoder.special
    for row, text in enumerate(texts):
        if not isinstance(text, list):
            continue
        counts = torch.tensor([len(pieces) for pieces in encoder.word_pieces(text)], dtype=torch.long)
        numbers = torch.arange(len(counts)).repeat_interleave(counts)[: int(mask[row].sum()) - special.count()]
        words[row, special.prefix : special.prefix + len(numbers)] = numbers
    return words.to(mask.device)
