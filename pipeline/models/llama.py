"""Llama (Touvron et al. 2023), saved in Hugging Face's layout of it: the decoder of most models since then.

Against GPT-2 it has rotary positions, norms without means, gated feed-forward networks, and no biases.

Shapes: B batch, T positions, D model size, H heads, d size of a head, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NotRequired, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.causal import CausalEncoder
from pipeline.models.folder import HeadLayout, Rate, Size, check_supported
from pipeline.models.inputs import Inputs, check_generative, last_positions
from pipeline.models.layers.attention import check_heads, narrowing_bias
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues
from pipeline.models.layers.recomputable import Recomputable
from pipeline.models.layers.transformer_block import STD, initialize, narrow_residual, picked, scattered, self_attention
from pipeline.models.losses import Loss, linear_cross_entropy
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.tokenization.base import Tokenizer

Rotation = tuple[Tensor, Tensor]  # cosines and sines of the angles, (T, d) or (B, 1, T, d) each


class Rope(TypedDict):
    """How positions become angles."""

    rope_type: NotRequired[str]
    type: NotRequired[str]  # in older files
    rope_theta: NotRequired[float]


class LlamaConfig(TypedDict):
    """The keys of Hugging Face's `config.json` that are read."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: NotRequired[Size | None]
    max_position_embeddings: Size
    rms_norm_eps: NotRequired[float]
    rope_theta: NotRequired[float | None]
    rope_parameters: NotRequired[Rope | None]
    rope_scaling: NotRequired[Rope | None]
    tie_word_embeddings: NotRequired[bool]
    dropout: NotRequired[Rate]
    attention_dropout: NotRequired[Rate]


