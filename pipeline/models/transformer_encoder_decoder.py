"""What encoder-decoders of Transformer blocks share: reading, writing with caches, and Hugging Face's layout.

Shapes: B batch, T positions of the source, U positions of the target, S sources, D model size, V vocabulary, H heads,
d size of a head.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NotRequired, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError, check_choice
from pipeline.models.encoder_decoder import EncoderDecoder, check_seq2seq
from pipeline.models.folder import Rate, Size, check_supported
from pipeline.models.inputs import Inputs
from pipeline.models.layers.attention import check_heads, padding_bias
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues
from pipeline.models.layers.memory import Memory
from pipeline.models.layers.transformer_block import ACTIVATIONS, Block
from pipeline.models.losses import Loss, linear_cross_entropy
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.tokenization.base import Tokenizer

Side = Literal["encoder", "decoder"]
Token = Annotated[int, Field(ge=0)]


class Seq2SeqConfig(TypedDict):
    """The keys of Hugging Face's `config.json` that are read."""

    vocab_size: Size
    d_model: Size
    max_position_embeddings: Size
    encoder_layers: Size
    decoder_layers: Size
    encoder_attention_heads: Size
    decoder_attention_heads: Size
    encoder_ffn_dim: Size
    decoder_ffn_dim: Size
    activation_function: str
    dropout: NotRequired[Rate]
    attention_dropout: NotRequired[Rate]
    scale_embedding: NotRequired[bool]
    decoder_start_token_id: NotRequired[Token]


DecoderState = tuple[Memory, KeyValues]  # of the source, and of the target so far


