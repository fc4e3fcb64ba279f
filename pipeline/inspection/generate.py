"""Text that a causal model continues."""

from __future__ import annotations

from dataclasses import asdict

from pipeline.models.base import Encoder
from pipeline.models.generation import Search


def generate(model: Encoder, prompt: str, how: Search) -> str:
    """The prompt and its continuation, with a note where either was cut.

    Raises:
        UserError: the model is not causal.
    """
    [ids] = model.tokenizer.encode_batch([prompt])
    ids = [model.tokenizer.id("bos"), *ids]
    room = model.max_length - min(how.tokens, model.max_length // 2)
    notes = []
    if len(ids) > room:
        notes.append(f"(The prompt has {len(ids)} tokens; the first {len(ids) - room} are cut, to leave room.)")
        ids = ids[-room:]
    new = model.generate(ids, **asdict(how))
    if len(new) == model.max_length - len(ids) < how.tokens:
        notes.append(f"(Stopped at the last of {model.max_length} positions.)")
    return "\n".join([prompt + model.tokenizer.decode(new), *notes])
