"""Checks of masks: as the paper has them (Devlin et al. 2018, 3.1 and A.1), on real batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from pipeline.objectives.batch import Batch
from pipeline.objectives.checks import Check, none, share
from pipeline.tokenization.base import Tokenizer


def mask_checks(
    batches: Sequence[Batch], tokenizer: Tokenizer, *, mask_rate: float, whole_word: bool
) -> Iterator[Check]:
    """How many tokens are masked, what replaces them, and that they are neither special nor parts of words."""
    original = [unmasked(batch) for batch in batches]
    ids = np.concatenate([batch.inputs["input_ids"].flatten()[batch.targets["mlm"].predicted] for batch in batches])
    labels = np.concatenate([batch.targets["mlm"].labels for batch in batches])
    wanted = sum(float((batch.mask.sum(1) * mask_rate).round().clamp(min=1).sum()) for batch in batches)
    short = wanted - len(labels)  # whole words may not fill a row's share to the last piece
    allowed = sum(map(len, batches)) if whole_word else 0
    detail = f"{len(labels):,} of {wanted:,.0f} wanted ({mask_rate:.0%} of each row)"
    yield Check("masked positions", 0 <= short <= allowed, detail)
    v, mask_id = len(tokenizer.ordinary_ids), tokenizer.id("mask")
    yield share("replaced by [MASK]", (ids == mask_id).sum(), len(ids), 0.8)
    yield share("left as they were", (ids == labels).sum(), len(ids), 0.1 + 0.1 / v)
    yield share("replaced at random", ((ids != labels) & (ids != mask_id)).sum(), len(ids), 0.1 * (1 - 1 / v))
    special = sum(
        int(np.isin(text.flatten()[batch.targets["mlm"].predicted], tokenizer.special_ids).sum())
        for text, batch in zip(original, batches, strict=True)
    )
    yield none("no special or padding token is masked", special, "masked")
    if whole_word:
        broken = sum(broken_words(text, batch, tokenizer) for text, batch in zip(original, batches, strict=True))
        yield none("no word is masked in part", broken, "masked in part")


def unmasked(batch: Batch) -> Tensor:
    """The tokens (B, T) before they were masked."""
    flat = batch.inputs["input_ids"].flatten().clone()
    flat[batch.targets["mlm"].predicted] = batch.targets["mlm"].labels
    return flat.view(batch.mask.shape)


def broken_words(original: Tensor, batch: Batch, tokenizer: Tokenizer) -> int:
    """Word pieces that are masked where the piece before is not, or the other way round."""
    flat = original.flatten().numpy()
    chosen = np.zeros(flat.size, dtype=bool)
    chosen[batch.targets["mlm"].predicted] = True
    inside = np.flatnonzero(tokenizer.continues_word[flat])
    inside = inside[~np.isin(flat[inside - 1], tokenizer.special_ids)]  # a text may begin inside a word
    return int((chosen[inside] != chosen[inside - 1]).sum())
