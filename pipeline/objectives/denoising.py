"""Denoising: the text from a copy with spans hidden and sentences in another order (Lewis et al. 2020).

Shapes: B rows, T positions of the source, U positions of the target, D model size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch

from pipeline.data.rows import SentenceWindows
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.losses import Loss
from pipeline.objectives.base import Objective, check_shares
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.checks import Check
from pipeline.objectives.denoising_checks import noise_checks
from pipeline.objectives.infilling import Infilled, infill, permute
from pipeline.objectives.samples import Table, restored
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer

SPECIAL = 2  # tokens around a text, as a source and as a target


class TextRows:
    """The rows of one epoch: windows of sentences, without what exceeds their length."""

    def __init__(self, store: TokenStore, length: int, *, phase: int) -> None:
        self.store, self.windows = store, SentenceWindows(store, length, phase)

    def __len__(self) -> int:
        return len(self.windows)

    def __call__(self, index: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Numbers of rows (n,) -> tokens of each, and where sentences begin in them, but for the first."""
        rows = []
        for begin, end in zip(*self.windows.bounds(index)[1:], strict=True):
            end = min(end, begin + self.windows.length)
            rows.append((self.store.tokens[begin:end], self.windows.sentence_starts(begin, end) - begin))
        return rows

    def languages(self, index: np.ndarray) -> np.ndarray | None:
        """Numbers of rows (n,) -> ids of their languages (n,); None: the text says none."""
        return None if self.store.languages is None else self.store.languages[self.windows.bounds(index)[0]]

    @property
    def predictions_per_byte(self) -> float:
        return self.store.tokens_per_byte


class Denoising(Objective):
    """The text, from a noisy copy of it.

    Args:
        mask_rate: share of the tokens that are hidden.
        mean_span: tokens of a hidden span, on average; each becomes one mask.
        permute_sentences: whether sentences of a row are in random order.
    """

    requires = frozenset({"seq2seq"})
    main = "denoising"
    shown = ("denoising_loss", "denoising_accuracy", "perplexity")

    def __init__(self, mask_rate: float = 0.3, mean_span: float = 3.0, permute_sentences: bool = True) -> None:
        super().__init__()
        check_shares(mask_rate=mask_rate)
        if not mean_span >= 1:
            raise UserError(f"model.objective.init_args.mean_span must be at least 1, not {mean_span}.")
        self.mask_rate, self.mean_span, self.permute_sentences = mask_rate, mean_span, permute_sentences
        self._model: tuple[EncoderDecoder, ...] = ()  # in a tuple it is no part of this module

    def setup(self, model: Encoder, store: TokenStore) -> None:
        """Batches have the special tokens of the model."""
        self._model = (cast(EncoderDecoder, model),)

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> TextRows:
        return TextRows(store, length - SPECIAL, phase=phase)

    def words_per_token(self, rows: TextRows, store: TokenStore) -> float:
        """A target has its prefix and an end beside the tokens of a window."""
        [model] = self._model
        return store.meta["words"] / (store.meta["tokens"] + (len(model.target_prefix) + 1) * len(rows))

    def marks(self, tokenizer: Tokenizer) -> list[int]:
        """Those of a target; a long document has several."""
        [model] = self._model
        return [*model.target_prefix, tokenizer.id("eos")]

    def noisy(self, tokens: np.ndarray, inner: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator) -> Infilled:
        """A text (N,), with sentences that begin at `inner` too -> its noisy copy."""
        tokens = permute(tokens, inner, rng) if self.permute_sentences else tokens
        mask_id = tokenizer.id("mask")
        return infill(tokens, rng, mask_rate=self.mask_rate, mean_span=self.mean_span, mask_id=mask_id)

    def target(self, tokens: np.ndarray, noisy: Infilled, tokenizer: Tokenizer) -> list[int]:
        """What is to be written of a text (N,), from its noisy copy."""
        return tokens.tolist()

    def batch(self, rows: TextRows, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        [model] = self._model
        texts = [(tokens, self.noisy(tokens, inner, tokenizer, rng)) for tokens, inner in rows(index)]
        targets = [self.target(tokens, noisy, tokenizer) for tokens, noisy in texts]
        inputs = model.collate([noisy.ids.tolist() for _, noisy in texts]) | model.collate_targets(targets)
        if (languages := rows.languages(index)) is not None:
            codes = torch.from_numpy(languages)
            inputs = model.name_languages(inputs, codes, codes)
        labels = inputs.pop("labels")
        count = (labels >= 0).sum()
        target = Target(labels=labels, count=count)
        return Batch(inputs, {self.main: target}, rows=torch.from_numpy(index), tokens=count)

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        hidden = cast(EncoderDecoder, model).teacher_forced(batch.inputs).flatten(0, 1)
        target = batch.targets[self.main]
        labels = target.labels.flatten()[target.predicted]
        return {self.main: model.token_loss(hidden.index_select(0, target.predicted), labels)}

    def samples(self, model: Encoder, store: TokenStore) -> Table:
        return restored(cast(EncoderDecoder, model), store, self.noisy)

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        yield from noise_checks(self, steps, batches)
