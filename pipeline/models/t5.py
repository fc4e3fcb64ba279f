"""T5 (Raffel et al. 2020, https://arxiv.org/abs/1910.10683), saved in Hugging Face's layout.

Against the Transformer of 2017 it has positions as a bias of attention, norms without means before each part, and no
biases of matrices.

Shapes: B batch, T positions of the source, U positions of the target, D model size, V vocabulary, H heads, d size of a
head.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.encoder_decoder import EncoderDecoder, check_seq2seq
from pipeline.models.folder import Rate, Size, check_supported
from pipeline.models.inputs import Inputs, SpecialTokens, padded, rows_of
from pipeline.models.layers.attention import attention, check_heads, padding_bias
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues
from pipeline.models.layers.memory import Memory
from pipeline.models.layers.recomputable import Recomputable
from pipeline.models.layers.transformer_block import self_attention
from pipeline.models.losses import Loss, linear_cross_entropy
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Tokenizer

EPS = 1e-6
State = tuple[Memory, KeyValues]


class T5Config(TypedDict):
    """The keys of Hugging Face's `config.json` that are read; `n_positions` is of older files."""

    vocab_size: Size
    d_model: Size
    d_kv: Size
    d_ff: Size
    num_layers: Size
    num_decoder_layers: NotRequired[Size | None]
    num_heads: Size
    n_positions: NotRequired[Size]
    relative_attention_num_buckets: NotRequired[Size]
    relative_attention_max_distance: NotRequired[Size]
    dropout_rate: NotRequired[Rate]


