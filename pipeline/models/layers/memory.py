"""What the blocks of a decoder attend to: keys and values of the source, computed once.

Shapes: S sources, T positions of a source, R rows that are written, H heads, d size of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def runs(owners: Tensor) -> tuple[Tensor, int]:
    """What rows read (R,) -> what has to be stored for them, each for as many rows side by side; how many."""
    stored, counts = owners.unique_consecutive(return_counts=True)
    if bool((counts == counts[0]).all()):
        return stored, int(counts[0])
    return owners, 1


@dataclass
class Memory:
    """Sources, each of which is read by as many rows, side by side: rows 0 .. R / S - 1 read the first one.

    Attributes:
        keys_values: of each block, (S, H, T, d) twice.
        bias: (S, 1, 1, T) keeps attention off padding; None: there is none.
        sources: (R,) the source that each row reads.
    """

    keys_values: list[tuple[Tensor, Tensor]]
    bias: Tensor | None
    sources: Tensor

    def contiguous(self) -> Memory:
        """The same, laid out so that many steps read it fast."""
        pairs = [(keys.contiguous(), values.contiguous()) for keys, values in self.keys_values]
        return Memory(pairs, self.bias, self.sources)

    def select(self, rows: Tensor) -> Memory:
        """The memory of some rows (R',), see `generation.select`: sources are copied only where others are read."""
        stored, count = runs(self.sources[rows])
        numbers = torch.arange(len(stored), device=rows.device)
        keys_values, bias = self.keys_values, self.bias
        if len(stored) != len(keys_values[0][0]) or not torch.equal(stored, numbers):
            keys_values = [(keys[stored], values[stored]) for keys, values in keys_values]
            bias = None if bias is None else bias[stored]
        return Memory(keys_values, bias, numbers.repeat_interleave(count))
