"""Recurrent language models: the simple network (Elman 1990), GRU (Cho et al. 2014), LSTM (Hochreiter and Schmidhuber
1997), each a stack of torch's own layers.

Shapes: B batch, T positions, E size of an embedding, D model size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import check_choice
from pipeline.models.causal import CausalEncoder
from pipeline.models.folder import Rate, Size
from pipeline.models.inputs import Inputs, check_generative
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.output import Output, OutputKind
from pipeline.models.layers.recurrent import (
    CELLS,
    GATES,
    LayerState,
    embedding_width,
    first_rows,
    recurrent_layers,
    run,
)
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded
from pipeline.tokenization.base import Tokenizer

Cell = Literal["rnn", "gru", "lstm"]
State = list[LayerState]  # of each layer


class RecurrentConfig(TypedDict):
    """The keys of `config.json` that are read."""

    vocab_size: Size
    cell: Cell
    size: Size
    embedding_size: Size
    layers: Size
    max_length: Size
    output: OutputKind
    cutoffs: list[Size] | None
    dropout_prob: Rate


class Recurrent(CausalEncoder):
    """Each token from a state that has read all tokens before it (Mikolov et al. 2010).

    The embedding is multiplied by the root of E on its way in (Vaswani et al. 2017, 3.4): as an output matrix it must
    begin small, and gates that read so small numbers learn frequencies alone for hundreds of steps.

    Args:
        tokenizer: its length is V.
        cell: `rnn`: h' = tanh(W x + U h + b); `gru` and `lstm`: with gates, as `torch.nn.GRU` and `torch.nn.LSTM`.
        size: D, of the state.
        layers: cells on top of each other, each of which reads the states of the one below.
        max_length: longest text in tokens. There are no positions, so that only time and memory set a bound.
        dropout: rate on the input of each layer and on the top, not from step to step (Zaremba et al. 2014).
        embedding_size: E; None: D. A smaller one makes the output layer cheaper, where most of the time goes.
        output: how the top layer gives probabilities, see `Output`.
        cutoffs: of `output: adaptive`.
    """

    model_type = "recurrent"
    offers = ("state",)
    shardable = False  # torch's layers read their weights where these were when they were made
    schema = RecurrentConfig
    pretraining_tensors = lm_head_tensors = ("output.",)

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        cell: Cell,
        size: int,
        layers: int,
        max_length: int,
        dropout: float,
        embedding_size: int | None = None,
        output: OutputKind = "tied",
        cutoffs: list[int] | None = None,
    ) -> None:
        super().__init__()
        check_generative(tokenizer, "A recurrent model")
        check_choice("cell", cell, CELLS)
        width = embedding_width(embedding_size, size)
        self.tokenizer, self.size, self.max_length = tokenizer, size, max_length
        self.scale = width**0.5
        self.config = {
            "architectures": ["Recurrent"],
            "model_type": "recurrent",
            "vocab_size": len(tokenizer),
            "cell": cell,
            "size": size,
            "embedding_size": width,
            "layers": layers,
            "max_length": max_length,
            "output": output,
            "cutoffs": cutoffs,
            "dropout_prob": dropout,
        }
        self.word_embedding = nn.Embedding(len(tokenizer), width)
        nn.init.normal_(self.word_embedding.weight, std=width**-0.5)
        self.layers = recurrent_layers(cell, width, size, layers)
        self.dropout = Dropout(dropout)
        self.output = Output(output, size=size, embedding_size=width, vocab_size=len(tokenizer), cutoffs=cutoffs)

    @classmethod
    def variant(cls, config: Mapping[str, Any]) -> str:
        return str(config.get("cell", cls.model_type))

    def forward(self, batch: Inputs, state: State | None = None) -> Encoded:
        """`input_ids`, `mask` (B, T) -> layers; the first are embeddings, with zeros up to D.

        Args:
            state: that of the tokens before; rows that it does not have begin from zero. The state behind the batch
                comes back, without a gradient; None where there is padding, behind which it would be no use.
        """
        ids, mask = batch["input_ids"], batch["mask"]
        x = self.embed(batch) * self.scale
        layers, after = [F.pad(x, (0, self.size - x.shape[-1]))], []
        for index, layer in enumerate(self.layers):
            x, end = run(layer, self.dropout(x), None if state is None else first_rows(state[index], len(x)))
            after.append(tuple(part.detach() for part in end))
            layers.append(x)
        layers[-1] = self.dropout(layers[-1])
        return Encoded(layers=layers, mask=mask, input_ids=ids, state=after if bool(mask.all()) else None)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)."""
        return self.output.logits(hidden, self.word_embedding.weight)

    def token_loss(self, hidden: Tensor, labels: Tensor) -> Loss:
        return self.output.token_loss(hidden, labels, self.word_embedding.weight)

    @property
    def token_embedding(self) -> nn.Embedding:
        return self.word_embedding

    @property
    def output_embedding(self) -> nn.Parameter | None:
        return self.output.weight

    @property
    def num_layers(self) -> int:
        return 1 + len(self.layers)

    def layer_groups(self) -> list[list[nn.Parameter]]:
        return [list(self.word_embedding.parameters()), *(list(layer.parameters()) for layer in self.layers)]

    @classmethod
    def sizes(cls, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        size, width, last = config["size"], config["embedding_size"], config["layers"] - 1
        return {
            "word_embedding.weight": (config["vocab_size"], width),
            f"layers.{last}.weight_ih_l0": (GATES[config["cell"]] * size, size if last else width),
        }
