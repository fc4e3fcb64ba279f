"""Masked language modeling with pairs of texts to classify (Devlin et al. 2018, 3.1; Lan et al. 2019).

Shapes: B rows, T positions, M masked positions of a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, get_args

import numpy as np
import torch

from pipeline.data.rows import SentenceWindows
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError, check_choice
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss, classification_loss
from pipeline.models.outputs import Encoded
from pipeline.objectives.base import Objective, check_shares
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.checks import Check
from pipeline.objectives.mask_checks import mask_checks
from pipeline.objectives.masking import mask_tokens
from pipeline.objectives.pair_checks import pair_checks
from pipeline.objectives.samples import Table, filled_masks
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.sentence_pairs import DrawnRows, Pair, PairRows, PairTask
from pipeline.tokenization.base import Tokenizer

PADDING_MULTIPLE = 8  # rows are padded to a multiple of this: matrix kernels like round sizes


class MaskedLM(Objective):
    """Masked tokens from all others, and whether the second of two texts follows the first.

    Args:
        mask_rate: share of the tokens of a row that are to be predicted.
        whole_word: mask all pieces of a word together.
        next_sentence: `nsp` (Devlin et al. 2018), `sop` (sentence order, Lan et al. 2019) or `off`.
        first_mask_rate: that of the first step, from where it goes linearly to `mask_rate` at the last one (Yang et al.
            2022, https://arxiv.org/abs/2208.10806); None: it does not change. Validation has `mask_rate`.
    """

    requires = frozenset({"masked"})
    main = "mlm"
    shown = ("mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy")
    training_only = frozenset({"first_mask_rate"})

    def __init__(
        self,
        mask_rate: float = 0.15,
        whole_word: bool = False,
        next_sentence: PairTask = "nsp",
        first_mask_rate: float | None = None,
    ) -> None:
        super().__init__()
        check_choice("next_sentence", next_sentence, get_args(PairTask))
        check_shares(mask_rate=mask_rate, first_mask_rate=first_mask_rate)
        self.mask_rate, self.whole_word, self.next_sentence = mask_rate, whole_word, next_sentence
        self.first_mask_rate = first_mask_rate
        if self.pairs:
            self.requires |= {"next_sentence"}

    @property
    def pairs(self) -> bool:
        """Whether a row has two texts."""
        return self.next_sentence != "off"

    @property
    def model_options(self) -> dict[str, Any]:
        return {"next_sentence": self.pairs}

    def at(self, share: float) -> Self:
        if self.first_mask_rate is None:
            return self
        now = copy.copy(self)
        now.mask_rate = self.first_mask_rate + (self.mask_rate - self.first_mask_rate) * share
        return now

    def check_corpus(self, store: TokenStore, name: str) -> None:
        documents = store.meta["documents"]
        if self.next_sentence == "nsp" and documents < 2:
            raise UserError(
                f"Next-sentence prediction needs at least 2 documents, but the {name} corpus has {documents}; separate "
                "documents by a blank line, or set model.objective.init_args.next_sentence to off."
            )

    @property
    def num_special(self) -> int:
        """Special tokens of a row: [CLS] a [SEP] b [SEP]."""
        return 3 if self.pairs else 2

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> DrawnRows:
        return PairRows(SentenceWindows(store, length - self.num_special, phase=phase), self.next_sentence, seed=seed)

    def words_per_token(self, rows: PairRows, store: TokenStore) -> float:
        """A row shows the special tokens beside those of about a window."""
        return store.meta["words"] / (store.meta["tokens"] + self.num_special * len(rows.windows))

    def batch(self, rows: DrawnRows, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        pairs = rows.draw(index, rng)
        ids, segments, mask = join_pairs(pairs, tokenizer, most=rows.length + self.num_special)
        masked = mask_tokens(
            ids,
            mask & ~np.isin(ids, tokenizer.special_ids),
            mask.sum(1),
            rng,
            rate=self.mask_rate,
            mask_id=tokenizer.id("mask"),
            replacements=tokenizer.ordinary_ids,
            continues_word=tokenizer.continues_word if self.whole_word else None,
        )
        inputs = {"input_ids": masked.ids, "token_type_ids": segments, "mask": mask}
        targets = {
            "mlm": Target(
                labels=torch.from_numpy(masked.labels),
                count=torch.tensor(max(1, len(masked.positions))),  # a divisor, also where no token may be masked
                positions=torch.from_numpy(masked.positions),
            )
        }
        if self.pairs:
            labels = torch.tensor([pair.label for pair in pairs])
            targets["nsp"] = Target(labels=labels, count=torch.tensor(len(pairs)))
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        return Batch(inputs=tensors, targets=targets, rows=torch.from_numpy(index))

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        return trim(batch.part(index, parts))

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        inputs = model.asked(batch.inputs, self.top_positions(model, batch))
        return self.losses(model, model(inputs), batch)

    def top_positions(self, model: Encoder, batch: Batch) -> torch.Tensor | None:
        """(N,) the positions b T + t whose top layer `losses` reads, as [CLS] and what is masked; None: all of them.

        A subclass whose `losses` reads others says so here.
        """
        pooled, masked = model.pooled_positions(batch.mask), batch.targets["mlm"].predicted
        return None if pooled is None else torch.cat([pooled, masked])  # a special token is never masked

    def losses(self, model: Encoder, encoded: Encoded, batch: Batch) -> dict[str, Loss]:
        """The losses of what the model made of the batch."""
        losses = {"mlm": self.token_loss(model, encoded, batch.targets["mlm"])}
        if self.pairs:
            losses["nsp"] = self.pair_loss(model, encoded, batch)
        return losses

    @staticmethod
    def token_loss(model: Encoder, encoded: Encoded, target: Target) -> Loss:
        """Logits only where a token is predicted: a seventh of the positions, and the output matrix is large."""
        return model.token_loss(encoded.layers[-1].flatten(0, 1)[target.predicted], target.labels)

    def pair_loss(self, model: Encoder, encoded: Encoded, batch: Batch) -> Loss:
        """The loss of the question of the second text."""
        return classification_loss(model.next_sentence_logits(encoded), batch.targets["nsp"].labels)

    def samples(self, model: Encoder, store: TokenStore) -> Table:
        return filled_masks(model, store)

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        tokenizer = steps.tokenizer
        yield from mask_checks(batches, tokenizer, mask_rate=self.mask_rate, whole_word=self.whole_word)
        yield self._passes_differ(steps)
        if self.next_sentence == "nsp":
            yield from pair_checks(steps.rows.windows, [batch.targets["nsp"].labels for batch in batches])

    def _passes_differ(self, steps: StepBatches) -> Check:
        """The same texts in two epochs; as pairs they would have other partners."""
        alone = MaskedLM(mask_rate=self.mask_rate, whole_word=self.whole_word, next_sentence="off")
        rows = alone.rows(steps.store, steps.tokenizer, length=steps.length, phase=0, seed=0)
        index = np.arange(min(8, len(rows)))
        first, second = (
            alone.batch(rows, index, steps.tokenizer, rng=np.random.default_rng((0, step))).targets["mlm"].predicted
            for step in (0, steps.steps)
        )
        same = torch.equal(first, second)
        return Check("two passes mask differently", not same, "the same positions" if same else "other positions")


def join_pairs(pairs: list[Pair], tokenizer: Tokenizer, *, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] a [SEP] b [SEP], padded: ids, segment ids and mask, each (B, T). Without b: [CLS] a [SEP].

    Args:
        most: T at most; the model may have no more positions.
    """
    cls, sep, pad = (tokenizer.id(role) for role in ("cls", "sep", "pad"))
    sizes = [len(pair.a) + len(pair.b) + (3 if len(pair.b) else 2) for pair in pairs]
    ids = np.full((len(pairs), max(*sizes, min(round_up(max(sizes)), most))), pad, dtype=np.int64)
    segments, mask = np.zeros_like(ids), np.zeros(ids.shape, dtype=bool)
    for row, (pair, size) in enumerate(zip(pairs, sizes, strict=True)):
        second = len(pair.a) + 2
        ids[row, 0], ids[row, 1 : second - 1], ids[row, second - 1] = cls, pair.a, sep
        if len(pair.b):
            ids[row, second : size - 1], ids[row, size - 1] = pair.b, sep
            segments[row, second:size] = 1
        mask[row, :size] = True
    return ids, segments, mask


def round_up(length: int) -> int:
    return -(-length // PADDING_MULTIPLE) * PADDING_MULTIPLE


def trim(batch: Batch) -> Batch:
    """Cuts columns that are padding in every row."""
    old, lengths = batch.mask.shape[1], batch.mask.sum(1)
    new = round_up(int(lengths.max())) if len(lengths) else old
    if new >= old:
        return batch

    def moved(target: Target) -> Target:
        if target.positions is None:
            of_rows = target.labels.ndim > 1 and target.labels.shape[1] == old
            return replace(target, labels=target.labels[:, :new]) if of_rows else target
        return replace(target, positions=target.positions // old * new + target.positions % old)

    inputs = {name: value[:, :new] if value.ndim > 1 else value for name, value in batch.inputs.items()}
    return replace(batch, inputs=inputs, targets={name: moved(target) for name, target in batch.targets.items()})
