"""BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), saved in Hugging Face's layout.

Shapes: B batch, T positions, D model size, V vocabulary, M masked positions of a batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any, Literal, NotRequired

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.folder import BUFFER, HeadLayout, Rate, Size, check_supported
from pipeline.models.inputs import Inputs, SpecialTokens, cut_pair, padded, rows_of
from pipeline.models.layers.attention import check_heads, padding_bias
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.transformer_block import ACTIVATIONS, STD, Block, initialize, scattered
from pipeline.models.losses import Loss, linear_cross_entropy
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Tokenizer


class BertConfig(TypedDict):
    """The keys of Hugging Face's `config.json` that are read."""

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    max_position_embeddings: Size
    hidden_dropout_prob: NotRequired[Rate]
    attention_probs_dropout_prob: NotRequired[Rate]
    initialization: NotRequired[Literal["paper", "local"]]
    zero_outputs: NotRequired[bool]
    pooler: NotRequired[bool]  # where the architecture does not say it


class Bert(Encoder):
    """A bidirectional Transformer with a masked-LM head and a next-sentence head.

    Args:
        tokenizer: its length is V.
        size: D, width of the token vectors and of all layers.
        layers: Transformer blocks, one on top of the other.
        heads: attention heads of a block, each of width D / heads; must divide `size`.
        inner_size: width of the feed-forward network in each block; 4 D in the paper.
        max_length: longest text in tokens, special ones included: as many positions are learned.
        dropout: share of features that training sets to zero, in embeddings and block outputs.
        attention_dropout: share of attention weights that training sets to zero.
        next_sentence: whether it has a pooler and a next-sentence head.
        initialization: `paper` (normal, 0.02) or `local`, see `init_local_attention`.
        vocab_size: rows of the embedding, when there are more than the tokenizer needs.
        activation: of feed-forward networks and the masked-LM head: `gelu`, or `relu2`, the square of a ReLU.
        zero_outputs: whether blocks start without effect, see `Block.zero_outputs`.
    """

    model_type = "bert"
    scoring = "masked"
    context = ("full",)
    special = SpecialTokens(prefix=1, between=1, suffix=1)
    learned_positions = True
    offers = ("next_sentence", "causal_rows", "positions", "top_positions")
    schema = BertConfig
    pretraining_tensors, lm_head_tensors = ("cls.", "bert.pooler."), ("cls.predictions.",)

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
        next_sentence: bool = True,
        initialization: Literal["paper", "local"] = "paper",
        vocab_size: int | None = None,
        activation: Literal["gelu", "relu2"] = "gelu",
        zero_outputs: bool = False,
    ) -> None:
        super().__init__()
        if tokenizer.scheme != "wordpiece":
            raise UserError(f"BERT needs a tokenizer of scheme wordpiece, not {tokenizer.scheme}.")
        check_heads(size, heads)
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        self.config = {
            "architectures": ["BertForPreTraining" if next_sentence else "BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": vocab_size or len(tokenizer),
            "hidden_size": size,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": inner_size,
            "max_position_embeddings": max_length,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": attention_dropout,
            "hidden_act": activation,
            "layer_norm_eps": 1e-12,
            "type_vocab_size": 2,
            "initializer_range": STD,
            "pad_token_id": tokenizer.id("pad"),
            "initialization": initialization,
            "zero_outputs": zero_outputs,
        }
        self.activation = ACTIVATIONS[activation]
        self.word_embedding = nn.Embedding(self.config["vocab_size"], size, padding_idx=tokenizer.id("pad"))
        self.position_embedding = nn.Embedding(max_length, size)
        self.segment_embedding = nn.Embedding(2, size)
        self.embedding_norm = nn.LayerNorm(size, eps=1e-12)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                size=size,
                heads=heads,
                inner_size=inner_size,
                dropout=dropout,
                attention_dropout=attention_dropout,
                eps=1e-12,
                norm="post",
                activation=activation,
            )
            for _ in range(layers)
        )
        self.lm_transform = nn.Linear(size, size)
        self.lm_norm = nn.LayerNorm(size, eps=1e-12)
        self.lm_bias = nn.Parameter(torch.zeros(self.config["vocab_size"]))
        self.pooler = nn.Linear(size, size) if next_sentence else None
        self.next_sentence = nn.Linear(size, 2) if next_sentence else None
        initialize(self)
        if initialization == "local":
            self.init_local_attention()
        for block in self.blocks if zero_outputs else []:
            assert isinstance(block, Block)
            block.zero_outputs()

    @torch.no_grad()
    def init_local_attention(self) -> None:
        """Positions start as sinusoids, and each head starts by attending one or two tokens back or ahead.

        A masked LM spends its first thousands of steps at the unigram loss, until some head attends to neighbors. A
        shift by k positions rotates the sinusoids (Vaswani et al. 2017, 3.5), so rotated copies in the query and key
        matrices make a head attend there from the first step. Only the start changes: everything is trained as usual.
        """
        size, heads = self.size, self.config["num_attention_heads"]
        width, count = size // heads, size // 2
        frequencies = 1000.0 ** (-torch.arange(count) / count)
        angles = torch.arange(self.max_length)[:, None] * frequencies
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :size]
        self.position_embedding.weight[:, : 2 * count] = 0.02 * math.sqrt(2) * waves  # as large as the word's
        chosen = torch.linspace(0, 0.75 * count, width // 2).long().clamp(max=count - 1).tolist()
        gain = math.sqrt(18 / math.sqrt(width))  # a peak of about 6 in the attention's logits
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            query, key, _ = block.qkv.weight.view(3, heads, width, size)
            for head in range(heads):
                offset = (-1, 1, -2, 2)[(head + layer * heads) % 4]
                for row, index in enumerate(chosen):
                    turn = offset * float(frequencies[index])
                    rotation = torch.tensor([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
                    rows, columns = slice(2 * row, 2 * row + 2), slice(2 * index, 2 * index + 2)
                    query[head, rows, columns] += gain * rotation
                    key[head, rows, columns] += gain * torch.eye(2)

    def forward(self, batch: Inputs, state: None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> D-wide layers.

        Optional: `token_type_ids` (B, T); `positions` (B, T), where they are not those in the row; `causal` (B,): rows
        in which a token sees only itself and those before it; `top_positions` (N,): different positions b T + t of
        which the top layer is asked for, NaN elsewhere.
        """
        ids, mask = batch["input_ids"], batch["mask"]
        segments = batch.get("token_type_ids")
        places = batch.get("positions", slice(ids.shape[1]))
        x = self.word_embedding(ids) + self.position_embedding.weight[places]
        x = x + (self.segment_embedding.weight[0] if segments is None else self.segment_embedding(segments))
        x = self.dropout(self.embedding_norm(x))
        layers, bias = [x], padding_bias(mask)
        if "causal" in batch:
            future = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu_(1)
            hidden = torch.zeros(len(ids), 1, *future.shape, device=ids.device)
            hidden.masked_fill_(future & batch["causal"][:, None, None, None], -1e9)
            bias = hidden if bias is None else bias + hidden
        only, top = batch.get("top_positions"), len(self.blocks) - 1
        for index, block in enumerate(self.blocks):
            layers.append(block(layers[-1], bias, only=only if index == top else None))
        layers[-1] = scattered(layers[-1], only, x)
        return Encoded(layers=layers, mask=mask, input_ids=ids)

    @property
    def hf_heads(self) -> dict[str, HeadLayout]:
        """A sentence head needs the pooler, which a BERT without next-sentence prediction lacks."""
        tagger = HeadLayout("BertForTokenClassification", "classifier", without=("cls.", "bert.pooler."))
        answers = HeadLayout("BertForQuestionAnswering", "qa_outputs", without=("cls.", "bert.pooler."))
        if self.pooler is None:
            return {"token": tagger, "span": answers}
        return {
            "token": tagger,
            "span": answers,
            "sentence": HeadLayout("BertForSequenceClassification", "classifier", without=("cls.",)),
        }

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V); the output matrix is the word embedding, with its own bias."""
        return F.linear(self.before_logits(hidden), self.word_embedding.weight, self.lm_bias)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return linear_cross_entropy(self.before_logits(hidden), self.word_embedding.weight, labels, self.lm_bias)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    def before_logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., D), the input of the output matrix."""
        return self.lm_norm(self.activation(self.lm_transform(hidden)))

    def pooled_positions(self, mask: Tensor) -> Tensor:
        return torch.arange(0, mask.numel(), mask.shape[1], device=mask.device)

    def pooled(self, encoded: Encoded) -> Tensor:
        """[CLS] of the top layer through the pretrained pooler, where there is one (Devlin et al. 2018, 3.2)."""
        first = encoded.layers[-1][:, 0]
        return first if self.pooler is None else torch.tanh(self.pooler(first))

    def next_sentence_logits(self, encoded: Encoded) -> Tensor:
        """(B, 2): 0 = the second text follows the first, 1 = it does not (the order of the original)."""
        lacking = any(name.startswith(("bert.pooler.", "cls.seq_relationship.")) for name in self.untrained)
        if self.next_sentence is None or lacking:
            raise UserError("This BERT has no next-sentence head; set model.objective.init_args.next_sentence to off.")
        return self.next_sentence(self.pooled(encoded))

    @property
    def num_layers(self) -> int:
        return 1 + len(self.blocks)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        embeddings = (self.word_embedding, self.position_embedding, self.segment_embedding, self.embedding_norm)
        groups = [[parameter for module in embeddings for parameter in module.parameters()]]
        groups += [list(block.parameters()) for block in self.blocks]
        if self.pooler is not None:
            groups[-1] += list(self.pooler.parameters())
        return groups

    def collate(self, texts: Sequence[Any]) -> Inputs:
        """[CLS] a [SEP] or [CLS] a [SEP] b [SEP]; too long a pair loses pieces from the end of the longer text."""
        cls, sep, pad = (self.tokenizer.id(role) for role in ("cls", "sep", "pad"))
        batch = padded(rows_of(texts, begin=[cls], between=[sep], end=[sep], max_length=self.max_length), pad=pad)
        second = [self._second_segment(text) for text in texts]
        positions = torch.arange(batch["mask"].shape[1])
        batch["token_type_ids"] = ((positions >= torch.tensor(second)[:, None]) & batch["mask"]).long()
        return batch

    def _second_segment(self, text: Any) -> int:
        """The position of the first token after the [SEP] of the first text; the end of the row without a second."""
        if not isinstance(text, tuple):
            return self.max_length
        first, _ = cut_pair(*text, room=self.max_length - self.special.count(2))
        return len(first) + self.special.prefix + self.special.between

    # ------------------------------------------------------------------ Hugging Face's layout

    @classmethod
    def from_config(cls, config: dict[str, Any], tokenizer: Tokenizer) -> Bert:
        allowed = {
            "hidden_act": ("gelu", "relu2"),
            "position_embedding_type": (None, "absolute"),
            "type_vocab_size": (2,),
            "is_decoder": (None, False),
            "layer_norm_eps": (1e-12,),
            "tie_word_embeddings": (None, True),
        }
        check_supported(config, allowed)
        return cls(
            tokenizer,
            size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            inner_size=config["intermediate_size"],
            max_length=config["max_position_embeddings"],
            dropout=config.get("hidden_dropout_prob", 0.1),
            attention_dropout=config.get("attention_probs_dropout_prob", 0.1),
            next_sentence=config.get("pooler", "BertForMaskedLM" not in (config.get("architectures") or [])),
            initialization=config.get("initialization", "paper"),
            vocab_size=config["vocab_size"],
            activation=config.get("hidden_act", "gelu"),
            zero_outputs=config.get("zero_outputs", False),
        )

    @classmethod
    def completed(cls, config: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Published folders of BERT name `BertForMaskedLM`, and have a pooler and a next-sentence head all the same."""
        has_pooler = any(name.startswith(("bert.pooler.", "cls.seq_relationship.")) for name in names)
        return {**config, "pooler": True} if has_pooler else config

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        size, last = config["hidden_size"], config["num_hidden_layers"] - 1
        return {
            "bert.embeddings.word_embeddings.weight": (config["vocab_size"], size),
            "bert.embeddings.position_embeddings.weight": (config["max_position_embeddings"], size),
            f"bert.encoder.layer.{last}.intermediate.dense.weight": (config["intermediate_size"], size),
        }

    def export_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for name, value in self.state_dict().items():
            if ".qkv." in name:  # one matrix here, three there
                for part, rows in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    state[_hf_name(name).replace("qkv", part)] = rows
            else:
                state[_hf_name(name)] = value
        return state

    @classmethod
    def folder_name(cls, name: str) -> str | None:
        """Names in files of `BertModel` alone lack the prefix; the oldest call the norm's tensors gamma and beta."""
        if BUFFER.fullmatch(name) or name in _COPIES:
            return None
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name

    def saved_config(self) -> dict[str, Any]:
        """With the class of transformers that finds all its tensors in the folder, where there is one."""
        lm, pooler, pairs = (
            module is not None and not any(name.startswith(prefix) for name in self.untrained)
            for module, prefix in (
                (self.lm_transform, "cls.predictions."),
                (self.pooler, "bert.pooler."),
                (self.next_sentence, "cls.seq_relationship."),
            )
        )
        config = {name: value for name, value in self.config.items() if name != "architectures"}
        if pooler or lm:
            name = ("BertForPreTraining" if lm and pairs else "BertModel") if pooler else "BertForMaskedLM"
            config = {"architectures": [name], **config}
        elif self.pooler is None:
            config["pooler"] = False
        return config


# Tied copies that some folders carry.
_COPIES = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}

_TOP = {
    "word_embedding": "bert.embeddings.word_embeddings",
    "position_embedding": "bert.embeddings.position_embeddings",
    "segment_embedding": "bert.embeddings.token_type_embeddings",
    "embedding_norm": "bert.embeddings.LayerNorm",
    "lm_transform": "cls.predictions.transform.dense",
    "lm_norm": "cls.predictions.transform.LayerNorm",
    "lm_bias": "cls.predictions.bias",
    "pooler": "bert.pooler.dense",
    "next_sentence": "cls.seq_relationship",
}
_BLOCK = {
    "qkv": "attention.self.qkv",
    "out": "attention.output.dense",
    "norm_attention": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm_feed_forward": "output.LayerNorm",
}


def _hf_name(name: str) -> str:
    """Our parameter name -> Hugging Face's."""
    if match := re.fullmatch(r"blocks\.(\d+)\.(\w+)\.(\w+)", name):
        index, part, kind = match.groups()
        return f"bert.encoder.layer.{index}.{_BLOCK[part]}.{kind}"
    top, _, kind = name.partition(".")
    return f"{_TOP[top]}.{kind}" if kind else _TOP[top]