class T5(EncoderDecoder):
    """An encoder-decoder with relative positions; embedding and output matrix are one.

    Args:
        tokenizer: its length is V.
        size: D, width of the token vectors and of all layers.
        layers: blocks of the encoder, and of the decoder unless `decoder_layers` says otherwise.
        heads: H.
        inner_size: width of the feed-forward networks.
        max_length: longest source, and longest target, in tokens. No weights depend on it.
        dropout: rate on embeddings, attention weights, inside feed-forward networks and on the output of each part.
        head_size: d; None: D / H.
        buckets, max_distance: distances of positions fall into so many buckets, those from `max_distance` on into one.
        vocab_size: rows of the embedding, when there are more than the tokenizer needs.
    """

    model_type = "t5"
    special = SpecialTokens(prefix=0, between=1, suffix=1)
    schema = T5Config
    pretraining_tensors = lm_head_tensors = ("decoder.",)

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
        decoder_layers: int | None = None,
        head_size: int | None = None,
        buckets: int = 32,
        max_distance: int = 128,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        check_seq2seq(tokenizer, "T5")
        if head_size is None:
            check_heads(size, heads)
        if buckets < 4 or max_distance <= buckets // 2:
            raise UserError(
                f"T5 needs at least 4 buckets, and a max_distance above half of them, not {buckets} and {max_distance}."
            )
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        width = size // heads if head_size is None else head_size
        self.config = {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "vocab_size": vocab_size or len(tokenizer),
            "d_model": size,
            "d_kv": width,
            "d_ff": inner_size,
            "num_layers": layers,
            "num_decoder_layers": layers if decoder_layers is None else decoder_layers,
            "num_heads": heads,
            "n_positions": max_length,
            "relative_attention_num_buckets": buckets,
            "relative_attention_max_distance": max_distance,
            "dropout_rate": dropout,
            "layer_norm_epsilon": EPS,
            "feed_forward_proj": "relu",
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "tie_word_embeddings": True,
            "pad_token_id": tokenizer.id("pad"),
            "eos_token_id": tokenizer.id("eos"),
            "decoder_start_token_id": tokenizer.id("pad"),
        }
        self.shared = nn.Embedding(self.config["vocab_size"], size)
        stack = partial(
            Stack,
            size=size,
            heads=heads,
            width=width,
            inner_size=inner_size,
            dropout=dropout,
            buckets=buckets,
            max_distance=max_distance,
        )
        self.encoder = stack(layers=layers, decoder=False)
        self.decoder = stack(layers=self.config["num_decoder_layers"], decoder=True)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.shared.weight, std=0.5)  # 1 in the paper: a fresh model would not guess evenly

    # ------------------------------------------------------------------ reading and writing

    def read(self, batch: Inputs) -> Encoded:
        ids, mask = batch["input_ids"], batch["mask"]
        bias, padding = self.encoder.position_bias(0, ids.shape[1]), padding_bias(mask)
        bias = bias if padding is None else bias + padding
        layers = self.encoder(self.dropout(self.embed(batch)), bias)
        return Encoded(layers=layers, mask=mask, input_ids=ids)

    def memory(self, encoded: Encoded) -> Memory:
        top, rows = encoded.layers[-1], torch.arange(len(encoded.mask), device=encoded.mask.device)
        keys_values = [cast(T5Block, block).cross_part().keys_values(top) for block in self.decoder.block]
        return Memory(keys_values, padding_bias(encoded.mask), rows)

    def begin(self, encoded: Encoded) -> State:
        return self.memory(encoded).contiguous(), KeyValues(len(self.decoder.block))

    def decode(self, ids: Tensor, state: State) -> Tensor:
        memory, past = state
        bias = past.advance(ids, self.decoder.position_bias(past.length, ids.shape[1]))
        return self.decoder(self.dropout(self.embed({"input_ids": ids})), bias, memory, past)[-1]

    def teacher_forced(self, batch: Inputs, encoded: Encoded | None = None) -> Tensor:
        """As the base's, without caches."""
        ids = batch["decoder_input_ids"]
        bias, memory = self.decoder.position_bias(0, ids.shape[1]), self.memory(encoded or self.read(batch))
        return self.decoder(self.dropout(self.embed({"input_ids": ids})), bias, memory)[-1]

    # ------------------------------------------------------------------ probabilities

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(hidden * self.size**-0.5, self.shared.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Loss:
        return linear_cross_entropy(hidden * self.size**-0.5, self.shared.weight, labels, smoothing=smoothing)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.shared

    # ------------------------------------------------------------------ layers

    @property
    def num_layers(self) -> int:
        return 1 + len(self.encoder.block)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        """Of the encoder's blocks, then those of the decoder's: it is on top."""
        tables = [
            p for stack in (self.encoder, self.decoder) for p in stack.positions.relative_attention_bias.parameters()
        ]
        groups = [[*self.shared.parameters(), *tables]]
        for stack in (self.encoder, self.decoder):
            groups += [
                [p for p in block.parameters() if all(p is not table for table in tables)] for block in stack.block
            ]
            groups[-1] += stack.final_layer_norm.parameters()
        return groups

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """a </s> or a </s> b </s>; too long a pair loses tokens from the end of the longer text."""
        end = [self.tokenizer.id("eos")]
        rows = rows_of(texts, begin=[], between=end, end=end, max_length=self.max_length)
        return padded(rows, pad=self.tokenizer.id("pad"))

    # ------------------------------------------------------------------ Hugging Face's layout

    @property
    def in_transformers(self) -> bool:
        return True

    def save_as(self, folder: Path, config: dict[str, Any], state: dict[str, Tensor], *, card: str | None) -> None:
        super().save_as(folder, config, state, card=card)
        end = [self.tokenizer.id("eos")]
        self.tokenizer.save_with_ends(folder, begin=[], between=end, end=end)

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> T5:
        allowed = {
            "feed_forward_proj": ("relu",),
            "dense_act_fn": ("relu",),
            "layer_norm_epsilon": (EPS,),
            "tie_word_embeddings": (True,),
            "scale_decoder_outputs": (True, None),  # what transformers makes of embeddings that are not tied
            "decoder_start_token_id": (tokenizer.id("pad"),),
        }
        check_supported(config, allowed)
        return cls(
            tokenizer,
            size=config["d_model"],
            layers=config["num_layers"],
            heads=config["num_heads"],
            inner_size=config["d_ff"],
            max_length=config.get("n_positions", 512),
            dropout=config.get("dropout_rate", 0.1),
            decoder_layers=config.get("num_decoder_layers"),
            head_size=config["d_kv"],
            buckets=config.get("relative_attention_num_buckets", 32),
            max_distance=config.get("relative_attention_max_distance", 128),
            vocab_size=config["vocab_size"],
        )

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        last, inner = config["num_layers"] - 1, config["num_heads"] * config["d_kv"]
        return {
            "shared.weight": (config["vocab_size"], config["d_model"]),
            f"encoder.block.{last}.layer.0.SelfAttention.q.weight": (inner, config["d_model"]),
            f"encoder.block.{last}.layer.1.DenseReluDense.wi.weight": (config["d_ff"], config["d_model"]),
        }

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """Tied copies of the embedding are left out."""
        if re.fullmatch(r"(encoder|decoder)\.embed_tokens\.weight|lm_head\.weight", name):
            return None
        return super().folder_name(name)


class Stack(nn.Module):
    """The blocks of an encoder or a decoder, and their norm. Names of modules are those of transformers."""

    def __init__(
        self,
        *,
        size: int,
        layers: int,
        heads: int,
        width: int,
        inner_size: int,
        dropout: float,
        buckets: int,
        max_distance: int,
        decoder: bool,
    ) -> None:
        super().__init__()
        self.is_decoder, self.buckets, self.max_distance = decoder, buckets, max_distance
        self.block = nn.ModuleList(
            T5Block(size=size, heads=heads, width=width, inner_size=inner_size, dropout=dropout, decoder=decoder)
            for _ in range(layers)
        )
        self.positions.relative_attention_bias = nn.Embedding(self.buckets, heads)
        nn.init.normal_(self.positions.relative_attention_bias.weight, std=size**-0.5)
        self.final_layer_norm = nn.RMSNorm(size, eps=EPS)
        self.dropout = Dropout(dropout)

    @property
    def positions(self) -> T5Attention:
        """All blocks take the table of the first one."""
        return cast(T5Attention, cast(T5Block, self.block[0]).layer[0].SelfAttention)

    def position_bias(self, seen: int, new: int) -> Tensor:
        """(1, H, U, seen + U): of U new positions to all up to the last one."""
        table = self.positions.relative_attention_bias
        keys = torch.arange(seen + new, device=table.weight.device)
        apart = bucket(keys - keys[seen:, None], self.buckets, self.max_distance, both_sides=not self.is_decoder)
        return table(apart).permute(2, 0, 1)[None].contiguous()

    def forward(
        self, x: Tensor, bias: Tensor | None, memory: Memory | None = None, past: KeyValues | None = None
    ) -> list[Tensor]:
        layers = [x]
        for number, block in enumerate(self.block):
            layers.append(block(layers[-1], bias, memory, past, number))
        layers[-1] = self.dropout(self.final_layer_norm(layers[-1]))
        return layers


class T5Block(Recomputable):
    """Self-attention, in a decoder cross-attention, and a feed-forward network, each after a norm."""

    def __init__(self, *, size: int, heads: int, width: int, inner_size: int, dropout: float, decoder: bool) -> None:
        super().__init__()
        self.is_decoder = decoder
        parts: list[tuple[str, nn.Module]] = [("SelfAttention", T5Attention(size, heads, width, dropout))]
        parts += [("EncDecAttention", T5Attention(size, heads, width, dropout))] if decoder else []
        parts += [("DenseReluDense", T5FeedForward(size, inner_size, dropout))]
        self.layer = nn.ModuleList(T5Part(name, inner, size, dropout) for name, inner in parts)

    def cross_part(self) -> T5Attention:
        return cast(T5Attention, self.layer[1].EncDecAttention)

    def forward(
        self, x: Tensor, bias: Tensor | None, memory: Memory | None, past: KeyValues | None, number: int
    ) -> Tensor:
        """(B, T, D) -> (B, T, D). Block `number` of its stack."""
        return self.run(x, bias, memory, past, number)

    def compute(
        self, x: Tensor, bias: Tensor | None, memory: Memory | None, past: KeyValues | None, number: int
    ) -> Tensor:
        own, last = (cast(Any, self.layer[i]) for i in (0, -1))
        x = x + own.dropout(own.SelfAttention(own.layer_norm(x), bias, past, number, causal=self.is_decoder))
        if memory is not None:
            other = cast(Any, self.layer[1])
            x = x + other.dropout(self.cross_part().attend_memory(other.layer_norm(x), memory, number))
        return x + last.dropout(last.DenseReluDense(last.layer_norm(x)))


class T5Part(nn.Module):
    """A norm, and what it is in front of."""

    def __init__(self, name: str, inner: nn.Module, size: int, dropout: float) -> None:
        super().__init__()
        self.add_module(name, inner)
        self.layer_norm = nn.RMSNorm(size, eps=EPS)
        self.dropout = Dropout(dropout)


class T5Attention(nn.Module):
    """Attention whose scores are not divided by the root of d: the weights start smaller by it."""

    relative_attention_bias: nn.Embedding

    def __init__(self, size: int, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, width**0.5  # undoes what `attention` divides by
        self.q, self.k, self.v = (nn.Linear(size, heads * width, bias=False) for _ in range(3))
        self.o = nn.Linear(heads * width, size, bias=False)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.q.weight, std=(size * width) ** -0.5)
        for matrix in (self.k, self.v):
            nn.init.normal_(matrix.weight, std=size**-0.5)
        nn.init.normal_(self.o.weight, std=(heads * width) ** -0.5)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor | None, past: KeyValues | None, number: int, *, causal: bool) -> Tensor:
        q, k, v = self._heads(self.q(x) * self.scale), self._heads(self.k(x)), self._heads(self.v(x))
        return self.o(self_attention(q, k, v, bias, self.dropout, causal=causal, past=past, layer=number))

    def keys_values(self, source: Tensor) -> tuple[Tensor, Tensor]:
        return self._heads(self.k(source)), self._heads(self.v(source))

    def attend_memory(self, x: Tensor, memory: Memory, number: int) -> Tensor:
        """Rows that read the same source are further queries of it."""
        keys, values = memory.keys_values[number]
        q = self._heads((self.q(x) * self.scale).view(len(keys), -1, self.q.out_features))
        mixed = attention(q, keys, values, memory.bias, self.dropout).transpose(1, 2)
        return self.o(mixed.reshape(*x.shape[:2], self.q.out_features))


class T5FeedForward(nn.Module):
    def __init__(self, size: int, inner_size: int, dropout: float) -> None:
        super().__init__()
        self.wi, self.wo = nn.Linear(size, inner_size, bias=False), nn.Linear(inner_size, size, bias=False)
        self.dropout = Dropout(dropout)
        nn.init.normal_(self.wi.weight, std=size**-0.5)
        nn.init.normal_(self.wo.weight, std=inner_size**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(self.dropout(F.relu(self.wi(x))))


def bucket(apart: Tensor, count: int, farthest: int, *, both_sides: bool) -> Tensor:
    """Key minus query positions (U, N) -> buckets (U, N) from 0 to `count` - 1 (Raffel et al. 2020, 2.1).

    Half of them are for one distance each, half for logarithmically wider ones.
    """
    first = torch.zeros_like(apart)
    if both_sides:
        count //= 2
        first = (apart > 0).long() * count
        apart = apart.abs()
    else:
        apart = (-apart).clamp(min=0)
    exact = count // 2
    wide = (apart.clamp(min=1).float() / exact).log() / math.log(farthest / exact) * (count - exact)
    return first + torch.where(apart < exact, apart, (exact + wide.long()).clamp(max=count - 1))
