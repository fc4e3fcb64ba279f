"""The base of encoder-decoders: a source is read from both sides, a target is written from left to right.

Shapes: B batch, T positions of the source, U positions of the target, D model size, V vocabulary.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoding import eval_mode
from pipeline.models.generation import Search, check_rows, checked_ids, search
from pipeline.models.inputs import Inputs, SpecialTokens, padded, rows_of
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, mean_of
from pipeline.tokenization.base import Tokenizer

REQUIRED = ("bos", "pad", "eos", "mask")


class EncoderDecoder(Encoder):
    """Base of all encoder-decoders (Sutskever et al. 2014, Cho et al. 2014).

    What an encoder does (`encode`, layers for heads) is about the source. A batch of training has also
    `decoder_input_ids` (B, U), padded on the right: `decoder_start` and the target without its end; `labels` (B, U) are
    the target and its end, -1 on padding. The decoder sees no later position, so that it needs no mask.

    `offers` may have `alignment`, see there.
    """

    scoring = "seq2seq"
    context = ("full",)
    special = SpecialTokens(prefix=1, between=2, suffix=1)

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """<s> a </s> or <s> a </s> </s> b </s> (Liu et al. 2019); pairs lose tokens at the end of the longer text."""
        begin, end = self.tokenizer.id("bos"), self.tokenizer.id("eos")
        rows = rows_of(texts, begin=[begin], between=[end, end], end=[end], max_length=self.max_length)
        return padded(rows, pad=self.tokenizer.id("pad"))

    @property
    def decoder_start(self) -> int:
        """The id with which each target begins in the decoder, and which is not predicted: padding, as in T5."""
        return self.tokenizer.id("pad")

    @property
    def target_prefix(self) -> tuple[int, ...]:
        """Further tokens in front of each target, which are predicted (BART: <s>)."""
        return ()

    # ------------------------------------------------------------------ languages

    @property
    def names_languages(self) -> bool:
        """Whether a text says its language by a token, so that `set_languages` and `name_languages` have an effect."""
        return False

    def set_languages(self, source: str, target: str) -> None:
        """The languages of texts from now on, as en and de.

        Raises:
            UserError: the tokenizer has no token for one of them.
        """

    @property
    def language(self) -> str:
        """The language that sources are read in, where they say it by a token."""
        raise NotImplementedError

    @contextlib.contextmanager
    def in_language(self, language: str | None) -> Iterator[None]:
        """Inside, sources and targets are in one language; None: in those of before, which it has again afterwards."""
        before = dict(self.config)
        try:
            if language is not None:
                self.set_languages(language, language)
            yield
        finally:
            self.config |= before

    def name_languages(self, batch: Inputs, sources: Tensor, targets: Tensor) -> Inputs:
        """A batch with sources and targets, in the languages of each row: ids of their tokens (B,)."""
        return batch

    # ------------------------------------------------------------------ reading and writing

    @abstractmethod
    def read(self, batch: Inputs) -> Encoded:
        """The encoder: `input_ids`, `mask` (B, T) of sources -> layers from the embeddings to its top."""

    def forward(self, batch: Inputs, state: Any = None) -> Encoded:
        """The layers of the source, for heads: those of `read`, unless the model overrides this."""
        return self.read(batch)

    @abstractmethod
    def begin(self, encoded: Encoded) -> Any:
        """The decoder's state before its first token: it holds what `read` returned, as tensors whose first dimension
        are the rows, in lists or dicts, or in what has a method `select` (see `generation.select`)."""

    @abstractmethod
    def decode(self, ids: Tensor, state: Any) -> Tensor:
        """The decoder: ids (B, U) that follow those of the state -> hidden (B, U, D); hidden u predicts what follows
        ids u. The state takes the ids in, in place."""

    def teacher_forced(self, batch: Inputs, encoded: Encoded | None = None) -> Tensor:
        """`decoder_input_ids` (B, U) in one pass, for training -> hidden (B, U, D).

        Args:
            encoded: what `read` returned for the batch; None: it is read.
        """
        return self.decode(batch["decoder_input_ids"], self.begin(encoded or self.read(batch)))

    def log_probs(self, batch: Inputs, targets: Tensor | None = None, encoded: Encoded | None = None) -> Tensor:
        """(B, U) nats of each token of the target, given the source and those before it; 0 on padding.

        Args:
            targets: (B, U), -1 on padding; None: `labels` of the batch.
            encoded: what `read` returned for the batch; None: it is read.
        """
        targets = batch["labels"] if targets is None else targets
        predicted = targets >= 0
        hidden = self.teacher_forced(batch, encoded)[predicted]
        scores = hidden.new_zeros(targets.shape, dtype=torch.float32)
        scores[predicted] = self.token_log_probs(hidden, targets[predicted])
        return scores

    def alignment(self, batch: Inputs) -> Tensor:
        """(B, U, T): how much attention each position of `decoder_input_ids` pays to each of the source; of models
        that offer `alignment`."""
        raise NotImplementedError

    @abstractmethod
    def token_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
        """As the base's.

        Args:
            smoothing: share of the probability that is spread over all tokens.
        """

    # ------------------------------------------------------------------ tokens in, tokens out

    def shifted(self, labels: Tensor) -> Tensor:
        """`decoder_input_ids` of labels (B, U)."""
        start = labels.new_full((len(labels), 1), self.decoder_start)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] < 0, self.tokenizer.id("pad"))], 1)

    def target_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts to be written -> token ids; `</s>` in one is four characters, and ends nothing."""
        return self.tokenizer.encode_plain(texts)

    def collate_targets(self, targets: Sequence[Sequence[int]]) -> Inputs:
        """Token ids of targets -> `decoder_input_ids` and `labels` (B, U); too long a target loses its end."""
        end = self.tokenizer.id("eos")
        rows = [[*self.target_prefix, *target, end][: self.max_length] for target in targets]
        labels = padded(rows, pad=-1)["input_ids"]
        return {"decoder_input_ids": self.shifted(labels), "labels": labels}

    @torch.no_grad()
    def write(
        self, batch: Inputs, how: Search, encoded: Encoded | None = None, most: Sequence[int] | None = None
    ) -> list[list[int]]:
        """The targets that the model gives to the sources of a batch, as token ids without special ones.

        Args:
            encoded: what `read` returned for the batch; None: it is read.
            most: new tokens of each source; None: `how.tokens` of all.
        """

        def step(ids: Tensor, new: int, state: Any) -> tuple[Tensor, Any]:
            hidden = self.decode(ids[:, -new:], state)
            return self.logits(hidden[:, -1]), state

        with eval_mode(self):
            state = self.begin(encoded or self.read(batch))
            check_rows(state, len(batch["input_ids"]))
            starts = batch["input_ids"].new_full((len(batch["input_ids"]), 1), self.decoder_start)
            limits = [min(limit, self.max_length) for limit in most or [how.tokens] * len(starts)]
            rows = search(step, state, starts, how, end=self.tokenizer.id("eos"), most=limits)
        return [self.without_special(row) for row in rows]

    def without_special(self, ids: Sequence[int]) -> list[int]:
        """Token ids without those of special tokens and languages."""
        special = {*self.tokenizer.special_ids, *self.tokenizer.languages.values()}
        return [token for token in ids if token not in special]

    def shown(self, ids: Sequence[int]) -> str:
        """What `generate` wrote, as text with the sentinels that it has."""
        return self.tokenizer.backend.decode(list(ids), skip_special_tokens=False)

    def generate(self, prompt: Sequence[int], **how: Any) -> list[int]:
        """The target of one source, both as ids without special ones; see `generation.Search`.

        Raises:
            UserError: ids that are not the model's, or no weights of an output.
        """
        self.check_lm()
        batch = self.on_device(self.collate([checked_ids(self, prompt)]))
        return self.write(batch, Search(**how))[0]

    def encode(self, texts: Any, *, logits: bool = False, **options: Any) -> Encoded:
        """As the base's; of a source there are no logits.

        Raises:
            UserError: `logits`.
        """
        if logits:
            raise UserError(
                f"A {self.model_type} gives the probabilities of a target, none of the tokens of its source: take "
                "log_probs, or pipeline.prompting.log_likelihoods."
            )
        return super().encode(texts, **options)

    def pooled(self, encoded: Encoded) -> Tensor:
        """The mean of the encoder's top over a text: pretraining trains no token to stand for the whole."""
        return mean_of(encoded.layers[-1], encoded.mask)


