"""Recurrent layers: torch's own, how they begin, and their states.

Shapes: R rows, U positions, D model size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pipeline.errors import UserError

CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GATES = {"rnn": 1, "gru": 3, "lstm": 4}  # matrices of D rows in one, with that of the new state
LayerState = tuple[Tensor, ...]  # what goes from step to step, (R, D) each: h, and of an LSTM c


@torch.no_grad()
def initialize(layer: nn.RNNBase) -> None:
    """Orthogonal matrices from state to state, which keep its length over many steps (Saxe et al. 2014); an LSTM
    remembers at first (Jozefowicz et al. 2015)."""
    size = layer.hidden_size
    for name, parameter in layer.named_parameters():
        if name.startswith("bias"):
            parameter.zero_()
            if isinstance(layer, nn.LSTM) and name.startswith("bias_ih"):
                parameter[size : 2 * size] = 1.0
            continue
        fill = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_
        for matrix in parameter.split(size):
            fill(matrix)


def recurrent_layers(cell: str, first: int, size: int, layers: int, *, bidirectional: bool = False) -> nn.ModuleList:
    """Layers one above the other, the lowest over vectors of `first`; each gives D = `size`, half from either side."""
    width = size // 2 if bidirectional else size
    inputs = [first] + [size] * (layers - 1)
    found = [CELLS[cell](each, width, batch_first=True, bidirectional=bidirectional) for each in inputs]
    for layer in found:
        initialize(layer)
    return nn.ModuleList(found)


def embedding_width(embedding_size: int | None, size: int) -> int:
    """E of a model of that size D: D where none is given.

    Raises:
        UserError: it is not from 1 to D.
    """
    width = size if embedding_size is None else embedding_size
    if not 1 <= width <= size:
        raise UserError(f"embedding_size is {width}; it must be from 1 to the size of the model, {size}.")
    return width


def in_full(layer: nn.Module, x: Any, state: Any = None) -> Any:
    """What one of torch's recurrent layers gives; on a GPU in the type of its weights, float32 as a rule.

    Autocast runs cuDNN's layers in float16, whatever its own type, and small gradients would become zero without a
    scaled loss.

    Args:
        x: a tensor, or rows packed by their lengths.
    """
    if not x.is_cuda:
        return layer(x, state)
    dtype = next(layer.parameters()).dtype
    with torch.autocast("cuda", enabled=False):
        state = tuple(part.to(dtype) for part in state) if isinstance(state, tuple) else state
        return layer(x.to(dtype), state.to(dtype) if isinstance(state, Tensor) else state)


def run(layer: nn.Module, x: Tensor, state: LayerState | None) -> tuple[Tensor, LayerState]:
    """One of torch's layers over x (R, U, ...) from a state; returns its output (R, U, D) and the state behind."""
    begin = None if state is None else tuple(part.to(x.device, x.dtype)[None].contiguous() for part in state)
    out, end = in_full(layer, x, begin[0] if begin is not None and len(begin) == 1 else begin)
    return out, tuple(part[0] for part in (end if isinstance(end, tuple) else (end,)))


def run_padded(layer: nn.RNNBase, x: Tensor, lengths: Tensor) -> tuple[Tensor, Any]:
    """One of torch's layers over rows x (R, U, ...) of `lengths` (R,), on the CPU; without what is behind them.

    Returns:
        Its output (R, U, D), 0 on padding, and torch's state of each direction at its end of the rows.
    """
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, end = in_full(layer, packed)
    return pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0], end


def first_rows(state: LayerState, count: int) -> LayerState:
    """The state of `count` rows; 0 for new ones."""
    return tuple(F.pad(part[:count], (0, 0, 0, max(0, count - len(part)))) for part in state)
