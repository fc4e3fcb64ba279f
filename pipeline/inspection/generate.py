"""Text that a causal model continues."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.models.base import Encoder


@dataclass
class Sampling:
    """How tokens are drawn, see `generation.generate`."""

    tokens: int = 40
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises: UserError, a number out of its range."""
        for name, low in (("tokens", 1), ("temperature", 0), ("top_k", 0)):
            if not low <= (value := getattr(self, name)) < math.inf:  # nan is neither
                raise UserError(f"{name.replace('_', '-')} must be a number of at least {low}, not {value}.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}; it is a share, above 0 and at most 1.")


def generate(model: Encoder, prompt: str, sampling: Sampling) -> str:
    """The prompt and its continuation, with a note where either was cut.

    Raises:
        UserError: the model is not causal.
    """
    [ids] = model.tokenizer.encode_batch([prompt])
    ids = [model.tokenizer.id("bos"), *ids]
    room = model.max_length - min(sampling.tokens, model.max_length // 2)
    notes = []
    if len(ids) > room:
        notes.append(f"(The prompt has {len(ids)} tokens; the first {len(ids) - room} are cut, to leave room.)")
        ids = ids[-room:]
    new = model.generate(ids, **vars(sampling))
    if len(new) == model.max_length - len(ids) < sampling.tokens:
        notes.append(f"(Stopped at the last of {model.max_length} positions.)")
    return "\n".join([prompt + model.tokenizer.decode(new), *notes])
