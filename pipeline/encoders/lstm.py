"""An LSTM layer with projected output (Sak et al. 2014), as ELMo has it.

Shapes: B batch, T positions, P projection, H cell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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

        What stands on padding is of no meaning.
        """
        h, c = (part.to(x.device, torch.float32) for part in (self._start(x) if state is None else state))
        if self.cell_clip is None and self.projection_clip is None:
            return self._fast(x, h, c, mask)
        return self._clipped(x, h, c, mask)

    def _start(self, x: Tensor) -> State:
        return x.new_zeros(len(x), x.shape[-1]), x.new_zeros(len(x), self.project.in_features)

    def _fast(self, x: Tensor, h: Tensor, c: Tensor, mask: Tensor) -> tuple[Tensor, State]:
        gates = self.input(x.transpose(0, 1))
        out, cells = _Recurrence.apply(gates.float(), self.recurrent.weight, self.project.weight, h, c)
        last, rows = mask.sum(1) - 1, torch.arange(len(x), device=x.device)
        return out.transpose(0, 1), (out[last, rows], cells[last, rows])

    def _clipped(self, x: Tensor, h: Tensor, c: Tensor, mask: Tensor) -> tuple[Tensor, State]:
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


class _Recurrence(torch.autograd.Function):
    """The steps of an LSTM whose input products are made, and their gradients, by hand.

    Step by step, autograd adds up three weight gradients from products of B rows; here the steps leave their
    rows and each weight gradient is one product of B T rows. Products are in the autocast type, sums in float32.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, u: Tensor, r: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """gates (T, B, 4H), U (4H, P), R (P, H), h (B, P), c (B, H) -> outputs (T, B, P) and cells (T, B, H)."""
        device = gates.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else gates.dtype
        steps, batch, cell = len(gates), len(h), c.shape[-1]
        u_t, r_t = u.detach().t().to(dtype), r.detach().t().to(dtype)
        acts = gates.clone()
        hs = gates.new_empty(steps + 1, batch, h.shape[-1], dtype=dtype)
        cells, squashed = gates.new_empty(steps + 1, batch, cell), gates.new_empty(steps, batch, cell)
        ms = gates.new_empty(steps, batch, cell, dtype=dtype)
        hs[0], cells[0] = h, c
        for t in range(steps):
            act = acts[t]
            act += hs[t] @ u_t
            act[:, : 2 * cell].sigmoid_()
            act[:, 2 * cell : 3 * cell].tanh_()
            act[:, 3 * cell :].sigmoid_()
            i, f, g, o = act.chunk(4, -1)
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.tanh(cells[t + 1], out=squashed[t])
            ms[t] = squashed[t] * o
            torch.mm(ms[t], r_t, out=hs[t + 1])
        ctx.save_for_backward(acts, hs, cells, squashed, ms, u, r)
        ctx.dtype = dtype
        ctx.set_materialize_grads(False)  # cells are rarely asked for
        return hs[1:].to(gates.dtype), cells[1:]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_cells: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        acts, hs, cells, squashed, ms, u, r = ctx.saved_tensors
        dtype, (steps, batch, cell) = ctx.dtype, squashed.shape
        u_, r_ = u.to(dtype), r.to(dtype)
        d_gates = torch.empty_like(acts, dtype=dtype)
        d_hs = torch.empty_like(hs[1:])
        d_h = cells.new_zeros(batch, r.shape[0])
        d_c = cells.new_zeros(batch, cell)
        pre = torch.empty_like(acts[0])
        for t in reversed(range(steps)):
            i, f, g, o = acts[t].chunk(4, -1)
            d_hs[t] = d_h if d_out is None else d_h.add_(d_out[t])
            d_m = (d_hs[t] @ r_).to(acts.dtype)
            if d_cells is not None:
                d_c += d_cells[t]
            d_c += d_m * o * (1 - squashed[t] * squashed[t])
            # Through the sigmoids: s (1 - s); through the tanh: 1 - g^2.
            torch.mul(d_c * g, i * (1 - i), out=pre[:, :cell])
            torch.mul(d_c * cells[t], f * (1 - f), out=pre[:, cell : 2 * cell])
            torch.mul(d_c * i, 1 - g * g, out=pre[:, 2 * cell : 3 * cell])
            torch.mul(d_m * squashed[t], o * (1 - o), out=pre[:, 3 * cell :])
            d_gates[t] = pre
            d_h = (d_gates[t] @ u_).to(acts.dtype)
            d_c *= f
        flat = d_gates.flatten(0, 1)
        d_u = (flat.t() @ hs[:-1].flatten(0, 1)).to(u.dtype)
        d_r = (d_hs.flatten(0, 1).t() @ ms.flatten(0, 1)).to(r.dtype)
        return d_gates.to(acts.dtype), d_u, d_r, d_h, d_c
