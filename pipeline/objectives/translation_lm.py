"""Masked language modeling over texts and their translations (Conneau and Lample 2019, https://arxiv.org/abs/1901.07291).

Shapes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded
from pipeline.objectives.batch import Batch, Target, joined
from pipeline.objectives.causal_rows import evenly
from pipeline.objectives.checks import Check, none, share
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.sentence_pairs import DrawnRows, Pair, excess
from pipeline.tokenization.base import Tokenizer

MOST_INCOMPLETE = 0.01  # share of the documents that may lack a text, where one had no token


class TranslationLM(MaskedLM):
    """Masked tokens of a text, and of a text with its translation behind it: MLM and TLM.

    In a row with both, a masked token can be found in either language, which brings the two together. Both texts
    count their positions from 0. There are no language embeddings, as in XLM-R (Conneau et al. 2020), so that the
    encoder need not be told the language of a text; second texts have the second segment of BERT.

    Args:
        translation_share: share of the documents that are shown as a text and its translation; of the others each text
            is a row. 0: masked language modeling alone, on the same texts.
        mask_rate, whole_word, first_mask_rate: see `MaskedLM`.
    """

    requires = frozenset({"masked", "positions"})
    shown = ("mlm_loss", "mlm_accuracy", "tlm_loss", "tlm_accuracy")
    parallel = True

    def __init__(
        self,
        mask_rate: float = 0.15,
        whole_word: bool = False,
        first_mask_rate: float | None = None,
        translation_share: float = 0.5,
    ) -> None:
        super().__init__(
            mask_rate=mask_rate, whole_word=whole_word, next_sentence="off", first_mask_rate=first_mask_rate
        )
        if not 0 <= translation_share < 1:
            raise UserError(
                f"model.objective.init_args.translation_share must be at least 0 and below 1, not {translation_share}."
            )
        self.translation_share = translation_share

    @classmethod
    def compared_losses(cls) -> tuple[str, ...]:
        return ("mlm", "tlm")

    def check_corpus(self, store: TokenStore, name: str) -> None:
        sizes = np.diff(store.documents)
        languages = int(np.bincount(sizes).argmax())
        incomplete = int((sizes != languages).sum())
        blank_lines_lack = languages > len(sizes)  # a list of lines is no document with a translation in each
        if languages < 2 or blank_lines_lack or incomplete > MOST_INCOMPLETE * len(sizes):
            raise UserError(
                f"Translation language modeling needs a text and its translations in each document, and the {name} "
                "corpus has others: give task:NAME of a translation task as corpus, or text with a line for each "
                "language and a blank line behind the last one."
            )

    @property
    def num_special(self) -> int:
        """Special tokens of a row with both texts: [CLS] a [SEP] b [SEP]."""
        return 3

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> TranslationRows:
        return TranslationRows(store, length - self.num_special, share=self.translation_share)

    def words_per_token(self, rows: Any, store: TokenStore) -> float:
        """An epoch shows two texts of each document, with three special tokens together or four apart."""
        shown = 2 / rows.languages
        return store.meta["words"] * shown / (store.meta["tokens"] * shown + (4 - rows.share) * len(rows))

    def batch(self, rows: DrawnRows, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        """Documents `index` (n,), each as a row with two of its texts, or as two rows with one each."""
        batch = super().batch(rows, index, tokenizer, rng=rng)
        together = batch.inputs["token_type_ids"].any(1)
        texts = 1 + together.long()
        document = (texts.cumsum(0) - texts) // 2
        inputs = {**batch.inputs, "positions": positions_in_texts(batch.inputs["token_type_ids"])}
        targets = by_kind(batch, together) if self.translation_share else batch.targets
        return replace(batch, inputs=inputs, targets=targets, rows=batch.rows[document])

    def top_positions(self, model: Encoder, batch: Batch) -> Tensor | None:
        found = super().top_positions(model, batch)
        if found is None or "tlm" not in batch.targets:
            return found
        return torch.cat([found, batch.targets["tlm"].predicted])

    def losses(self, model: Encoder, encoded: Encoded, batch: Batch) -> dict[str, Loss]:
        losses = super().losses(model, encoded, batch)
        if "tlm" in batch.targets:
            losses["tlm"] = self.token_loss(model, encoded, batch.targets["tlm"])
        return losses

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        one_kind = [replace(batch, targets={"mlm": joined([*batch.targets.values()])}) for batch in batches]
        yield from super().checks(model, steps, one_kind)
        together = torch.cat([batch.inputs["token_type_ids"].any(1) for batch in batches])
        documents = sum(len(batch.rows.unique()) for batch in batches)
        yield share(
            "documents with their translation behind them", int(together.sum()), documents, self.translation_share
        )
        first = [batch.inputs["token_type_ids"].diff(dim=1) == 1 for batch in batches]
        places = [batch.inputs["positions"][:, 1:][begins] for batch, begins in zip(batches, first, strict=True)]
        wrong = int((torch.cat(places) != 0).sum())
        yield none("second texts begin at position 0", wrong, f"of {int(together.sum()):,} do not")


class TranslationRows:
    """The documents of a store that have every language, in order.

    Args:
        length: most tokens of a row, without special tokens.
        share: of the documents that are shown as a text and its translation.
    """

    def __init__(self, store: TokenStore, length: int, *, share: float) -> None:
        self.store, self.length, self.share = store, length, share
        sizes = np.diff(store.documents)
        self.languages = int(np.bincount(sizes).argmax())
        self.documents = np.flatnonzero(sizes == self.languages)

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def predictions_per_byte(self) -> float:
        return self.store.tokens_per_byte

    def draw(self, index: np.ndarray, rng: np.random.Generator) -> list[Pair]:
        """Two texts of each document `index` (n,), in random order: as a pair, or as two without a second text.

        What is too long loses tokens at the end.
        """
        pairs: list[Pair] = []
        together = evenly(len(index), self.share, begin=rng.random()).tolist()
        for document, both in zip(self.documents[index].tolist(), together, strict=True):
            first = int(self.store.documents[document])
            a, b = (self._text(first + int(place)) for place in rng.permutation(self.languages)[:2])
            if both:
                from_a, from_b = excess(len(a), len(b), self.length)
                pairs.append(Pair(a[: len(a) - from_a], b[: len(b) - from_b], 0, (document, document)))
            else:
                pairs += [Pair(text[: self.length], text[:0], 0, (document, document)) for text in (a, b)]
        return pairs

    def _text(self, sentence: int) -> np.ndarray:
        begin, end = self.store.sentences[sentence : sentence + 2]
        return self.store.tokens[begin:end]


def positions_in_texts(segments: Tensor) -> Tensor:
    """Segment ids (B, T), 1 for a second text and 0 behind it -> places of tokens in their texts (B, T)."""
    places = torch.arange(segments.shape[1]).expand_as(segments)
    begins = segments.argmax(1, keepdim=True)  # of second texts; 0 where there is none
    return places - begins * segments


def by_kind(batch: Batch, together: Tensor) -> dict[str, Target]:
    """The masked tokens of rows with one text as `mlm`, of those with two (B,) as `tlm`."""
    labels, positions = batch.targets["mlm"].labels, batch.targets["mlm"].predicted
    of_pair = together[positions // batch.mask.shape[1]]
    return {
        name: Target(labels[chosen], chosen.sum().clamp(min=1), positions[chosen])
        for name, chosen in (("mlm", ~of_pair), ("tlm", of_pair))
    }
