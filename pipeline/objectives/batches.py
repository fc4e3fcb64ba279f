"""Rows of a token store -> batches of tensors, one file's worth for each way of pretraining.

A batch is a pure function of (store, seed, step): masks, pairs and order come from generators seeded by
these, never from global state or from the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from pipeline.data.rows import PackedBlocks, SentenceWindows, WordBlocks, shuffled
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.bert import Bert
from pipeline.models.elmo import UNKNOWN, Elmo, collate_words, output_class
from pipeline.models.gpt import Gpt
from pipeline.models.inputs import Batch
from pipeline.models.layers.char_cnn import BEGIN, END
from pipeline.objectives.masking import Pair, mask_tokens, pair_count, sentence_pairs, swapped_pairs
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import MAX_CHARACTERS

PADDING_MULTIPLE = 8  # rows are padded to a multiple of this: matrix kernels like round sizes


class BatchMaker(Protocol):
    """What a way of pretraining says about its batches; its `family`, if it has one, is the encoder they are for."""

    @property
    def encoder_options(self) -> dict[str, Any]:
        """What the encoder must know: arguments of its class."""

    @property
    def consecutive(self) -> bool:
        """Whether row b of a step goes on where row b of the step before ended; otherwise rows are shuffled."""

    def check(self, store: TokenStore, name: str) -> None:
        """Raises UserError when the corpus does not suffice."""

    def windows(self, store: TokenStore, tokenizer: Tokenizer, length: int, seed: int) -> Any:
        """The rows of one epoch, in a form of the maker's own."""

    def count(self, windows: Any) -> int:
        """How many rows an epoch has."""

    def floors(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        """Nats per prediction of guessing evenly, and of guessing by frequency alone."""

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        """Share of the text that the model knows only as unknown."""

    def predictions_per_byte(self, windows: Any) -> float:
        """Predictions that the whole text asks for, per UTF-8 byte of the raw text."""

    def make(
        self, windows: Any, rows: np.ndarray, tokenizer: Tokenizer, *, seed: int, rng: np.random.Generator
    ) -> Batch:
        """Rows -> one batch, with `total/NAME` for each loss: the number of its predictions in the batch."""

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """One of `parts` equal shares of a batch, totals kept."""


@dataclass
class MaskedPairs:
    """Batches of BERT: masked LM, and pairs of texts to tell apart.

    Args:
        mask_rate: share of tokens to predict.
        whole_word: mask all pieces of a word together.
        next_sentence: `nsp` (Devlin et al. 2018), `sop` (sentence order, Lan et al. 2019) or `off`.
    """

    mask_rate: float
    whole_word: bool
    next_sentence: Literal["nsp", "sop", "off"]

    family = Bert

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1:
            raise UserError(f"batches.mask_rate must lie between 0 and 1, not {self.mask_rate}.")

    @property
    def encoder_options(self) -> dict[str, Any]:
        return {"next_sentence": self.next_sentence != "off"}

    def check(self, store: TokenStore, name: str) -> None:
        documents = store.meta["documents"]
        if self.next_sentence == "nsp" and documents < 2:
            raise UserError(
                f"Next-sentence prediction needs at least 2 documents, but the {name} corpus has {documents}; separate "
                "documents by a blank line, or set data.batches.init_args.next_sentence to off."
            )

    consecutive = False

    @property
    def specials(self) -> int:
        return 2 if self.next_sentence == "off" else 3

    def windows(self, store: TokenStore, tokenizer: Tokenizer, length: int, seed: int) -> SentenceWindows:
        return SentenceWindows(store, length - self.specials, phase=seed)

    def count(self, windows: SentenceWindows) -> int:
        return max(1, pair_count(windows)) if self.next_sentence == "nsp" else len(windows)

    def floors(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        return token_floors(store, tokenizer)

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        return unknown_tokens(store)

    def predictions_per_byte(self, windows: SentenceWindows) -> float:
        return windows.store.meta["tokens"] / windows.store.raw_bytes

    def make(
        self, windows: SentenceWindows, rows: np.ndarray, tokenizer: Tokenizer, *, seed: int, rng: np.random.Generator
    ) -> Batch:
        if self.next_sentence == "off":
            _, begins, ends = windows.bounds(rows)
            texts = [windows.store.tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
            pairs = [Pair(text[: windows.length], text[:0], 0, (0, 0)) for text in texts]
        else:
            pairer = sentence_pairs if self.next_sentence == "nsp" else swapped_pairs
            pairs = pairer(windows, rows, limit=windows.length, seed=seed, rng=rng)
        ids, segments, mask = _join(pairs, tokenizer, most=windows.length + self.specials)
        continues = tokenizer.continues_word if self.whole_word else None
        masked = mask_tokens(
            ids,
            mask & ~np.isin(ids, tokenizer.special_ids),
            mask.sum(1),
            rng,
            rate=self.mask_rate,
            mask_id=tokenizer.id("mask"),
            replacements=tokenizer.ordinary_ids,
            continues_word=continues,
        )
        batch = {
            "input_ids": torch.from_numpy(masked.ids),
            "token_type_ids": torch.from_numpy(segments),
            "mask": torch.from_numpy(mask),
            "positions": torch.from_numpy(masked.positions),
            "labels": torch.from_numpy(masked.labels),
            "total/mlm": torch.tensor(max(1, len(masked.positions))),  # a divisor, also where none is masked
        }
        if self.next_sentence != "off":
            batch["pair_labels"] = torch.tensor([pair.label for pair in pairs])
            batch["total/nsp"] = torch.tensor(len(pairs))
        return batch

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        rows = np.array_split(np.arange(len(batch["input_ids"])), parts)[index]
        low, high = int(rows[0]) if len(rows) else 0, int(rows[-1]) + 1 if len(rows) else 0
        width = batch["input_ids"].shape[1]
        inside = (batch["positions"] >= low * width) & (batch["positions"] < high * width)
        result = {name: value for name, value in batch.items() if name.startswith("total/")}
        for name in ("input_ids", "token_type_ids", "mask", "pair_labels", "rows"):
            if name in batch:
                result[name] = batch[name][low:high]
        positions = batch["positions"][inside] - low * width
        return trim({**result, "positions": positions, "labels": batch["labels"][inside]})


@dataclass
class CausalBlocks:
    """Batches of GPT: the corpus as one stream of documents, cut into blocks of the same length.

    Args:
        packing: `concat` (a block is one text, whatever documents it holds) or `document` (attention and
            positions do not cross the boundaries of documents, as if each were a row of its own).
    """

    packing: Literal["concat", "document"]

    family = Gpt
    consecutive = False

    @property
    def encoder_options(self) -> dict[str, Any]:
        return {}

    def check(self, store: TokenStore, name: str) -> None:
        pass  # any text will do

    def windows(self, store: TokenStore, tokenizer: Tokenizer, length: int, seed: int) -> PackedBlocks:
        return PackedBlocks(store, length, boundary=tokenizer.id("eos"), phase=seed)

    def count(self, windows: PackedBlocks) -> int:
        return len(windows)

    def floors(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        return token_floors(store, tokenizer)

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        return unknown_tokens(store)

    def predictions_per_byte(self, windows: PackedBlocks) -> float:
        return windows.predictions_per_byte

    def make(
        self, windows: PackedBlocks, rows: np.ndarray, tokenizer: Tokenizer, *, seed: int, rng: np.random.Generator
    ) -> Batch:
        ids, documents = windows(rows)
        mask = documents[:, :-1] >= 0
        labels = np.where((documents[:, 1:] >= 0) & mask, ids[:, 1:], -1)
        batch = {
            "input_ids": torch.from_numpy(ids[:, :-1].copy()),
            "mask": torch.from_numpy(mask),
            "labels": torch.from_numpy(labels),
            "total/lm": torch.tensor((labels >= 0).sum()),
        }
        if self.packing == "document":
            batch["documents"] = torch.from_numpy(documents[:, :-1].copy())
        return batch

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        return rows_of(batch, index, parts)


@dataclass
class WordRows:
    """Batches of ELMo: the corpus as one stream of words, each asked from both sides.

    Args:
        carry: rows go on where those of the step before ended, and so does the forward state of the encoder.
            Not the backward one: it has read the text before, which it is asked for.
    """

    carry: bool

    family = Elmo

    @property
    def consecutive(self) -> bool:
        return self.carry

    @property
    def encoder_options(self) -> dict[str, Any]:
        return {"max_characters": MAX_CHARACTERS}

    def check(self, store: TokenStore, name: str) -> None:
        pass  # any text will do

    def windows(self, store: TokenStore, tokenizer: Tokenizer, length: int, seed: int) -> WordBlocks:
        return WordBlocks(store, length, begin=BEGIN, end=END, phase=seed)

    def count(self, windows: WordBlocks) -> int:
        return len(windows)

    def floors(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        counts = self._counts(store, tokenizer, 8000)
        p = counts[counts > 0] / max(1, counts.sum())
        return math.log(len(counts)), float(-(p * np.log(p)).sum())

    def unknown(self, store: TokenStore, tokenizer: Tokenizer) -> float:
        counts = self._counts(store, tokenizer, 2000)
        return float(counts[UNKNOWN] / max(1, counts.sum()))

    def _counts(self, store: TokenStore, tokenizer: Tokenizer, rows: int) -> np.ndarray:
        """How often each class is a prediction, in so many rows of 128 words spread over the corpus."""
        blocks, counts = self.windows(store, tokenizer, 128, 0), np.zeros(len(tokenizer.outputs) + 3)
        for row in blocks(np.unique(np.linspace(0, len(blocks) - 1, rows).astype(np.int64))):
            for word in row[1:-1]:
                counts[output_class(word, tokenizer.outputs)] += 1
        return counts

    def predictions_per_byte(self, windows: WordBlocks) -> float:
        return windows.predictions_per_byte

    def make(
        self, windows: WordBlocks, rows: np.ndarray, tokenizer: Tokenizer, *, seed: int, rng: np.random.Generator
    ) -> Batch:
        """Besides the encoder's input: `next` and `previous` (B, T), classes asked of both directions, -1 for none.

        `spelling/next` and `spelling/previous` are the nats of spelling the unknown ones of them.
        """
        around = windows(rows)
        inner = [row[1:-1] for row in around]
        batch = collate_words(inner, tokenizer.outputs, max_characters=MAX_CHARACTERS)
        for name, shift in (("next", 2), ("previous", 0)):
            labels, nats = np.full(batch["mask"].shape, -1), 0.0
            for number, row in enumerate(around):
                asked = row[shift : shift + len(inner[number])]
                classes = [output_class(word, tokenizer.outputs) for word in asked]
                labels[number, : len(classes)] = classes
                nats += sum(
                    tokenizer.spelling_nats[list(word)].sum() + tokenizer.spelling_nats[256]
                    for word, index in zip(asked, classes, strict=True)
                    if index == UNKNOWN
                )
            batch[name] = torch.from_numpy(labels)
            batch[f"spelling/{name}"] = torch.full((len(rows),), nats / len(rows), dtype=torch.float64)
        if self.carry:
            batch["carry"] = torch.tensor(True)
        batch["total/forward"] = (batch["next"] >= 0).sum()
        batch["total/backward"] = (batch["previous"] >= 0).sum()
        return batch

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        return rows_of(batch, index, parts)


def rows_of(batch: Batch, index: int, parts: int) -> Batch:
    """One of `parts` equal shares of the rows; what does not belong to a row is kept."""
    chosen = np.array_split(np.arange(len(batch["mask"])), parts)[index]
    rows = slice(int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else slice(0, 0)
    return {name: value if shared(name) else value[rows] for name, value in batch.items()}


def shared(name: str) -> bool:
    """Whether an entry of a batch belongs to the whole of it, not to its rows."""
    return name.startswith("total/") or name.endswith("characters") or name == "carry"


def unknown_tokens(store: TokenStore) -> float:
    return store.meta["unknown"] / store.meta["tokens"]


def token_floors(store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
    """Where each token of the store is a prediction: ln V and the unigram entropy."""
    return math.log(len(tokenizer)), store.unigram_entropy(len(tokenizer))


def _join(pairs: list[Pair], tokenizer: Tokenizer, *, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] a [SEP] b [SEP], padded: ids, segment ids and mask, each (B, T). Without b: [CLS] a [SEP].

    `most`: the encoder may have no more positions.
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
    """Cuts columns that are padding in every row, and renumbers the flat `positions`."""
    old = batch["mask"].shape[1]
    lengths = batch["mask"].sum(1)
    new = round_up(int(lengths.max())) if len(lengths) else old
    if new >= old:
        return batch
    cut: dict[str, Tensor] = {name: batch[name][:, :new] for name in ("input_ids", "token_type_ids", "mask")}
    return {**batch, **cut, "positions": batch["positions"] // old * new + batch["positions"] % old}


class Steps:
    """Batches by step: epochs follow each other, each in an order and a cutting of its own.

    An epoch ends with its last full batch; a corpus smaller than a batch is one smaller batch.
    """

    def __init__(
        self, maker: BatchMaker, store: TokenStore, tokenizer: Tokenizer, *, length: int, batch_size: int, seed: int
    ) -> None:
        self.maker, self.store, self.tokenizer = maker, store, tokenizer
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self._start(0, 0)

    def _start(self, epoch: int, first_step: int) -> None:
        self.epoch, self.first_step = epoch, first_step
        self.epoch_seed = int(np.random.default_rng((self.seed, epoch)).integers(1 << 31)) if epoch else self.seed
        phase = self.epoch_seed if epoch else 0
        self.windows = self.maker.windows(self.store, self.tokenizer, self.length, phase)
        self.rows = self.maker.count(self.windows)
        self.steps = max(1, self.rows // self.batch_size)

    def __call__(self, step: int) -> Batch:
        if step < self.first_step:
            self._start(0, 0)
        while step >= self.first_step + self.steps:
            self._start(self.epoch + 1, self.first_step + self.steps)
        return self._batch(step)

    def whole(self) -> Iterator[Batch]:
        """The batches of the first epoch, and what is left after the last full one, unless rows go on (`carry`)."""
        self._start(0, 0)
        count = self.steps if self.maker.consecutive else -(-self.rows // self.batch_size)
        return (self._batch(step) for step in range(count))

    def _batch(self, step: int) -> Batch:
        if self.maker.consecutive:
            rows = np.arange(min(self.batch_size, self.rows)) * self.steps + step - self.first_step
        else:
            begin = (step - self.first_step) * self.batch_size
            index = np.arange(begin, min(begin + self.batch_size, self.rows))
            rows = shuffled(index, self.rows, self.epoch_seed)
        rng = np.random.default_rng((self.seed, step))
        batch = self.maker.make(self.windows, rows, self.tokenizer, seed=self.epoch_seed, rng=rng)
        return {**batch, "rows": torch.from_numpy(rows.astype(np.int64))}

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """One of `parts` shares of a step's batch."""
        return self.maker.part(batch, index, parts)
