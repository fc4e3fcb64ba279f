"""The likeliest words at the masks of a text."""

from __future__ import annotations

import torch

from pipeline.errors import UserError
from pipeline.models.base import Encoder

SHOWN = 5  # candidates of a mask


@torch.no_grad()
def fill_mask(encoder: Encoder, prompt: str) -> str:
    """The prompt, and for each of its masks the likeliest tokens with their probabilities.

    Raises:
        UserError: the encoder is not masked, there is no mask, or one does not fit into the positions.
    """
    if encoder.scoring != "masked":
        raise UserError(f"Only masked models fill masks; {encoder.model_type} is {encoder.scoring}.")
    mask = encoder.tokenizer.special["mask"]
    if mask not in prompt:
        raise UserError(
            f'The prompt has no {mask}; write it where a word is wanted, as in "The {mask} sat on the mat."'
        )
    out = encoder.encode([prompt], logits=True)
    places = (out.input_ids[0] == encoder.tokenizer.id("mask")).nonzero()[:, 0].tolist()
    if len(places) < prompt.count(mask):
        raise UserError(
            f"The prompt is longer than the encoder's {encoder.max_length} positions, and a mask is cut off."
        )
    assert out.logits is not None
    lines = []
    for number, place in enumerate(places, 1):
        best = out.logits[0, place].float().softmax(-1).topk(SHOWN)
        words = map(encoder.unit_text, best.indices.tolist())
        shown = "  ".join(f"{word} {p:.3f}" for word, p in zip(words, best.values.tolist(), strict=True))
        lines.append(f"{mask} {number}: {shown}")
    return "\n".join([prompt, *lines])
