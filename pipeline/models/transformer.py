"""The Transformer (Vaswani et al. 2017), saved in Hugging Face's layout of Marian.

Shapes: T positions, D model size.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models.transformer_encoder_decoder import (
    Side,
    TransformerEncoderDecoder,
    architecture,
    check_config,
)
from pipeline.tokenization.base import Tokenizer


class Transformer(TransformerEncoderDecoder):
    """The encoder-decoder of "Attention is all you need", with one embedding for source, target and output (3.4).

    With `norm: post`, the paper's, a folder opens as transformers' `MarianMTModel`, which orders the features of a
    position's vector otherwise than the paper: all sines, then all cosines. With `norm: pre` it is for this package
    alone: transformers has no such class.

    Args:
        layers: blocks of the encoder, and of the decoder unless `decoder_layers` says otherwise.
        norm: `post`, or `pre`, which trains without warm-up and in deep stacks (Xiong et al. 2020).
        activation: `relu` in the paper; `swish` in published Marian models.
    """

    model_type = "transformer"
    hf_model_types = ("marian",)
    may_be_zero = ("decoder_start",)  # the id of a token
    start_token = "pad"

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
        activation: str = "relu",
        scale: bool = True,
        decoder_layers: int | None = None,
        decoder_start: int | None = None,
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
        if size % 2:
            raise UserError(f"size is {size}; a position has as many sines as cosines: it must be even.")
        post = norm == "post"
        self.config = {
            "architectures": ["MarianMTModel" if post else "Transformer"],
            "model_type": "marian" if post else "transformer",
            **self.config,
            "decoder_vocab_size": self.config["vocab_size"],
            "share_encoder_decoder_embeddings": True,
        }
        self.register_buffer("sinusoids", sinusoids(max_length, size), persistent=False)
        nn.init.normal_(self.word_embedding.weight, std=size**-0.5)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
                for matrix in module.weight.split(size) if name.endswith(("qkv", "cross_kv")) else [module.weight]:
                    nn.init.xavier_uniform_(matrix)

    def positions(self, side: Side, places: Tensor) -> Tensor:
        return self.get_buffer("sinusoids")[places]

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Transformer:
        check_config(
            config,
            {
                "activation_function": ("gelu", "gelu_new", "relu", "relu2", "swish", "silu"),
                "tie_word_embeddings": (True,),
                "share_encoder_decoder_embeddings": (True,),
                "decoder_vocab_size": (config["vocab_size"], None),
            },
        )
        activation = config.get("activation_function", "gelu")
        return cls(
            tokenizer,
            **architecture(config),
            norm="pre" if config["model_type"] == "transformer" else "post",
            activation="swish" if activation == "silu" else activation,
            scale=config.get("scale_embedding", False),
            decoder_start=config.get("decoder_start_token_id"),
        )


def sinusoids(length: int, size: int) -> Tensor:
    """(T, D): all sines, then all cosines, of wavelengths from 2 pi to 20,000 pi (3.5)."""
    rates = 10_000 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1).float()