class Llama(CausalEncoder):
    """A causal Transformer with rotary positions (Su et al. 2021).

    Args:
        tokenizer: its length is V.
        size: D, width of the token vectors and of all layers.
        layers: blocks, one on top of the other.
        heads: H, heads of a block's queries, each of width d = D / H; must divide `size`.
        inner_size: width of the gated feed-forward networks. Their three matrices have as many weights as the two of
            a GPT with 4 D where this is 8/3 D.
        max_length: longest text in tokens. No weights depend on it.
        dropout: share of features that training sets to zero, in embeddings and block outputs; the paper has none.
        attention_dropout: share of attention weights that training sets to zero.
        key_value_heads: heads of a block's keys and values; must divide `heads`. Fewer make what is kept of a text
            that is generated smaller (Ainslie et al. 2023). None: as many.
        rope_theta: base of the wavelengths of the rotations, which go from 2 pi to 2 pi theta^(1 - 2/d) positions.
        norm_eps: added to the mean square before its root is taken.
        tied: whether the embedding is the output matrix too, as in the smaller ones of the family.
        vocab_size: rows of the embedding, when there are more than the tokenizer needs.
    """

    model_type = "llama"
    offers = ("packing", "positions", "attend", "top_positions")
    schema = LlamaConfig
    pretraining_tensors = lm_head_tensors = ("lm_head.",)

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
        key_value_heads: int | None = None,
        rope_theta: float = 10_000.0,
        norm_eps: float = 1e-5,
        tied: bool = True,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        check_generative(tokenizer, "Llama")
        shared = heads if key_value_heads is None else key_value_heads
        check_heads(size, heads)
        if size // heads % 2:
            raise UserError(f"Rotary positions need heads of an even size, not {size} / {heads} = {size // heads}.")
        if shared < 1 or heads % shared:
            raise UserError(f"The number of heads ({heads}) must be a multiple of key_value_heads ({shared}).")
        if not 0 < rope_theta < math.inf:
            raise UserError(f"rope_theta is {rope_theta}; it must be above 0.")
        if not 0 < norm_eps < 1:
            raise UserError(f"norm_eps is {norm_eps}; it must be above 0 and below 1.")
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        self.head_size, self.rope_theta = size // heads, rope_theta
        self.config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": vocab_size or len(tokenizer),
            "hidden_size": size,
            "intermediate_size": inner_size,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": shared,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "max_position_embeddings": max_length,
            "initializer_range": STD,
            "rms_norm_eps": norm_eps,
            "rope_theta": rope_theta,  # of transformers 4
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},  # and 5
            "attention_bias": False,
            "mlp_bias": False,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "bos_token_id": tokenizer.id("bos"),
            "eos_token_id": tokenizer.id("eos"),
            "tie_word_embeddings": tied,
        }
        self.word_embedding = nn.Embedding(self.config["vocab_size"], size)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            LlamaBlock(
                size=size,
                heads=heads,
                key_value_heads=shared,
                inner_size=inner_size,
                dropout=dropout,
                attention_dropout=attention_dropout,
                eps=norm_eps,
            )
            for _ in range(layers)
        )
        self.final_norm = nn.RMSNorm(size, eps=norm_eps)
        self.output = None if tied else nn.Linear(size, self.config["vocab_size"], bias=False)
        initialize(self)
        narrow_residual(self.blocks)

    def forward(self, batch: Inputs, state: KeyValues | None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> layers. The last layer is after the final norm, as Hugging Face gives it.

        With `documents` (B, T) in the batch, attention restarts with each document. With `state` the tokens follow
        those that it has seen, and are added to it. `positions` (B, T) replaces those of the order, and `attend`
        (B, T, T) narrows what a token may see. `top_positions` (N,): different positions b T + t of which the top
        layer is asked for, NaN elsewhere.
        """
        ids, mask = batch["input_ids"], batch["mask"]
        seen = 0 if state is None else state.length
        positions = batch.get("positions", torch.arange(seen, seen + ids.shape[1], device=ids.device))
        bias = narrowing_bias(batch, seen)  # positions need not restart with documents: only their distances count
        if state is not None:
            bias = state.advance(ids, bias)
        rotation = self.rotation(positions)
        x = self.dropout(self.embed(batch))
        layers = [x]
        only, top = batch.get("top_positions"), len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            layers.append(block(layers[-1], rotation, bias, state, index, only if index == top else None))
        layers[-1] = scattered(self.final_norm(layers[-1]), only, x)
        return Encoded(layers=layers, mask=mask, input_ids=ids, state=state)

    def rotation(self, positions: Tensor) -> Rotation:
        """Positions (T,) or (B, T) -> cosines and sines of t theta^(-2i/d) for i < d / 2, twice in a row."""
        steps = torch.arange(0, self.head_size, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None].float() * self.rope_theta ** (-steps / self.head_size)
        angles = torch.cat([angles, angles], -1)
        if positions.ndim == 2:
            angles = angles[:, None]
        return angles.cos(), angles.sin()

    @property
    def hf_heads(self) -> dict[str, HeadLayout]:
        """Their sentence head takes one text at a time, since the config names no padding: ours is the end of text,
        which their head would skip. Their head for spans keeps the encoder under another name.
        """
        sentence = HeadLayout("LlamaForSequenceClassification", "score", bias=False, without=("lm_head.",))
        return {
            "sentence": sentence,
            "token": HeadLayout("LlamaForTokenClassification", "score", without=("lm_head.",)),
        }

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(hidden, self._output_matrix)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return linear_cross_entropy(hidden, self._output_matrix, labels)

    @property
    def _output_matrix(self) -> Tensor:
        return self.word_embedding.weight if self.output is None else self.output.weight

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    @property
    def output_embedding(self) -> nn.Parameter | None:
        return None if self.output is None else cast(nn.Parameter, self.output.weight)

    def pooled_positions(self, mask: Tensor) -> Tensor:
        return last_positions(mask)

    @property
    def num_layers(self) -> int:
        return 1 + len(self.blocks)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [list(self.word_embedding.parameters()), *(list(block.parameters()) for block in self.blocks)]
        groups[-1] += list(self.final_norm.parameters())
        return groups

    def new_state(self) -> KeyValues:
        """Keys and values of the blocks: none yet."""
        return KeyValues(len(self.blocks))

    # ------------------------------------------------------------------ Hugging Face's layout

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Llama:
        size, heads = config["hidden_size"], config["num_attention_heads"]
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or rope
        read = {**config, "rope_type": scaling.get("rope_type") or scaling.get("type") or rope.get("rope_type")}
        allowed = {
            "hidden_act": ("silu", None),
            "attention_bias": (False, None),
            "mlp_bias": (False, None),
            "head_dim": (size // heads, None),
            "rope_type": ("default", None),
        }
        check_supported(read, allowed)
        thetas = (scaling.get("rope_theta"), rope.get("rope_theta"), config.get("rope_theta"))
        return cls(
            tokenizer,
            size=size,
            layers=config["num_hidden_layers"],
            heads=heads,
            inner_size=config["intermediate_size"],
            max_length=config["max_position_embeddings"],
            dropout=config.get("dropout", 0.0),
            attention_dropout=config.get("attention_dropout", 0.0),
            key_value_heads=config.get("num_key_value_heads"),
            rope_theta=next((theta for theta in thetas if theta is not None), 10_000.0),
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tied=config.get("tie_word_embeddings", False),
            vocab_size=config["vocab_size"],
        )

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        size, last = config["hidden_size"], config["num_hidden_layers"] - 1
        return {
            "model.embed_tokens.weight": (config["vocab_size"], size),
            f"model.layers.{last}.mlp.gate_proj.weight": (config["intermediate_size"], size),
        }

    def export_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        shared = self.config["num_key_value_heads"] * self.head_size
        parts = {
            "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        }
        rows = {"qkv": [self.size, shared, shared], "gate_up": [self.config["intermediate_size"]] * 2}
        for name, value in self.state_dict().items():
            if match := re.fullmatch(r"blocks\.(\d+)\.(qkv|gate_up)\.weight", name):  # one matrix here
                index, joined = match.groups()
                for part, matrix in zip(parts[joined], value.split(rows[joined]), strict=True):
                    state[f"model.layers.{index}.{part}.weight"] = matrix
            else:
                state[_hf_name(name)] = value
        return state

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """Names in files of `LlamaModel` alone lack the prefix; older files have the constants of the rotations."""
        if name.endswith("rotary_emb.inv_freq"):
            return None
        return f"model.{name}" if name.startswith(("embed_tokens.", "layers.", "norm.")) else name

    @torch.no_grad()
    def import_state(self, state: Mapping[str, Tensor]) -> LoadReport:
        copy = state.get("lm_head.weight") if self.output is None else None  # of the embedding, in some folders
        report = super().import_state({name: value for name, value in state.items() if value is not copy})
        if copy is not None:
            self.check_copy("lm_head.weight", copy)
        return report


class LlamaBlock(Recomputable):
    """Self-attention and a gated feed-forward network, each after a norm (Zhang and Sennrich 2019).

    Args:
        size: D.
        heads, key_value_heads: of the queries, and of the keys and values.
        inner_size: width of the feed-forward network.
        dropout: rate on the output of each part.
        attention_dropout: rate on the attention weights.
        eps: of the norms.
    """

    def __init__(
        self,
        *,
        size: int,
        heads: int,
        key_value_heads: int,
        inner_size: int,
        dropout: float,
        attention_dropout: float,
        eps: float,
    ) -> None:
        super().__init__()
        self.heads, self.key_value_heads = heads, key_value_heads
        self.qkv = nn.Linear(size, (heads + 2 * key_value_heads) * (size // heads), bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.gate_up = nn.Linear(size, 2 * inner_size, bias=False)
        self.down = nn.Linear(inner_size, size, bias=False)
        self.norm_attention = nn.RMSNorm(size, eps=eps)
        self.norm_feed_forward = nn.RMSNorm(size, eps=eps)
        self.dropout = Dropout(dropout)
        self.attention_dropout = Dropout(attention_dropout)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        bias: Tensor | None,
        past: KeyValues | None,
        layer: int,
        only: Tensor | None,
    ) -> Tensor:
        """(B, T, D) -> (B, T, D).

        Args:
            rotation: of the positions, see `Llama.rotation`.
            bias: of attention, see `attention`; the future is hidden without it.
            past: keys and values of the tokens before; those of x are added as those of block `layer`.
            only: (N,) positions b T + t whose output is asked for; the result has these alone, (N, D).
        """
        return self.run(x, rotation, bias, past, layer, only)

    def compute(
        self,
        x: Tensor,
        rotation: Rotation,
        bias: Tensor | None,
        past: KeyValues | None,
        layer: int,
        only: Tensor | None,
    ) -> Tensor:
        mixed = self.attend(self.norm_attention(x), rotation, bias, past, layer)
        x = picked(x, only) + self.dropout(self.out(picked(mixed, only)))
        return x + self.dropout(self.feed_forward(self.norm_feed_forward(x)))

    def attend(self, x: Tensor, rotation: Rotation, bias: Tensor | None, past: KeyValues | None, layer: int) -> Tensor:
        heads = self.qkv(x).unflatten(-1, (self.heads + 2 * self.key_value_heads, -1)).transpose(1, 2)
        turned, v = heads.split([self.heads + self.key_value_heads, self.key_value_heads], 1)
        q, k = rotate(turned, rotation).split([self.heads, self.key_value_heads], 1)
        return self_attention(q, k, v, bias, self.attention_dropout, causal=True, past=past, layer=layer)

    def feed_forward(self, x: Tensor) -> Tensor:
        """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """(B, H, T, d) with features i and i + d / 2 turned by an angle of the position (Su et al. 2021, 3.4.2)."""
    cosines, sines = (part.to(x.dtype) for part in rotation)
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


_TOP = {
    "word_embedding.weight": "model.embed_tokens.weight",
    "final_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "out": "self_attn.o_proj",
    "down": "mlp.down_proj",
    "norm_attention": "input_layernorm",
    "norm_feed_forward": "post_attention_layernorm",
}


def _hf_name(name: str) -> str:
    """Our parameter name -> Hugging Face's."""
    if match := re.fullmatch(r"blocks\.(\d+)\.(\w+)\.weight", name):
        index, part = match.groups()
        return f"model.layers.{index}.{_BLOCK[part]}.weight"
    return _TOP[name]
