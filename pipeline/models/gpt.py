"""GPT (Radford et al. 2018, 2019), saved in Hugging Face's layout of GPT-2 or, with `norm: post`, of the first GPT.

Shapes: B batch, T positions, D model size, V vocabulary.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NotRequired, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError, check_choice
from pipeline.models.causal import CausalEncoder
from pipeline.models.folder import BUFFER, HeadLayout, Rate, Size, check_supported
from pipeline.models.inputs import Inputs, check_generative, last_positions
from pipeline.models.layers.attention import check_heads, narrowing_bias
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues
from pipeline.models.layers.transformer_block import STD, Block, initialize, narrow_residual, scattered
from pipeline.models.losses import Loss, linear_cross_entropy
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Tokenizer


class GptConfig(TypedDict):
    """The keys of Hugging Face's `config.json` that are read."""

    vocab_size: Size
    n_positions: Size
    n_embd: Size
    n_layer: Size
    n_head: Size
    n_inner: NotRequired[Size | None]
    resid_pdrop: NotRequired[Rate]
    attn_pdrop: NotRequired[Rate]
    zero_outputs: NotRequired[bool]


class Gpt(CausalEncoder):
    """A causal Transformer, with the embedding as its output matrix.

    Args:
        tokenizer: its length is V.
        size: D, width of the token vectors and of all layers.
        layers: Transformer blocks, one on top of the other.
        heads: attention heads of a block, each of width D / heads; must divide `size`.
        inner_size: width of the feed-forward network in each block; 4 D in the paper.
        max_length: longest text in tokens, special ones included: as many positions are learned.
        dropout: share of features that training sets to zero, in embeddings and block outputs.
        attention_dropout: share of attention weights that training sets to zero.
        norm: `pre` (GPT-2: norms before each part and one at the end) or `post` (the first GPT).
        vocab_size: rows of the embedding, when there are more than the tokenizer needs.
        activation: of feed-forward networks: `gelu` (of tanh), or with `norm: pre` also `relu2`, the square of a ReLU.
        zero_outputs: whether blocks start without effect, see `Block.zero_outputs`.
    """

    model_type = "gpt"
    hf_model_types = ("gpt2", "openai-gpt")
    offers = ("packing", "positions", "attend", "top_positions")
    learned_positions = True
    schema = GptConfig

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
        norm: Literal["pre", "post"] = "pre",
        vocab_size: int | None = None,
        activation: Literal["gelu", "relu2"] = "gelu",
        zero_outputs: bool = False,
    ) -> None:
        super().__init__()
        check_generative(tokenizer, "GPT")
        check_heads(size, heads)
        check_choice("norm", norm, ("pre", "post"))
        if norm == "post" and inner_size != 4 * size:
            raise UserError(f"norm: post is the first GPT, whose inner_size is 4 times its size, not {inner_size}.")
        if norm == "post" and activation != "gelu":
            raise UserError(f"norm: post is the first GPT, whose activation is gelu, not {activation}.")
        function = {"gelu": "gelu_new"}.get(activation, activation)
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        end = tokenizer.id("eos")
        self.config = {
            "architectures": ["GPT2LMHeadModel" if norm == "pre" else "OpenAIGPTLMHeadModel"],
            "model_type": "gpt2" if norm == "pre" else "openai-gpt",
            "vocab_size": vocab_size or len(tokenizer),
            "n_positions": max_length,
            "n_embd": size,
            "n_layer": layers,
            "n_head": heads,
            "n_inner": inner_size,
            "embd_pdrop": dropout,
            "resid_pdrop": dropout,
            "attn_pdrop": attention_dropout,
            "layer_norm_epsilon": 1e-5,
            "initializer_range": STD,
            "bos_token_id": tokenizer.id("bos"),
            "eos_token_id": end,
            "pad_token_id": end,
            "tie_word_embeddings": True,
            "zero_outputs": zero_outputs,
            **({"activation_function": function} if norm == "pre" else {"afn": "gelu"}),  # gelu there is tanh
        }
        self.word_embedding = nn.Embedding(self.config["vocab_size"], size)
        self.position_embedding = nn.Embedding(max_length, size)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                size=size,
                heads=heads,
                inner_size=inner_size,
                dropout=dropout,
                attention_dropout=attention_dropout,
                eps=1e-5,
                norm=norm,
                activation=function,
            )
            for _ in range(layers)
        )
        self.final_norm = nn.LayerNorm(size, eps=1e-5) if norm == "pre" else None
        initialize(self)
        narrow_residual(self.blocks)
        if zero_outputs:
            for block in self.blocks:
                cast(Block, block).zero_outputs()

    def forward(self, batch: Inputs, state: KeyValues | None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> layers. The last layer is after the final norm, as Hugging Face gives it.

        With `documents` (B, T) in the batch, attention and positions restart with each document. With `state` the
        tokens follow those that it has seen, and are added to it. `positions` (B, T) replaces those of the order, and
        `attend` (B, T, T) narrows what a token may see. `top_positions` (N,): different positions b T + t of which the
        top layer is asked for, NaN elsewhere.
        """
        ids, mask = batch["input_ids"], batch["mask"]
        seen = 0 if state is None else state.length
        positions = torch.arange(seen, seen + ids.shape[1], device=ids.device)
        if "documents" in batch:
            new = F.pad(batch["documents"].diff(dim=1) != 0, (1, 0), value=True)
            positions = positions - (positions * new).cummax(1).values
        if "positions" in batch:
            positions = batch["positions"]
        bias = narrowing_bias(batch, seen)
        if state is not None:
            bias = state.advance(ids, bias)
        x = self.dropout(self.embed(batch) + self.position_embedding(positions))
        layers = [x]
        only, top = batch.get("top_positions"), len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            asked = only if index == top else None
            layers.append(block(layers[-1], bias, causal=True, past=state, layer=index, only=asked))
        if self.final_norm is not None:
            layers[-1] = self.final_norm(layers[-1])
        layers[-1] = scattered(layers[-1], only, x)
        return Encoded(layers=layers, mask=mask, input_ids=ids, state=state)

    @property
    def hf_heads(self) -> dict[str, HeadLayout]:
        """Their sentence head takes one text at a time: it would skip the end of text, which is our padding."""
        kind = "GPT2" if self.final_norm is not None else "OpenAIGPT"
        sentence = HeadLayout(f"{kind}ForSequenceClassification", "score", bias=False, config={"pad_token_id": None})
        if kind == "OpenAIGPT":
            return {"sentence": sentence}
        answers = HeadLayout("GPT2ForQuestionAnswering", "qa_outputs")
        return {"sentence": sentence, "token": HeadLayout("GPT2ForTokenClassification", "classifier"), "span": answers}

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return F.linear(hidden, self.word_embedding.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return linear_cross_entropy(hidden, self.word_embedding.weight, labels)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    def pooled_positions(self, mask: Tensor) -> Tensor:
        return last_positions(mask)

    @property
    def num_layers(self) -> int:
        return 1 + len(self.blocks)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        groups = [[*self.word_embedding.parameters(), *self.position_embedding.parameters()]]
        groups += [list(block.parameters()) for block in self.blocks]
        if self.final_norm is not None:
            groups[-1] += list(self.final_norm.parameters())
        return groups

    def new_state(self) -> KeyValues:
        """Keys and values of the blocks: none yet."""
        return KeyValues(len(self.blocks))

    # ------------------------------------------------------------------ Hugging Face's layout

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Gpt:
        post = config["model_type"] == "openai-gpt"
        allowed = {
            "afn" if post else "activation_function": ("gelu",) if post else ("gelu_new", "relu2"),
            "layer_norm_epsilon": (1e-5,),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        }
        check_supported(config, allowed)
        return cls(
            tokenizer,
            size=config["n_embd"],
            layers=config["n_layer"],
            heads=config["n_head"],
            inner_size=config.get("n_inner") or 4 * config["n_embd"],
            max_length=config["n_positions"],
            dropout=config.get("resid_pdrop", 0.1),
            attention_dropout=config.get("attn_pdrop", 0.1),
            norm="post" if post else "pre",
            vocab_size=config["vocab_size"],
            activation="relu2" if config.get("activation_function") == "relu2" else "gelu",
            zero_outputs=config.get("zero_outputs", False),
        )

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        post, size, last = config["model_type"] == "openai-gpt", config["n_embd"], config["n_layer"] - 1
        return {
            _hf_name("word_embedding.weight", post): (config["vocab_size"], size),
            _hf_name("position_embedding.weight", post): (config["n_positions"], size),
            f"transformer.h.{last}.mlp.c_fc.weight": (size, config.get("n_inner") or 4 * size),
        }

    def export_state(self) -> dict[str, Tensor]:
        post = self.final_norm is None
        return {
            _hf_name(name, post): value.t() if _is_transposed(name) else value
            for name, value in self.state_dict().items()
        }

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """Names in files of `GPT2Model` alone lack the prefix."""
        if BUFFER.fullmatch(name) or name == "lm_head.weight":  # a copy of the embedding
            return None
        return f"transformer.{name}" if name.startswith(_PARTS) else name


_TOP = {
    "word_embedding": ("wte", "tokens_embed"),
    "position_embedding": ("wpe", "positions_embed"),
    "final_norm": ("ln_f", ""),
}
_PARTS = ("wte.", "wpe.", "tokens_embed.", "positions_embed.", "h.", "ln_f.")  # of `GPT2Model` and `OpenAIGPTModel`
_BLOCK = {
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "norm_attention": "ln_1",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm_feed_forward": "ln_2",
}


def _hf_name(name: str, post: bool) -> str:
    """Our parameter name -> Hugging Face's."""
    if match := re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(\w+)", name):
        index, part, kind = match.groups()
        return f"transformer.h.{index}.{_BLOCK[part]}.{kind}"
    top, _, kind = name.partition(".")
    return f"transformer.{_TOP[top][post]}.{kind}"


def _is_transposed(name: str) -> bool:
    """Whether Hugging Face keeps a matrix as (in, out): those of the blocks, GPT-2's `Conv1D`."""
    return bool(re.fullmatch(r"blocks\.\d+\.(qkv|out|up|down)\.weight", name))
