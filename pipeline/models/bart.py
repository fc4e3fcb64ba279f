"""BART (Lewis et al. 2020) and mBART (Liu et al. 2020), saved in Hugging Face's layout.

Shapes: B batch, T positions, D model size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models.inputs import Inputs, SpecialTokens, padded, rows_of
from pipeline.models.layers.transformer_block import initialize
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.models.transformer_encoder_decoder import (
    Seq2SeqConfig,
    Side,
    TransformerEncoderDecoder,
    architecture,
    check_config,
)
from pipeline.tokenization.base import Tokenizer

OFFSET = 2  # the first rows of Hugging Face's tables of positions, which no position has


class BartConfig(Seq2SeqConfig, total=False):
    """`source_language_id` of an mBART: the token behind each source; ours alone."""

    source_language_id: int


class Bart(TransformerEncoderDecoder):
    """An encoder-decoder that is pretrained by restoring noisy text.

    With `norm: post` it is BART. With `norm: pre` it is mBART, whose texts name their language: its token stands behind
    a source, and begins a target in the decoder.

    For heads, a source goes through the encoder and, shifted by one, through the decoder (3.1 to 3.2): the layers are
    those of both.

    Args:
        norm: `post` or `pre`.
        activation: `gelu` (erf) in the papers.
        decoder_start: the token that begins a target in the decoder: </s>, or of mBART the target's language.
        source_language: of mBART: the token of the source's language; both are by default the tokenizer's first.
    """

    model_type = "bart"
    hf_model_types = ("mbart",)
    may_be_zero = ("decoder_start", "source_language")  # ids of tokens
    learned_positions = True
    start_token = "eos"
    schema = BartConfig
    pretraining_tensors = lm_head_tensors = ("final_logits_bias",)

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        size: int,
        layers: int,
        heads: int,
        inner_size: int,
        max_length: int,
        dropout: float,
        attention_dropout: float,
        norm: Literal["pre", "post"] = "post",
        activation: str = "gelu",
        scale: bool = False,
        decoder_layers: int | None = None,
        decoder_start: int | None = None,
        source_language: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__(
            tokenizer,
            size=size,
            layers=layers,
            decoder_layers=decoder_layers,
            heads=heads,
            inner_size=inner_size,
            max_length=max_length,
            dropout=dropout,
            attention_dropout=attention_dropout,
            norm=norm,
            activation=activation,
            scale=scale,
            decoder_start=decoder_start,
            vocab_size=vocab_size,
        )
        self.pre = norm == "pre"
        self.config = {
            "architectures": ["MBartForConditionalGeneration" if self.pre else "BartForConditionalGeneration"],
            "model_type": "mbart" if self.pre else "bart",
            **self.config,
            "forced_bos_token_id": None,
        }
        if self.names_languages:
            self.special = SpecialTokens(prefix=0, between=1, suffix=2)
            first = next(iter(languages_of(tokenizer).values()))
            given = (source_language, decoder_start)
            self._set_languages(*(first if language is None else language for language in given))
        self.encoder_positions = nn.Embedding(max_length + OFFSET, size)
        self.decoder_positions = nn.Embedding(max_length + OFFSET, size)
        self.encoder_embedding_norm = nn.LayerNorm(size, eps=1e-5)
        self.decoder_embedding_norm = nn.LayerNorm(size, eps=1e-5)
        initialize(self)

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> str:
        if "norm" in config:  # the arguments of a configuration
            return "mbart" if config["norm"] == "pre" else "bart"
        return "mbart" if config.get("model_type") == "mbart" else "bart"

    def positions(self, side: Side, places: Tensor) -> Tensor:
        table = self.encoder_positions if side == "encoder" else self.decoder_positions
        return table(places + OFFSET)

    # ------------------------------------------------------------------ languages

    @property
    def names_languages(self) -> bool:
        return self.pre

    @property
    def language(self) -> str:
        return str(self.tokenizer.backend.id_to_token(self.config["source_language_id"])).strip("<>")

    def set_languages(self, source: str, target: str) -> None:
        if self.names_languages:
            self._set_languages(self.tokenizer.language_id(source), self.tokenizer.language_id(target))

    def _set_languages(self, source: int, target: int) -> None:
        self.config |= {"source_language_id": source, "decoder_start_token_id": target}

    def name_languages(self, batch: Inputs, sources: Tensor, targets: Tensor) -> Inputs:
        ids, decoder_ids = batch["input_ids"].clone(), batch["decoder_input_ids"].clone()
        ids[torch.arange(len(ids)), batch["mask"].sum(1) - 1] = sources
        decoder_ids[:, 0] = targets
        return {**batch, "input_ids": ids, "decoder_input_ids": decoder_ids}

    @property
    def target_prefix(self) -> tuple[int, ...]:
        return () if self.names_languages else (self.tokenizer.id("bos"),)

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """BART: <s> a </s> or <s> a </s> </s> b </s>; mBART: a </s> code or a </s> b </s> code.

        Too long a pair loses tokens from the end of the longer text.
        """
        if not self.names_languages:
            return super().collate(texts)
        end, code = self.tokenizer.id("eos"), self.config["source_language_id"]
        rows = rows_of(texts, begin=[], between=[end], end=[end, code], max_length=self.max_length)
        return padded(rows, pad=self.tokenizer.id("pad"))

    # ------------------------------------------------------------------ layers for heads

    def forward(self, batch: Inputs, state: Any = None) -> Encoded:
        """As transformers' `BartModel` of a source alone: the encoder's layers, then those of the decoder's blocks."""
        encoded, ids = self.read(batch), batch["input_ids"]
        if self.names_languages:  # the language of the source
            first = ids.gather(1, batch["mask"].sum(1, keepdim=True) - 1)
        else:
            first = ids.new_full((len(ids), 1), self.decoder_start)
        written = self._write(torch.cat([first, ids[:, :-1]], 1), self.memory(encoded), None)
        return replace(encoded, layers=[*encoded.layers, *written[1:]])

    def pooled(self, encoded: Encoded) -> Tensor:
        """The decoder's top at the end of the source, which has seen all of it (Lewis et al. 2020, 3.1)."""
        end = encoded.mask.sum(1) - self.special.suffix
        return encoded.layers[-1][torch.arange(len(end), device=end.device), end]

    @property
    def num_layers(self) -> int:
        return self.num_read + len(self.decoder_blocks)

    # ------------------------------------------------------------------ Hugging Face's layout

    def save_as(self, folder: Path, config: dict[str, Any], state: dict[str, Tensor], *, card: str | None) -> None:
        """As the base's; the tokenizer of an mBART writes the language of its sources."""
        super().save_as(folder, config, state, card=card)
        if self.names_languages:
            end, code = self.tokenizer.id("eos"), self.config["source_language_id"]
            self.tokenizer.save_with_ends(folder, begin=[], between=[end], end=[end, code])

    def import_state(self, state: Mapping[str, Tensor]) -> LoadReport:
        """As the base's; a folder of transformers' `BartModel` has no output, which is the embedding without a bias."""
        if not any(name.startswith(("model.", "final_logits_bias")) for name in state):
            state = {**state, "final_logits_bias": torch.zeros(1, self.config["vocab_size"])}
        return super().import_state(state)

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Bart:
        pre = config["model_type"] == "mbart"
        check_config(
            config,
            {
                "activation_function": ("gelu", "gelu_new", "relu", "relu2", "swish"),
                "tie_word_embeddings": (True,),
                "normalize_before": (pre,),
                "normalize_embedding": (True,),
                "add_final_layer_norm": (pre,),
                "static_position_embeddings": (False,),
            },
        )
        return cls(
            tokenizer,
            **architecture(config),
            norm="pre" if pre else "post",
            activation=config.get("activation_function", "gelu"),
            scale=config.get("scale_embedding", False),
            decoder_start=config.get("decoder_start_token_id"),
            source_language=config.get("source_language_id"),
        )

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        table = (config["max_position_embeddings"] + OFFSET, config["d_model"])
        names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
        return {**super().sizes(config), **dict.fromkeys(names, table)}


def languages_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens of languages -> their ids.

    Raises:
        UserError: the tokenizer has none.
    """
    if not tokenizer.languages:
        raise UserError(
            "mBART needs a tokenizer with a token for each language: set data.tokenizer.languages, as [en, de]."
        )
    return tokenizer.languages
