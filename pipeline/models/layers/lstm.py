"""An LSTM layer with projected output (Sak et al. 2014), as ELMo has it.

Shapes: B batch, T positions, P projection, H cell, K layers run side by side.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

State = tuple[Tensor, Tensor]


class Lstm(nn.Module):
    """One layer in one direction: i, f, g, o = W x + U h + b; c = f c + i g; h = R (o tanh c).

    Args:
        size: P, of input and output.
        cell: H.
        cell_clip: bound of c at each step; None: no bound.
        projection_clip: bound of h at each step; None: no bound.
    """

    def __init__(self, *, size: int, cell: int, cell_clip: float | None, projection_clip: float | None) -> None:
        super().__init__()
        self.cell_clip, self.projection_clip = cell_clip, projection_clip
        self.input = nn.Linear(size, 4 * cell)  # gates i, f, g, o
        self.recurrent = nn.Linear(size, 4 * cell, bias=False)
        self.project = nn.Linear(cell, size, bias=False)
        with torch.no_grad():
            for part in (self.input, self.recurrent, self.project):
                nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(self.input.bias)
            self.input.bias[cell : 2 * cell] = 1.0  # remember at first (Jozefowicz et al. 2015)

    def forward(self, x: Tensor, state: State | None, mask: Tensor) -> tuple[Tensor, State]:
        """(B, T, P), the state before, `mask` (B, T) with padding behind -> (B, T, P) and the state behind.

        Values at padding are undefined.
        """
        return side_by_side([self], [x], [state], mask)[0]

    @property
    def clips(self) -> bool:
        return self.cell_clip is not None or self.projection_clip is not None

    @property
    def projects(self) -> bool:
        """Whether P < H: by their sizes torch's LSTM sees that there is a projection."""
        return self.project.out_features < self.project.in_features

    def start(self, x: Tensor, state: State | None) -> State:
        """The first state, zero if there is none, on the device of `x`, in float32."""
        if state is None:
            return x.new_zeros(len(x), x.shape[-1]).float(), x.new_zeros(len(x), self.project.in_features).float()
        h, c = (part.to(x.device, torch.float32) for part in state)
        return h, c

    def clipped(self, x: Tensor, state: State | None, mask: Tensor) -> tuple[Tensor, State]:
        """As `forward`, step by step, with bounds."""
        h, c = self.start(x, state)
        gates, outputs = self.input(x).float(), []
        for step in range(x.shape[1]):
            i, f, g, o = (gates[:, step] + self.recurrent(h)).chunk(4, -1)
            new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            if self.cell_clip is not None:
                new_c = new_c.clamp(-self.cell_clip, self.cell_clip)
            new_h = self.project(torch.sigmoid(o) * torch.tanh(new_c))
            if self.projection_clip is not None:
                new_h = new_h.clamp(-self.projection_clip, self.projection_clip)
            outputs.append(new_h)
            here = mask[:, step, None]  # the state behind a row is that of its last word
            h, c = torch.where(here, new_h, h), torch.where(here, new_c, c)
        return torch.stack(outputs, 1), (h, c)

    def in_one_call(self, x: Tensor, state: State | None, lengths: Tensor) -> tuple[Tensor, State]:
        """As `forward` without bounds and with P < H, by torch's own LSTM: on a GPU one call of cuDNN for all steps.

        In float32, TF32 by torch's default: autocast would run it in float16 (see `recurrent.in_full`).

        Args:
            lengths: (B,) words of the rows, on the processor; none has 0.
        """
        rows = pack_padded_sequence(x.float(), lengths, batch_first=True, enforce_sorted=False)
        begin = tuple(part[None, rows.sorted_indices] for part in self.start(x, state))
        parts = self.input.weight, self.recurrent.weight, self.input.bias, torch.zeros_like(self.input.bias)
        weights = [part.float() for part in (*parts, self.project.weight)]
        with torch.autocast(x.device.type, enabled=False), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
            out, h, c = torch.lstm(
                rows.data, rows.batch_sizes, begin, weights, True, 1, 0.0, torch.is_grad_enabled(), False
            )
        padded, _ = pad_packed_sequence(
            PackedSequence(out, rows.batch_sizes, rows.sorted_indices, rows.unsorted_indices),
            batch_first=True,
            total_length=x.shape[1],
        )
        return padded, (h[0, rows.unsorted_indices], c[0, rows.unsorted_indices])


