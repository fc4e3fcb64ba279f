"""The base of models that read from left to right.

Shapes: B batch, T positions, D model size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pipeline.models.base import Encoder
from pipeline.models.inputs import Inputs, SpecialTokens, last_positions, padded, rows_of
from pipeline.models.outputs import Encoded


class CausalEncoder(Encoder):
    """Each token from those before it. Texts stand between ends of text, as in pretraining."""

    scoring = "causal"
    context = ("left",)
    special = SpecialTokens(prefix=1, between=1, suffix=1)

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """[begin] a [end] or [begin] a [end] b [end], as in pretraining; begin and end may be one token.

        The first GPT had special tokens for start, delimiter and extraction (Radford et al. 2018, 3.3).
        """
        begin, end = self.tokenizer.id("bos"), self.tokenizer.id("eos")
        rows = rows_of(texts, begin=[begin], between=[end], end=[end], max_length=self.max_length)
        return padded(rows, pad=end)

    def pooled(self, encoded: Encoded) -> Tensor:
        """(B, D): the last token of the top layer, which has seen the whole text (Radford et al. 2018, 3.2)."""
        return encoded.layers[-1].flatten(0, 1)[last_positions(encoded.mask)]
