"""How a fine-tune differs from plain training: `model.recipe`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import UserError
from pipeline.finetuning.options import PLAIN


@dataclass
class Recipe:
    """How a fine-tune differs from plain training.

    Args:
        dropout: in the encoder and before the head's linear layer.
        layers: what of the encoder the head sees: its `top` layer, or a scalar `mix` of all (Peters et al. 2018,
            equation 1); `auto`: the mix where the encoder is not trained, and where tokens of two texts are aligned:
            a top layer that was trained long to predict words says less of which word stands there.
        mix_dropout: rate at which a layer is left out of the scalar mix.
        lstm: cells of a biLSTM in each direction between encoder and head; 0: none.
        words: what of a word a tagger sees: its `first` piece, or the `mean` of its pieces.
        crf: let a tagger score whole sequences of tags.
        class_weights: `balanced` weighs classes by the inverse of their frequency.
        label_smoothing: share of the probability that is spread over all classes.
        lm_weight: weight of the auxiliary LM loss of a left-to-right encoder on the task's texts (Radford et al. 2018,
            equation 5).
        unfreeze_share: share of the run over which layers join the training one after another, from the top
            (Howard and Ruder 2018, 3.3); 0: all from the start, above 1: the lowest never do.
        pair: how pairs of texts are read: `joined` as one sequence, or one by one, and then `compared` by a vector of
            each or `attended` token by token; `auto`: as the encoder does by itself (see HeadOptions).
        reinit_layers: how many of the top layers get fresh weights before training (Zhang et al. 2021); of the arm
            `full` alone.
    """

    dropout: float
    layers: Literal["auto", "top", "mix"]
    mix_dropout: float
    lstm: int
    words: Literal["first", "mean"]
    crf: bool
    class_weights: Literal["none", "balanced"]
    label_smoothing: float
    lm_weight: float
    unfreeze_share: float
    pair: Literal["auto", "joined", "compared", "attended"]
    reinit_layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.mix_dropout < 1:
            raise UserError(f"model.recipe.mix_dropout is {self.mix_dropout}; it is a rate, from 0 to below 1.")
        if not 0 <= self.label_smoothing <= 1:
            raise UserError(f"model.recipe.label_smoothing is {self.label_smoothing}; it is a share, from 0 to 1.")
        for name in ("lstm", "unfreeze_share", "lm_weight", "reinit_layers"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"model.recipe.{name} is {getattr(self, name)}; it must be at least 0.")

    @property
    def particular(self) -> list[str]:
        """The settings that are not those of every head, see REFUSED."""
        return [name for name, value in PLAIN.items() if getattr(self, name) != value]