def check_seq2seq(tokenizer: Tokenizer, model: str) -> None:
    """Raises UserError for a tokenizer without the special tokens of encoder-decoders."""
    if missing := [role for role in REQUIRED if role not in tokenizer.special]:
        raise UserError(
            f"{model} needs a tokenizer with a {missing[0]} token: set data.tokenizer.scheme to bpe-seq2seq, not "
            f"{tokenizer.scheme}."
        )
    if tokenizer.id("pad") == tokenizer.id("eos"):
        raise UserError(
            f"{model} needs a tokenizer with different tokens for padding and the end of a text; this one has "
            f"{tokenizer.special['pad']} for both: set data.tokenizer.scheme to bpe-seq2seq, not {tokenizer.scheme}."
        )


def set_language(encoder: Encoder, language: str | None) -> str | None:
    """Makes an encoder read the texts of a task in their language, where texts say it by a token.

    Args:
        language: None: the task does not name it.

    Returns:
        A note where the encoder has several languages and reads all texts in one of them.

    Raises:
        UserError: the encoder has no token for the language.
    """
    if not isinstance(encoder, EncoderDecoder) or not encoder.names_languages:
        return None
    if language is not None:
        encoder.set_languages(language, language)
        return None
    known = encoder.tokenizer.language_names
    if len(known) == 1:
        return None
    return (
        f"Note: texts are read as {encoder.language}, of {', '.join(known)}; another is named by `language` in the "
        "YAML file of a task, or --language of try."
    )
