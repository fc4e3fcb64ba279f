"""The base of all ways of pretraining: one file each, with its rows, corruption, losses, metrics and checks.

A loss is summed over its predictions and divided by their number in the whole optimizer step, so that one batch
of 32, four of 8 and two processes of 16 give the same gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from torch import nn

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss
from pipeline.objectives.batch import Batch
from pipeline.objectives.checks import Check
from pipeline.objectives.samples import Table
from pipeline.tokenization.base import Tokenizer

if TYPE_CHECKING:
    from pipeline.objectives.sampling import StepBatches


class Rows(Protocol):
    """The rows of one epoch: random access, no plan in memory."""

    def __len__(self) -> int: ...

    @property
    def predictions_per_byte(self) -> float:
        """Predictions that the whole text needs, per UTF-8 byte of the raw text."""


class Objective(nn.Module, ABC):
    """A way of pretraining. Its parameters, if it has any, are trained with the model's.

    Attributes:
        requires: capabilities that a model must have (see `Encoder.capabilities`).
        main: the name of the language model's loss, which training brings below the unigram baseline.
        shown: metrics of a validation that the console shows; empty: all.
        consecutive: whether row b of a step continues row b of the step before; otherwise rows are shuffled.
        parallel: whether a document is a text and its translations, a line each, which stay whole.
        training_only: arguments that change how a run trains, and not what it is validated on.
        validates_as: the objective whose rows and losses validation has; None: its own.
    """

    requires: frozenset[str] = frozenset()
    main: ClassVar[str]
    shown: ClassVar[tuple[str, ...]] = ()
    consecutive: bool = False
    parallel: ClassVar[bool] = False
    training_only: ClassVar[frozenset[str]] = frozenset()
    validates_as: ClassVar[type[Objective] | None] = None

    @classmethod
    def compared_losses(cls) -> tuple[str, ...]:
        """Names of the losses that the baselines are for."""
        return (cls.main,)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of losses, by the names of the batch's targets, where they are not 1."""
        return {}

    @property
    def model_options(self) -> dict[str, Any]:
        """Arguments of the model's class that follow from the objective, as `next_sentence` of a masked LM: whether the
        model has that head."""
        return {}

    def setup(self, model: Encoder, store: TokenStore) -> None:
        """Makes ready what the objective needs beside the model, as a teacher: see `frozen.Frozen`.

        Called when the model is built, before a run begins or is resumed, before an audit and before an evaluation.

        Args:
            store: the text that is trained on, or evaluated.
        """

    def check_model(self, model: Encoder | type[Encoder]) -> None:
        """Raises UserError where the model, or its class, lacks what the objective requires, which it would ignore."""
        kind = model if isinstance(model, type) else type(model)
        if lacking := sorted(self.requires - kind.capabilities()):
            raise UserError(
                f"{type(self).__name__} needs a model that can do {', '.join(lacking)}; {kind.__name__} does "
                f"{', '.join(sorted(kind.capabilities()))}. Leave model.objective as the model's file has it."
            )

    def check_corpus(self, store: TokenStore, name: str) -> None:
        """Raises UserError when the corpus does not suffice; `name` is the part of it in messages."""

    @abstractmethod
    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> Any:
        """The rows of one epoch (see `Rows`).

        Args:
            length: T, most positions of a row.
            phase: shifts the cuts of the text into rows, for another cutting each epoch.
            seed: of choices that all batches of the epoch share.
        """

    def at(self, share: float) -> Objective:
        """The objective as it makes batches once `share` of a run's steps is done; 1: as at the end."""
        return self

    @abstractmethod
    def batch(self, rows: Any, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        """Rows `index` (B,) as one batch: a pure function of its arguments."""

    @abstractmethod
    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        """The losses, by the names of the batch's targets."""

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """One of `parts` shares of a batch, for accumulation and for several processes."""
        return batch.part(index, parts)

    def baselines(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        """Nats per prediction of a uniform guess, and of guessing by frequency alone (the unigram entropy)."""
        return math.log(len(tokenizer)), store.unigram_entropy(len(tokenizer), self.marks(tokenizer))

    def marks(self, tokenizer: Tokenizer) -> list[int]:
        """The special tokens that are predicted once for each document."""
        return []

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        """Share of the predictions that are the unknown token."""
        return store.meta["unknown"] / store.meta["tokens"]

    def words_per_token(self, rows: Any, store: TokenStore) -> float:
        """Words of the text per token that batches count (`Batch.tokens`), over the whole of an epoch.

        A word is what stands between spaces in the text as it was read: the token store counts these beside its
        tokens. So tokens seen times this number are words seen, for any tokenizer, and after an epoch that shows each
        token once they are the words of the corpus.

        Args:
            rows: of an epoch. Here each of its tokens is one prediction; rows with further special tokens say so.
        """
        return store.meta["words"] / (rows.predictions_per_byte * store.raw_bytes)

    def report(self, metrics: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """Further metrics of a validation.

        Args:
            metrics: `NAME_loss`, and `NAME_accuracy` and `NAME_spelling` where known, of each loss.
            per_byte: predictions that the text needs, per UTF-8 byte of it.
        """
        return {"perplexity": perplexity(metrics[f"{self.main}_loss"])}

    def fresh_loss(self, model: Encoder, batch: Batch, uniform: float) -> float:
        """Nats per prediction of the main loss that an untrained model must have: it guesses evenly."""
        return uniform

    def samples(self, model: Encoder, store: TokenStore) -> Table:
        """Predictions of a trained model in held-out text, to look at: columns and rows; none of either: no table."""
        return [], []

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        """The objective's part of the audit: of masks and labels.

        Args:
            model: an untrained one, in eval mode.
            steps: makes batches.
            batches: those of the first steps.
        """
        yield from ()


def check_shares(**shares: float | None) -> None:
    """Raises: UserError, an argument of an objective is not between 0 and 1; None: it is not set."""
    for name, share in shares.items():
        if share is not None and not 0 < share < 1:
            raise UserError(f"model.objective.init_args.{name} must lie between 0 and 1, not {share}.")


def perplexity(loss: float) -> float:
    """exp(loss), finite for a diverged loss too."""
    return math.exp(min(loss, 50.0))
