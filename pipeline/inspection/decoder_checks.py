"""The audit of a decoder: what it writes token by token is what it is trained on, and it sees no future."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import select
from pipeline.models.inputs import Inputs
from pipeline.objectives.checks import Check, equal, watched_embedding

ROWS, LENGTH, PADDING = 3, 24, 5  # of the batch that is looked at, and tokens of padding that are added to sources


def decoder_checks(encoder: EncoderDecoder, batch: Inputs) -> Iterator[Check]:
    """All checks of a decoder.

    Args:
        batch: `input_ids`, `mask` and `decoder_input_ids`.
    """
    few = {name: batch[name][:ROWS] for name in ("input_ids", "mask", "decoder_input_ids")}
    few["decoder_input_ids"] = few["decoder_input_ids"][:, :LENGTH]
    with torch.no_grad():
        hidden = encoder.teacher_forced(few)
        yield equal("token by token, the decoder gives what it gives at once", stepwise(encoder, few, hidden))
        padded = {name: F.pad(few[name], (0, PADDING)) for name in ("input_ids", "mask")}
        moved = encoder.teacher_forced({**few, **padded}) - hidden
        yield equal("padding of a source does not matter to its target", float(moved.abs().max()))
        yield future(encoder, few, hidden)
    yield future_gradient(encoder, few)


def stepwise(encoder: EncoderDecoder, batch: Inputs, hidden: Tensor) -> float:
    """The largest difference to `hidden` (B, U, D) of one token at a time; in the middle the rows change places."""
    state, ids = encoder.begin(encoder.read(batch)), batch["decoder_input_ids"]
    turned, worst = torch.arange(len(ids), device=ids.device).flip(0), 0.0
    for u in range(ids.shape[1]):
        if u == ids.shape[1] // 2:
            state, ids, hidden = select((state, ids, hidden), turned)
        worst = max(worst, float((encoder.decode(ids[:, [u]], state)[:, 0] - hidden[:, u]).abs().max()))
    return worst


def future(encoder: EncoderDecoder, batch: Inputs, hidden: Tensor) -> Check:
    """Other tokens in the second half of a target: its first half stays."""
    ids = batch["decoder_input_ids"].clone()
    half = ids.shape[1] // 2
    ids[:, half:] = ids[:, half:].flip(1).roll(1, 0)
    moved = (encoder.teacher_forced({**batch, "decoder_input_ids": ids}) - hidden).abs()
    before, own = float(moved[:, :half].max()), float(moved[:, half:].max())
    detail = f"moved by {before:.2g}, their own outputs by {own:.2g}"
    return Check("changing later tokens of a target moves no other output", before == 0 and own > 0, detail)


def future_gradient(encoder: EncoderDecoder, batch: Inputs) -> Check:
    """The first half of a target, by its gradient."""
    name, encoded = "no gradient reaches later tokens of a target", encoder.read(batch)
    with watched_embedding(encoder) as vectors:
        hidden = encoder.teacher_forced(batch, encoded)
    half = hidden.shape[1] // 2
    hidden[:, :half].square().sum().backward()
    gradient = None if not vectors else vectors[0].grad
    encoder.zero_grad()
    if gradient is None:
        return Check(name, False, "the decoder does not read its tokens by the embedding")
    leaked, rest = float(gradient[:, half:].abs().max()), float(gradient[:, :half].abs().max())
    return Check(name, leaked == 0 and rest > 0, f"largest {leaked:.2g}, elsewhere {rest:.2g}")
