"""A feed-forward language model (Bengio et al. 2003) and the log-bilinear one (Mnih and Hinton 2007).

Shapes: B batch, T positions, n order, m size of an embedding, h tanh units, D size of the layers, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.causal import CausalEncoder
from pipeline.models.folder import Rate, Size
from pipeline.models.inputs import Inputs, check_generative
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.output import Output, OutputKind
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, greatest_of
from pipeline.tokenization.base import Tokenizer

Combine = Literal["concat", "sum"]
STD = 0.1  # of embeddings at the start


class FflmConfig(TypedDict):
    """The keys of `config.json` that are read."""

    vocab_size: Size
    order: Size
    embedding_size: Size
    hidden_size: Annotated[int, Field(ge=0)]
    direct: bool
    combine: Combine
    output: OutputKind
    cutoffs: NotRequired[list[Size] | None]
    max_length: Size
    dropout_prob: Rate


class FeedForward(CausalEncoder):
    """The next token from the embeddings x of the last n - 1 tokens: y = b + W x + U tanh(d + H x).

    A place before the text has a vector that is learned. The concatenation x costs less than n - 1 products of shifted
    embeddings, whose sum would be read and written as often.

    Args:
        tokenizer: its length is V.
        order: n: a token is predicted from the n - 1 before it.
        embedding_size: m, width of the vector of a token.
        hidden_size: h, width of the tanh layer; 0: none.
        direct: whether W x is there, from the embeddings to the output.
        combine: `concat` (the above) or `sum`: no hidden layer, but the sum of the embeddings, each after the matrix of
            its place; with `output: tied` this is the log-bilinear model.
        output: see `Output`.
        cutoffs: of `output: adaptive`.
        max_length: most tokens of a row.
        dropout: rate on the embeddings and on the hidden layer.

    Raises:
        UserError: settings that do not go together.
    """

    model_type = "fflm"
    may_be_zero = ("hidden_size",)
    offers = ("state",)
    schema = FflmConfig
    pretraining_tensors = lm_head_tensors = ("output.",)
    joint_pairs = False

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        order: int,
        embedding_size: int,
        hidden_size: int,
        max_length: int,
        dropout: float,
        direct: bool = False,
        combine: Combine = "concat",
        output: OutputKind = "tied",
        cutoffs: list[int] | None = None,
    ) -> None:
        super().__init__()
        check_generative(tokenizer, "A feed-forward model")
        _check(order, embedding_size, hidden_size, direct=direct, combine=combine)
        self.tokenizer, self.order, self.max_length = tokenizer, order, max_length
        self.direct, self.linear = direct, combine == "sum"
        width = embedding_size if self.linear else hidden_size
        self.size = width + direct * (order - 1) * embedding_size
        self.config = {
            "architectures": ["FeedForward"],
            "model_type": self.model_type,
            "vocab_size": len(tokenizer),
            "order": order,
            "embedding_size": embedding_size,
            "hidden_size": hidden_size,
            "direct": direct,
            "combine": combine,
            "output": output,
            "cutoffs": cutoffs,
            "max_length": max_length,
            "dropout_prob": dropout,
        }
        self.embedding = nn.Embedding(len(tokenizer), embedding_size)
        nn.init.normal_(self.embedding.weight, std=STD)
        self.begin = nn.Parameter(torch.zeros(embedding_size))  # of a place before the text
        self.hidden = nn.Linear((order - 1) * embedding_size, width) if width else None
        if self.hidden is not None:  # what tanh takes begins with a variance of 1, a sum with that of an embedding
            scale = 1 if self.linear else 1 / STD
            nn.init.normal_(self.hidden.weight, std=scale / math.sqrt(self.hidden.in_features))
            nn.init.zeros_(self.hidden.bias)
        self.dropout = Dropout(dropout)
        self.output = Output(
            output, size=self.size, embedding_size=embedding_size, vocab_size=len(tokenizer), cutoffs=cutoffs
        )

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> str:
        return "lbl" if config.get("combine") == "sum" else cls.model_type

    @property
    def reach(self) -> int:
        return self.order - 1

    def forward(self, batch: Inputs, state: Tensor | None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> the embeddings, with zeros up to D, and the top layer, (B, T, D).

        Args:
            state: (B, n - 2) the tokens before, -1 where there is none; rows that it does not have begin here. The
                state behind the batch comes back, or None where there is padding.
        """
        ids, mask = batch["input_ids"], batch["mask"]
        if state is None:
            state = ids.new_full((len(ids), self.reach - 1), -1)
            past = self.begin.expand(*state.shape, -1)
        else:
            state = F.pad(state[: len(ids)].to(ids.device), (0, 0, 0, max(0, len(ids) - len(state))), value=-1)
            past = torch.where(state[..., None] < 0, self.begin, self.embedding(state.clamp(min=0)))
        vectors = self.embed(batch)
        x = self.dropout(torch.cat([past, vectors], 1))
        x = torch.cat([x[:, place : place + ids.shape[1]] for place in range(self.reach)], -1)
        top = [x] if self.direct else []
        if self.hidden is not None:
            hidden = self.hidden(x)
            top.insert(0, hidden if self.linear else self.dropout(hidden.tanh()))
        layers = [F.pad(vectors, (0, self.size - vectors.shape[-1])), torch.cat(top, -1)]
        after = torch.cat([state, ids], 1)[:, ids.shape[1] :] if bool(mask.all()) else None
        return Encoded(layers=layers, mask=mask, input_ids=ids, state=after)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return self.output.logits(hidden, self.embedding.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return self.output.token_loss(hidden, labels, self.embedding.weight)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.embedding

    @property
    def output_embedding(self) -> nn.Parameter | None:
        return self.output.weight

    def pooled(self, encoded: Encoded) -> Tensor:
        """The greatest of the top layer over the tokens, in each feature: the last one has not seen the whole text."""
        return greatest_of(encoded.layers[-1], encoded.mask)

    @property
    def num_layers(self) -> int:
        return 2

    def layer_groups(self) -> list[list[nn.Parameter]]:
        above = [] if self.hidden is None else list(self.hidden.parameters())
        return [[*self.embedding.parameters(), self.begin], above]

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        order, size = config["order"], config["embedding_size"]
        width = size if config["combine"] == "sum" else config["hidden_size"]
        return {
            "embedding.weight": (config["vocab_size"], size),
            **({"hidden.weight": (width, (order - 1) * size)} if width else {}),
        }


def _check(order: int, embedding: int, hidden: int, *, direct: bool, combine: Combine) -> None:
    """Raises: UserError, settings that do not go together."""
    if order < 2:
        raise UserError(f"order is {order}; a feed-forward model predicts from at least one token: set 2 or more.")
    if embedding < 1:
        raise UserError(f"embedding_size is {embedding}; it must be at least 1.")
    if hidden < 0:
        raise UserError(f"hidden_size is {hidden}; it must be at least 1, or 0 for no hidden layer.")
    if combine == "sum" and (hidden or direct):
        raise UserError(
            "combine: sum has no hidden layer and no direct connections; set hidden_size: 0 and direct: false."
        )
    if combine == "concat" and not hidden and not direct:
        raise UserError("hidden_size: 0 leaves nothing between the embeddings and the output; set direct: true.")
    if combine == "concat" and not direct and embedding > hidden:
        raise UserError(f"hidden_size is {hidden}; it must be at least embedding_size, which is {embedding}.")
