"""The decoder of a recurrent encoder-decoder.

Shapes: R rows that are written, T positions of the source, U positions of the target, E size of an embedding, D model
size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.memory import Memory
from pipeline.models.layers.recurrent import LayerState, recurrent_layers, run
from pipeline.models.layers.source_attention import ATTENTIONS, Attention, attend

Cell = Literal["gru", "lstm"]
AttentionKind = Literal["none", "dot", "additive"]


class RecurrentDecoder(nn.Module):
    """Writes a target: s_u = RNN(s_{u-1}, [y_{u-1}; c_u]), and for the output tanh(W [s_u; c_u; y_{u-1}]).

    y_{u-1} is the embedding of the token before, and c_u what is known of the source:

    - `none`: the last states of the encoder from both sides, the same at each step (Cho et al. 2014, section 2.2);
    - `dot`: attention by s_u, which so does not enter the RNN (Luong et al. 2015, without their input feeding);
    - `additive`: attention by s_{u-1} (Bahdanau et al. 2015).

    So only the last takes step by step what other kinds take in one pass. The tanh layer is that of Luong et al. (5);
    Cho and Bahdanau have maxout there. With several layers, s is the state of the top one.
    """

    def __init__(
        self, cell: str, attention: str, *, size: int, embedding_size: int, layers: int, dropout: Dropout
    ) -> None:
        super().__init__()
        self.dropout, self.stepwise = dropout, attention == "additive"
        self.attention: Attention | None = None if attention == "none" else ATTENTIONS[attention](size)
        first = embedding_size + (0 if attention == "dot" else size)
        self.layers = recurrent_layers(cell, first, size, layers)
        self.parts = 2 if cell == "lstm" else 1
        self.starts = nn.ModuleList(nn.Linear(size, self.parts * size) for _ in range(layers))
        self.readout = nn.Linear(2 * size + embedding_size, size)

    def begin(self, ends: Sequence[Tensor]) -> list[LayerState]:
        """The last states (R, D) of each layer of the encoder -> the first states, tanh(W h + b)."""
        return [torch.tanh(start(end)).chunk(self.parts, -1) for start, end in zip(self.starts, ends, strict=True)]

    def forward(
        self, y: Tensor, source: Tensor | Memory, states: list[LayerState]
    ) -> tuple[Tensor, list[LayerState], Tensor | None]:
        """Embeddings (R, U, E) behind some states -> hidden (R, U, D), the states behind, and weights (R, U, T).

        Args:
            source: the memory of sources; without attention, their vector (R, D).
        """
        if not self.stepwise:
            return self._pass(y, source, states)
        hidden, weights = [], []
        for step in y.split(1, 1):
            h, states, w = self._pass(step, source, states)
            hidden.append(h)
            weights.append(cast(Tensor, w))
        return torch.cat(hidden, 1), states, torch.cat(weights, 1)

    def _pass(
        self, y: Tensor, source: Tensor | Memory, states: list[LayerState]
    ) -> tuple[Tensor, list[LayerState], Tensor | None]:
        """As `forward`, all U at once."""
        x, context, weights = y, None, None
        if isinstance(source, Tensor):
            context = source[:, None].expand(-1, y.shape[1], -1)
        elif self.stepwise:
            context, weights = attend(self.attention, states[-1][0][:, None], source)
        if context is not None:
            x = torch.cat([y, context], -1)
        after = []
        for index, (layer, state) in enumerate(zip(self.layers, states, strict=True)):
            x, end = run(layer, self.dropout(x) if index else x, state)
            after.append(end)
        if isinstance(source, Memory) and context is None:
            context, weights = attend(self.attention, x, source)
        assert context is not None
        return self.dropout(torch.tanh(self.readout(torch.cat([x, context, y], -1)))), after, weights
