"""Masked language modeling with some rows that are read from left to right (Charpentier and Samuel 2024).

Source: GPT-BERT, https://arxiv.org/abs/2410.24159. There masked tokens are predicted one position earlier, so that both
kinds of row are; here a masked token is predicted where it stands, as a BERT's head does. The mean losses of both have
the same weight.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch

from pipeline.models.base import Encoder
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded
from pipeline.objectives.base import check_shares
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.checks import Check, none
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.sentence_pairs import DrawnRows, PairTask
from pipeline.tokenization.base import Tokenizer


class MaskedAndCausalLM(MaskedLM):
    """Masked tokens from all others; in some rows each token from those before it, by the same head.

    Args:
        mask_rate, whole_word, next_sentence, first_mask_rate: see `MaskedLM`. Rows from left to right have no mask, one
            segment, and no question of their second text.
        causal_share: share of the rows that are read from left to right.
        causal_until: share of the run after which there are none; validation has none.
    """

    requires = frozenset({"masked", "causal_rows"})
    training_only = MaskedLM.training_only | {"causal_share", "causal_until"}
    validates_as = MaskedLM

    def __init__(
        self,
        mask_rate: float = 0.15,
        whole_word: bool = False,
        next_sentence: PairTask = "nsp",
        first_mask_rate: float | None = None,
        causal_share: float = 0.25,
        causal_until: float = 0.75,
    ) -> None:
        super().__init__(
            mask_rate=mask_rate, whole_word=whole_word, next_sentence=next_sentence, first_mask_rate=first_mask_rate
        )
        check_shares(causal_share=causal_share, causal_until=causal_until)
        self.causal_share, self.causal_until = causal_share, causal_until

    def at(self, share: float) -> Self:
        now = super().at(share)
        if share >= self.causal_until:
            now = copy.copy(now)
            now.causal_share = 0.0
        return now

    def batch(self, rows: DrawnRows, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        batch = super().batch(rows, index, tokenizer, rng=rng)
        if not self.causal_share:
            return batch
        return with_causal_rows(batch, evenly(len(batch), self.causal_share, begin=rng.random()))

    def top_positions(self, model: Encoder, batch: Batch) -> torch.Tensor | None:
        return None if "clm" in batch.targets else super().top_positions(model, batch)

    def losses(self, model: Encoder, encoded: Encoded, batch: Batch) -> dict[str, Loss]:
        losses = super().losses(model, encoded, batch)
        if "clm" in batch.targets:
            losses["clm"] = self.token_loss(model, encoded, batch.targets["clm"])
        return losses

    def pair_loss(self, model: Encoder, encoded: Encoded, batch: Batch) -> Loss:
        labels = batch.targets["nsp"].labels
        asked = labels >= 0
        return classification_loss(model.next_sentence_logits(encoded)[asked], labels[asked])

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        yield from super().checks(model, steps, batches)
        index, rng = np.arange(min(16, len(steps.rows))), np.random.default_rng((steps.seed, 0))
        first = self.at(0.0).batch(steps.rows, index, steps.tokenizer, rng=rng)
        causal, target = first.inputs["causal"], first.targets["clm"]
        ids = first.inputs["input_ids"]
        if not len(target.labels):  # a small share of few rows
            return
        wrong = (ids.flatten()[target.predicted + 1] != target.labels).sum()
        yield none("rows from left to right predict the next token", int(wrong), f"of {len(target.labels):,}")
        changed = dict(first.inputs, input_ids=ids.clone())
        last = first.mask.sum(1) - 1
        changed["input_ids"][torch.arange(len(ids)), last] = steps.tokenizer.id("mask")
        with torch.no_grad():
            before, after = (model(inputs).layers[-1] for inputs in (first.inputs, changed))
        earlier = torch.arange(ids.shape[1]) < last[:, None]
        seen = ((before - after).abs().amax(-1) > 1e-5) & earlier
        yield none("rows from left to right do not see what follows", int(seen[causal].sum()), "positions")
        others = bool(seen[~causal].any()) or bool(causal.all())
        yield Check("other rows do", others, "they change with the last token" if others else "they do not")


def evenly(rows: int, share: float, *, begin: float) -> torch.Tensor:
    """(B,) bool, true for a share of the rows, evenly spread; `begin`, from 0 to 1, shifts them."""
    steps = torch.floor(torch.arange(rows + 1, dtype=torch.float64) * share + begin)
    return steps[1:] > steps[:-1]


def with_causal_rows(batch: Batch, causal: torch.Tensor) -> Batch:
    """A batch with some rows (B,) to be read from left to right, as they are without masks."""
    mlm, places = batch.targets["mlm"], batch.targets["mlm"].predicted
    hidden = ~causal[places // batch.mask.shape[1]]
    ids = batch.inputs["input_ids"].clone()
    ids.view(-1)[places[~hidden]] = mlm.labels[~hidden]
    segments = batch.inputs["token_type_ids"].masked_fill(causal[:, None], 0)
    followed = torch.zeros_like(batch.mask)
    followed[:, :-1] = batch.mask[:, 1:] & causal[:, None]
    positions = followed.flatten().nonzero()[:, 0]
    masked = replace(mlm, labels=mlm.labels[hidden], positions=places[hidden], count=hidden.sum().clamp(min=1))
    following = Target(ids.flatten()[positions + 1], torch.tensor(max(1, len(positions))), positions)
    targets = {**batch.targets, "mlm": masked, "clm": following}
    if "nsp" in targets:
        labels = targets["nsp"].labels.masked_fill(causal, -1)
        targets["nsp"] = Target(labels=labels, count=(~causal).sum().clamp(min=1))
    inputs = {**batch.inputs, "input_ids": ids, "token_type_ids": segments, "causal": causal}
    return replace(batch, inputs=inputs, targets=targets)
