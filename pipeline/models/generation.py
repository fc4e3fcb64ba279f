"""Text from causal models: sampling, and the state that makes the next token cost one row.

Shapes: B batch, T positions, V vocabulary, H heads, d size of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pipeline.models.base import Encoder

COLDEST = 1e-6  # a temperature below would divide logits beyond what float32 holds


class KeyValues:
    """Keys and values of the tokens that a block has seen: with them the next token costs one row."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Adds those of new tokens, (B, H, T, d); returns all."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], -2)
        self.values = values if self.values is None else torch.cat([self.values, values], -2)
        return self.keys, self.values

    def copies(self, count: int) -> KeyValues:
        """The cache of one row, for `count` rows."""
        result = KeyValues()
        if self.keys is not None and self.values is not None:
            result.keys, result.values = self.keys.expand(count, -1, -1, -1), self.values.expand(count, -1, -1, -1)
        return result


def copies(state: Any, count: int) -> Any:
    """The state of one row, for `count` rows: tensors (1, ...), key-value caches, or lists and tuples of them."""
    if isinstance(state, Tensor):
        return state.expand(count, *state.shape[1:])
    if isinstance(state, (list, tuple)):
        return type(state)(copies(part, count) for part in state)
    return None if state is None else state.copies(count)


@torch.no_grad()
def generate(
    model: Encoder, prompt: Sequence[int], *, tokens: int, temperature: float, top_k: int, top_p: float, seed: int
) -> list[int]:
    """Continues `prompt` (ids) until the end of text, `tokens` new ones, or the last position; returns the new ids.

    Args:
        temperature: divides the logits; 0, or almost 0, takes the likeliest token each time.
        top_k: draw from the k likeliest only; 0: all.
        top_p: and only from the fewest tokens that hold this share of probability (Holtzman et al. 2019).
    """
    generator = torch.Generator().manual_seed(seed)
    state, end = model.new_state(), model.tokenizer.id("eos")
    result: list[int] = []
    step = list(prompt)
    for _ in range(min(tokens, model.max_length - len(prompt))):
        ids = torch.tensor([step], device=model.device)
        batch = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
        encoded = model(batch, state)
        state = encoded.state
        logits = model.logits(encoded.layers[-1][0, -1]).float().cpu()
        token = sample_token(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        if token == end:
            break
        result.append(token)
        step = [*prompt, *result] if state is None else [token]
    return result


def sample_token(logits: Tensor, *, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> int:
    """One token from logits (V,); see `generate`."""
    if temperature < COLDEST:
        return int(logits.argmax())
    scores, order = (logits / temperature).sort(descending=True)
    if top_k:
        scores, order = scores[:top_k], order[:top_k]
    p = scores.softmax(-1)
    p[p.cumsum(-1) - p >= top_p] = 0  # the token that crosses the share stays
    return int(order[torch.multinomial(p, 1, generator=generator)])