class TransformerEncoderDecoder(EncoderDecoder):
    """Blocks that read, blocks that write, and one embedding for source, target and output.

    Args:
        tokenizer: its length is V.
        size: D, width of the token vectors and of all layers.
        layers: blocks of the encoder.
        decoder_layers: blocks of the decoder.
        heads: attention heads of a block, each of width D / heads; must divide `size`.
        inner_size: width of the feed-forward network in each block.
        max_length: longest source, and longest target, in tokens, special ones included.
        dropout: rate on embeddings and on the output of each part of a block.
        attention_dropout: rate on the attention weights.
        norm: `post` (after each residual sum) or `pre` (before each part, and once at the end).
        activation: of the feed-forward networks, see `Block`.
        scale: whether token vectors are multiplied by the root of D on their way in (3.4).
        decoder_start: id of the token that begins a target in the decoder; None: that of the class.
        vocab_size: rows of the embedding, when there are more than the tokenizer needs.
    """

    offers = ("alignment",)
    schema = Seq2SeqConfig
    pretraining_tensors: ClassVar[tuple[str, ...]] = ("model.decoder.", "final_logits_bias")
    lm_head_tensors: ClassVar[tuple[str, ...]] = pretraining_tensors
    start_token: ClassVar[str]  # begins a target in the decoder

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        size: int,
        layers: int,
        decoder_layers: int | None,
        heads: int,
        inner_size: int,
        max_length: int,
        dropout: float,
        attention_dropout: float,
        norm: Literal["pre", "post"],
        activation: str,
        scale: bool,
        decoder_start: int | None,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        check_seq2seq(tokenizer, f"A {self.model_type}")
        check_heads(size, heads)
        check_choice("norm", norm, ("pre", "post"))
        check_choice("activation", activation, ACTIVATIONS)
        decoder_layers = layers if decoder_layers is None else decoder_layers
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        self.scale = size**0.5 if scale else 1.0
        self.config = {
            "vocab_size": vocab_size or len(tokenizer),
            "d_model": size,
            "max_position_embeddings": max_length,
            "encoder_layers": layers,
            "decoder_layers": decoder_layers,
            "encoder_attention_heads": heads,
            "decoder_attention_heads": heads,
            "encoder_ffn_dim": inner_size,
            "decoder_ffn_dim": inner_size,
            "activation_function": activation,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation_dropout": 0.0,
            "scale_embedding": scale,
            "is_encoder_decoder": True,
            "tie_word_embeddings": True,
            "bos_token_id": tokenizer.id("bos"),
            "pad_token_id": tokenizer.id("pad"),
            "eos_token_id": tokenizer.id("eos"),
            "forced_eos_token_id": None,
            "decoder_start_token_id": tokenizer.id(self.start_token) if decoder_start is None else decoder_start,
        }
        self.word_embedding = nn.Embedding(self.config["vocab_size"], size)
        self.register_buffer("output_bias", torch.zeros(self.config["vocab_size"]))  # not 0 in published Marian models
        self.biased = False
        block = partial(
            Block,
            size=size,
            heads=heads,
            inner_size=inner_size,
            dropout=dropout,
            attention_dropout=attention_dropout,
            eps=1e-5,
            norm=norm,
            activation=activation,
        )
        self.encoder_blocks = nn.ModuleList(block() for _ in range(layers))
        self.decoder_blocks = nn.ModuleList(block(cross=True) for _ in range(decoder_layers))
        pre = norm == "pre"
        self.encoder_norm = nn.LayerNorm(size, eps=1e-5) if pre else None
        self.decoder_norm = nn.LayerNorm(size, eps=1e-5) if pre else None
        self.encoder_embedding_norm: nn.LayerNorm | None = None
        self.decoder_embedding_norm: nn.LayerNorm | None = None
        self.dropout = Dropout(dropout)

    @abstractmethod
    def positions(self, side: Side, places: Tensor) -> Tensor:
        """Vectors of places (T,) in the encoder or the decoder -> (T, D)."""

    # ------------------------------------------------------------------ reading and writing

    @property
    def decoder_start(self) -> int:
        """The id that `decoder_start_token_id` names: padding as in Marian, </s>, or the language of the target."""
        return self.config["decoder_start_token_id"]

    def read(self, batch: Inputs) -> Encoded:
        ids, mask = batch["input_ids"], batch["mask"]
        x = self._enter("encoder", self.embed(batch), 0)
        layers, bias = [x], padding_bias(mask)
        for block in self.encoder_blocks:
            layers.append(block(layers[-1], bias))
        if self.encoder_norm is not None:
            layers[-1] = self.encoder_norm(layers[-1])
        return Encoded(layers=layers, mask=mask, input_ids=ids)

    def _enter(self, side: Side, vectors: Tensor, seen: int) -> Tensor:
        """Token vectors (B, T, D) that follow `seen` others -> the input of the first block."""
        places = torch.arange(seen, seen + vectors.shape[1], device=vectors.device)
        x = vectors * self.scale + self.positions(side, places)
        norm = self.encoder_embedding_norm if side == "encoder" else self.decoder_embedding_norm
        return self.dropout(x if norm is None else norm(x))

    def memory(self, encoded: Encoded) -> Memory:
        """What the decoder's blocks attend to."""
        top, rows = encoded.layers[self.num_read - 1], torch.arange(len(encoded.mask), device=encoded.mask.device)
        keys_values = [cast(Block, block).keys_values(top) for block in self.decoder_blocks]
        return Memory(keys_values, padding_bias(encoded.mask), rows)

    def begin(self, encoded: Encoded) -> DecoderState:
        return self.memory(encoded).contiguous(), KeyValues(len(self.decoder_blocks))

    def decode(self, ids: Tensor, state: DecoderState) -> Tensor:
        return self._write(ids, *state)[-1]

    def teacher_forced(self, batch: Inputs, encoded: Encoded | None = None) -> Tensor:
        """As the base's, without caches."""
        return self._write(batch["decoder_input_ids"], self.memory(encoded or self.read(batch)), None)[-1]

    def _write(self, ids: Tensor, memory: Memory, past: KeyValues | None) -> list[Tensor]:
        """All layers of the decoder over ids (B, U) that follow those of the past."""
        x = self._enter("decoder", self.embed({"input_ids": ids}), 0 if past is None else past.length)
        bias = None if past is None else past.advance(ids)
        layers = [x]
        for number, block in enumerate(self.decoder_blocks):
            layers.append(block(layers[-1], bias, causal=True, past=past, memory=memory, layer=number))
        if self.decoder_norm is not None:
            layers[-1] = self.decoder_norm(layers[-1])
        return layers

    @torch.no_grad()
    def alignment(self, batch: Inputs) -> Tensor:
        """As the base's: the mean over the heads of the last block but one, which aligns best (Garg et al. 2019)."""
        number = max(0, len(self.decoder_blocks) - 2)
        block, queries = cast(Block, self.decoder_blocks[number]), []
        handle = block.cross_q.register_forward_hook(lambda module, args, output: queries.append(output))
        try:
            memory = self.memory(self.read(batch))
            self._write(batch["decoder_input_ids"], memory, None)
        finally:
            handle.remove()
        keys = memory.keys_values[number][0]
        q = queries[0].unflatten(-1, (block.heads, -1)).transpose(1, 2)
        scores = q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        return (scores if memory.bias is None else scores + memory.bias).softmax(-1).mean(1)

    # ------------------------------------------------------------------ probabilities

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(hidden, self.word_embedding.weight, self._bias)

    def token_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
        return linear_cross_entropy(hidden, self.word_embedding.weight, labels, self._bias, smoothing=smoothing)

    @property
    def _bias(self) -> Tensor | None:
        return self.get_buffer("output_bias") if self.biased else None

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    # ------------------------------------------------------------------ layers

    @property
    def num_read(self) -> int:
        """The number of layers that `read` returns, embeddings included."""
        return 1 + len(self.encoder_blocks)

    @property
    def num_layers(self) -> int:
        return self.num_read

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Of the encoder's blocks, then those of the decoder's: it is on top."""
        groups: list[list[nn.Parameter]] = []
        for blocks, norm in ((self.encoder_blocks, self.encoder_norm), (self.decoder_blocks, self.decoder_norm)):
            groups += [list(block.parameters()) for block in blocks]
            groups[-1] += [] if norm is None else norm.parameters()
        inside = {id(parameter) for group in groups for parameter in group}
        return [[parameter for parameter in self.parameters() if id(parameter) not in inside], *groups]

    # ------------------------------------------------------------------ Hugging Face's layout

    @property
    def in_transformers(self) -> bool:
        return self.config["model_type"] != "transformer"

    def export_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, value in self.state_dict().items():
            theirs = hf_name(name)
            parts = PARTS.get(name.split(".")[-2] if "." in name else "")
            if name == "output_bias":
                state[theirs] = value[None]
            elif parts is None:
                state[theirs] = value
            else:  # one matrix here, several there
                for part, rows in zip(parts, value.chunk(len(parts)), strict=True):
                    state[theirs.replace("_parts_", part)] = rows
        return state

    @torch.no_grad()
    def import_state(self, state: Mapping[str, Tensor]) -> LoadReport:
        report = super().import_state(state)
        self.biased = bool(self.get_buffer("output_bias").any())
        return report

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """Tied copies of the embedding and constants are left out; names in files of a model without its output lack
        the prefix."""
        name = name if name.startswith(("model.", "lm_head.", "final_logits_bias", "head.")) else f"model.{name}"
        if name.endswith("embed_tokens.weight") or name == "lm_head.weight":
            return None
        return name

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        size, inner = config["d_model"], config["encoder_ffn_dim"]
        blocks = {side: f"model.{side}.layers.{config[f'{side}_layers'] - 1}.fc1.weight" for side in SIDES}
        return {
            "model.shared.weight": (config["vocab_size"], size),
            **dict.fromkeys(blocks.values(), (inner, size)),
        }


def check_config(config: Mapping[str, Any], allowed: Mapping[str, tuple[Any, ...]]) -> None:
    """As `check_supported`; raises UserError also where encoder and decoder have other heads or widths."""
    check_supported(config, allowed)
    for key in ("attention_heads", "ffn_dim"):
        both = [config[f"{side}_{key}"] for side in SIDES]
        if both[0] != both[1]:
            raise UserError(
                f"This {config['model_type']} has encoder_{key} = {both[0]} and decoder_{key} = {both[1]} in its "
                "config.json; they must be equal."
            )


def architecture(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model that `config.json` gives, but for its norms."""
    return {
        "size": config["d_model"],
        "layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": config["encoder_attention_heads"],
        "inner_size": config["encoder_ffn_dim"],
        "max_length": config["max_position_embeddings"],
        "dropout": config.get("dropout", 0.1),
        "attention_dropout": config.get("attention_dropout", 0.0),
        "vocab_size": config["vocab_size"],
    }


