"""What comes out of a model: layers of a batch, vectors of words, and the report of what was loaded.

Shapes: B batch, T positions, W words, D model size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.models.inputs import Inputs
from tasks.dataset import listed


@dataclass
class Encoded:
    """What an encoder returns.

    Attributes:
        layers: [(B, T, D)] from the embeddings to the top, which is NaN where a batch with `top_positions` asks for
            nothing.
        mask: (B, T) bool, true on tokens, false on padding.
        input_ids: (B, T).
        logits: (B, T, V) if requested; ELMo: (B, T, 2, V), forward and backward, as log-probabilities.
        words: (B, T) the word that a position belongs to, -1 for special tokens and padding; when the texts were
            lists of words.
        state: recurrent state after the batch, for the batch that continues it; None: there is none.
    """

    layers: list[Tensor]
    mask: Tensor
    input_ids: Tensor
    logits: Tensor | None = None
    words: Tensor | None = None
    state: Any = None

    def by_word(self, layer: Tensor, *, how: Literal["first", "mean"]) -> tuple[Tensor, Tensor]:
        """A layer (B, T, D) -> one vector a word (B, W, D), and which words have one (B, W).

        `first` takes the first piece of each word (Devlin et al. 2018, 5.3), `mean` the mean of its pieces. A word
        that was cut off has none.
        """
        assert self.words is not None, "only texts given as lists of words have words"
        return gather_words(layer, self.words, how=how)


def in_turn(first: Encoded, second: Encoded, rows: Inputs) -> Encoded:
    """What an encoder returns for the texts of pairs (B, S) and (B, S') -> as for all rows (2 B, T) at once.

    Without words, logits and state, which pairs that are read one by one do not have.

    Args:
        rows: see `flatten_pairs`.
    """
    length = rows["mask"].shape[1]

    def both(*parts: Tensor) -> Tensor:
        return torch.stack([nn.functional.pad(part, (0, 0, 0, length - part.shape[1])) for part in parts], 1).flatten(
            0, 1
        )

    layers = [both(*pair) for pair in zip(first.layers, second.layers, strict=True)]
    return Encoded(layers=layers, mask=rows["mask"], input_ids=rows["input_ids"])


def gather_words(layer: Tensor, words: Tensor, *, how: Literal["first", "mean"]) -> tuple[Tensor, Tensor]:
    """(B, T, D) and the word of each position (B, T), -1 for none -> as `Encoded.by_word`."""
    count = int(words.max()) + 1
    pieces = nn.functional.one_hot(words.clamp(min=0), max(count, 1)) * (words >= 0)[..., None]
    if how == "first":
        pieces = pieces * (pieces.cumsum(1) == 1)
    sums = pieces.to(layer.dtype).transpose(1, 2) @ layer
    numbers = pieces.sum(1)
    return sums / numbers.clamp(min=1)[..., None], numbers > 0


def join_batches(parts: list[tuple[list[int], Encoded]], *, pad: int) -> Encoded:
    """Batches of different lengths, each with the numbers of its texts -> one `Encoded` in the order of the texts."""
    length = max(encoded.mask.shape[1] for _, encoded in parts)
    order = torch.tensor([row for rows, _ in parts for row in rows]).argsort()

    def joined(tensors: list[Tensor], fill: float = 0) -> Tensor:
        shape = (0, 0) * (tensors[0].dim() - 2)
        padded = [nn.functional.pad(t, (*shape, 0, length - t.shape[1]), value=fill) for t in tensors]
        return torch.cat(padded)[order]

    outputs = [encoded for _, encoded in parts]
    logits = [encoded.logits for encoded in outputs if encoded.logits is not None]
    words = [encoded.words for encoded in outputs if encoded.words is not None]
    return Encoded(
        layers=[joined([encoded.layers[i] for encoded in outputs]) for i in range(len(outputs[0].layers))],
        mask=joined([encoded.mask for encoded in outputs]),
        input_ids=joined([encoded.input_ids for encoded in outputs], fill=pad),
        logits=joined(logits) if logits else None,
        words=joined(words, fill=-1) if words else None,
    )


def mean_of(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D) and a mask (B, T) of tokens -> their mean (B, D)."""
    shown = mask[..., None]
    return (x * shown).sum(1) / shown.sum(1)


def greatest_of(x: Tensor, mask: Tensor) -> Tensor:
    """(B, T, D) and a mask (B, T) of tokens -> the greatest of each feature (B, D)."""
    return x.masked_fill(~mask[..., None], -torch.inf).amax(1)


@dataclass
class LoadReport:
    """Which tensors of a folder were loaded into an encoder.

    Attributes:
        loaded: tensors of the encoder that the folder has.
        new: tensors that it does not have, which keep their fresh weights.
        unused: tensors of the folder that the encoder does not have.
    """

    loaded: list[str]
    new: list[str]
    unused: list[str]

    def __str__(self) -> str:
        return f"{len(self.loaded)} tensors loaded, {len(self.new)} new, {len(self.unused)} unused"


def lines_of_tensors(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines below a load report: `new in` -> `new in the encoder: a, b, ...`; none of what has no tensors."""
    return [f"            {said} the encoder: {listed(names, most=4)}" for said, names in groups.items() if names]