def side_by_side(
    lstms: Sequence[Lstm], xs: Sequence[Tensor], states: Sequence[State | None], mask: Tensor
) -> list[tuple[Tensor, State]]:
    """K layers of one size, each with its own input: as each alone, in one loop over the steps.

    A step of a small LSTM is bound by the number of its operations, which is the same for one and for two.

    Args:
        xs: K of (B, T, P).
        states: K of (B, P) and (B, H), or None: zeros.
        mask: (B, T).

    Returns:
        K of (B, T, P), each with the state behind the last word of a row.
    """
    if any(lstm.clips for lstm in lstms):
        return [lstm.clipped(x, state, mask) for lstm, x, state in zip(lstms, xs, states, strict=True)]
    if mask.is_cuda and all(lstm.projects for lstm in lstms):
        lengths = mask.sum(1).clamp(min=1).cpu()
        return [lstm.in_one_call(x, state, lengths) for lstm, x, state in zip(lstms, xs, states, strict=True)]
    starts = [lstm.start(x, state) for lstm, x, state in zip(lstms, xs, states, strict=True)]
    out, cells = _Recurrence.apply(
        torch.stack([lstm.input(x.transpose(0, 1)) for lstm, x in zip(lstms, xs, strict=True)], 1).float(),
        torch.stack([lstm.recurrent.weight for lstm in lstms]),
        torch.stack([lstm.project.weight for lstm in lstms]),
        torch.stack([h for h, _ in starts]),
        torch.stack([c for _, c in starts]),
    )
    last, rows = mask.sum(1) - 1, torch.arange(len(mask), device=mask.device)
    return [(out[:, k].transpose(0, 1), (out[last, k, rows], cells[last, k, rows])) for k in range(len(lstms))]


class _Recurrence(torch.autograd.Function):
    """The steps of K LSTMs whose input products are made, and their gradients, by hand.

    Step by step, autograd adds up three weight gradients from products of B rows; here the steps leave their
    rows and each weight gradient is one product of B T rows. Products are in the autocast type, sums in float32.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, u: Tensor, r: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """gates (T, K, B, 4H), U (K, 4H, P), R (K, P, H), h (K, B, P), c (K, B, H) -> h and c of each step."""
        device = gates.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else gates.dtype
        cell, steps = c.shape[-1], len(gates)
        u_t, r_t = u.detach().transpose(1, 2).to(dtype), r.detach().transpose(1, 2).to(dtype)
        acts = gates.clone()
        hs, ms = gates.new_empty(steps + 1, *h.shape, dtype=dtype), gates.new_empty(steps, *c.shape, dtype=dtype)
        cells, squashed = gates.new_empty(steps + 1, *c.shape), gates.new_empty(steps, *c.shape)
        hs[0], cells[0] = h, c
        for t in range(steps):
            act = acts[t]
            act += torch.bmm(hs[t], u_t)
            act[..., : 2 * cell].sigmoid_()
            act[..., 2 * cell : 3 * cell].tanh_()
            act[..., 3 * cell :].sigmoid_()
            i, f, g, o = act.chunk(4, -1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.tanh(cells[t + 1], out=squashed[t])
            ms[t] = squashed[t] * o
            torch.bmm(ms[t], r_t, out=hs[t + 1])
        ctx.save_for_backward(acts, hs, cells, squashed, ms, u, r)
        ctx.dtype = dtype
        ctx.set_materialize_grads(False)  # cells are rarely used
        return hs[1:].to(gates.dtype), cells[1:]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_cells: Tensor | None) -> tuple[Tensor | None, ...]:
        acts, hs, cells, squashed, ms, u, r = ctx.saved_tensors
        dtype, through_tanh, through_sigmoid = ctx.dtype, torch.ops.aten.tanh_backward, torch.ops.aten.sigmoid_backward
        u_, r_ = u.to(dtype), r.to(dtype)
        d_gates, d_hs = torch.empty_like(acts, dtype=dtype), torch.empty_like(hs[1:])
        d_h, d_c = torch.zeros_like(hs[0], dtype=acts.dtype), torch.zeros_like(cells[0])
        for t in reversed(range(len(acts))):
            i, f, g, o = acts[t].chunk(4, -1)
            d_i, d_f, d_g, d_o = d_gates[t].chunk(4, -1)
            d_hs[t] = d_h if d_out is None else d_h.add_(d_out[t])
            d_m = torch.bmm(d_hs[t], r_).to(acts.dtype)
            if d_cells is not None:
                d_c += d_cells[t]
            d_c += through_tanh(d_m * o, squashed[t])
            d_i.copy_(through_sigmoid(d_c * g, i))
            d_f.copy_(through_sigmoid(d_c * cells[t], f))
            d_g.copy_(through_tanh(d_c * i, g))
            d_o.copy_(through_sigmoid(d_m * squashed[t], o))
            d_h = torch.bmm(d_gates[t], u_).to(acts.dtype)
            d_c *= f
        d_u = torch.bmm(_rows(d_gates).transpose(1, 2), _rows(hs[:-1]))
        d_r = torch.bmm(_rows(d_hs).transpose(1, 2), _rows(ms))
        return d_gates.to(acts.dtype), d_u.to(u.dtype), d_r.to(r.dtype), d_h, d_c


def _rows(x: Tensor) -> Tensor:
    """(T, K, B, N) -> (K, T B, N)."""
    return x.transpose(0, 1).flatten(1, 2)