SIDES = ("encoder", "decoder")
PARTS = {"qkv": ("q_proj", "k_proj", "v_proj"), "cross_kv": ("k_proj", "v_proj")}
_BLOCK = {
    "qkv": "self_attn._parts_",
    "out": "self_attn.out_proj",
    "norm_attention": "self_attn_layer_norm",
    "cross_q": "encoder_attn.q_proj",
    "cross_kv": "encoder_attn._parts_",
    "cross_out": "encoder_attn.out_proj",
    "norm_cross": "encoder_attn_layer_norm",
    "up": "fc1",
    "down": "fc2",
    "norm_feed_forward": "final_layer_norm",
}
_TOP = {"norm": "layer_norm", "embedding_norm": "layernorm_embedding", "positions": "embed_positions"}


def hf_name(name: str) -> str:
    """Our name of a tensor -> Hugging Face's, with `_parts_` for a matrix that is several there."""
    if name == "output_bias":
        return "final_logits_bias"
    if match := re.fullmatch(r"(encoder|decoder)_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        side, index, part, kind = match.groups()
        return f"model.{side}.layers.{index}.{_BLOCK[part]}.{kind}"
    if match := re.fullmatch(r"(encoder|decoder)_(norm|embedding_norm|positions)\.(\w+)", name):
        side, part, kind = match.groups()
        return f"model.{side}.{_TOP[part]}.{kind}"
    assert name == "word_embedding.weight", name
    return "model.shared.weight"
