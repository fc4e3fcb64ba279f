"""Keys and values of the tokens that the blocks of a decoder have seen: with them the next token costs one position.

Shapes: R rows that are written, side by side those that share what is stored; G stored rows, each of R / G rows; N
stored tokens, U new tokens of a row, H heads, d size of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.models.layers.attention import bias_of
from pipeline.models.layers.memory import runs

Pair = tuple[Tensor, Tensor]
UNTIDY = 32  # stored tokens of a row from which on those that nobody sees are dropped


class Stored:
    """Keys and values of one block, (G, H, N, d), with room for more."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.room, self.used = (keys, values), keys.shape[2]

    def append(self, size: int, new: Pair) -> tuple[Stored, Pair]:
        """Behind the first `size` tokens, without a copy of these where there is room; what was read before stays."""
        stored, end = self, size + new[0].shape[2]
        if new[0].requires_grad or self.room[0].requires_grad:  # what a gradient needs is not written to
            joined = [torch.cat([room[:, :, :size], part], 2) for room, part in zip(self.room, new, strict=True)]
            return Stored(*joined), (joined[0], joined[1])
        if size != self.used or end > self.room[0].shape[2]:  # another has written here, or there is no room
            shape = [*self.room[0].shape[:2], 2 * end, self.room[0].shape[3]]
            stored = Stored(*(room.new_empty(shape) for room in self.room))
            for room, before in zip(stored.room, self.room, strict=True):
                room[:, :, :size] = before[:, :, :size]
        for room, part in zip(stored.room, new, strict=True):
            room[:, :, size:end] = part
        stored.used = end
        return stored, (stored.room[0][:, :, :end], stored.room[1][:, :, :end])


class KeyValues:
    """Keys and values of all blocks.

    Hypotheses of one text, side by side, share what is stored, and each sees its own part of it: when they take each
    other's places, a mask changes, and no key is copied.

    Attributes:
        length: tokens that each row has seen.
    """

    def __init__(self, blocks: int) -> None:
        self.length, self.size = 0, 0  # size: N
        self.shared = 1  # R / G
        self.blocks: list[Stored | None] = [None] * blocks
        self.sees: Tensor | None = None  # (R, N): which tokens are its own; None: all, as many as it has seen

    def advance(self, ids: Tensor, bias: Tensor | None = None) -> Tensor | None:
        """Expects new tokens (R, U), which `extend` brings block by block.

        Args:
            bias: of attention, over all tokens that rows see.

        Returns:
            The bias for what is stored.
        """
        rows, new = ids.shape
        if new > 1 or bias is not None:
            self._part()
        if self.shared > 1 and self.sees is None:
            self.sees = torch.ones(rows, self.size, dtype=torch.bool, device=ids.device)
        if self.sees is not None:
            own = torch.eye(self.shared, dtype=torch.bool, device=ids.device).repeat(rows // self.shared, 1)
            self.sees = torch.cat([self.sees, own], 1)
            bias = bias_of(self.sees.view(-1, 1, self.shared, self.sees.shape[1]))
        self.length, self.size = self.length + new, self.size + new * self.shared
        return bias

    def extend(self, block: int, keys: Tensor, values: Tensor) -> Pair:
        """Adds those of the new tokens, (R, H, U, d); returns all, (G, H, N, d)."""
        rows, heads, new, width = keys.shape
        shape, flat = (rows // self.shared, self.shared, heads, new, width), (-1, heads, self.shared * new, width)
        pair = [part.view(shape).transpose(1, 2).reshape(flat) for part in (keys.contiguous(), values.contiguous())]
        stored = self.blocks[block]
        if stored is None:
            self.blocks[block] = Stored(pair[0], pair[1])
            return pair[0], pair[1]
        self.blocks[block], result = stored.append(self.size - flat[2], (pair[0], pair[1]))
        return result

    def select(self, rows: Tensor) -> KeyValues:
        """Of some rows (R',), see `generation.select`: what is stored is copied only where other texts are read."""
        made = KeyValues(len(self.blocks))
        made.length, made.size, made.blocks = self.length, self.size, self.blocks[:]
        if not self.size:
            return made
        kept, made.shared = runs(rows // self.shared)
        made.sees = None if self.sees is None else self.sees[rows]
        if not (len(kept) == self._stored_rows and torch.equal(kept, torch.arange(len(kept), device=kept.device))):
            made._replace(lambda part: part.index_select(0, kept))
        made._tidy()
        return made

    @property
    def _stored_rows(self) -> int:
        first = self.blocks[0]
        return 0 if first is None else first.room[0].shape[0]

    def _replace(self, change: Callable[[Tensor], Tensor]) -> None:
        """Of what is stored by all blocks, without the room behind it."""
        for number, stored in enumerate(self.blocks):
            if stored is not None:
                keys, values = (change(room[:, :, : self.size]) for room in stored.room)
                self.blocks[number] = Stored(keys, values)

    def _take(self, places: Tensor) -> None:
        """The tokens at places (G, N') alone."""
        self._replace(
            lambda part: part.gather(2, places[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3]))
        )
        self.size = places.shape[1]

    def _tidy(self) -> None:
        """Drops tokens that nobody sees, once they are half of all."""
        if self.sees is None or self.size < max(UNTIDY, 2 * self.length):
            return
        by_text = self.sees.view(-1, self.shared, self.size)
        alive = by_text.any(1)
        most = int(alive.sum(1).max())
        if 2 * most > self.size:
            return
        places = alive.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        self.sees = by_text.gather(2, places[:, None].expand(-1, self.shared, -1)).flatten(0, 1)
        self._take(places)

    def _part(self) -> None:
        """From now on each row has what it sees to itself."""
        if self.shared > 1 and self.size:
            self._replace(lambda part: part.repeat_interleave(self.shared, 0))
        if self.sees is not None:
            self._take(self.sees.nonzero()[:, 1].view(-1, self.length))
        self.shared, self.sees = 1, None
