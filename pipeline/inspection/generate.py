"""Text that a causal model continues, and that an encoder-decoder writes."""

from __future__ import annotations

from dataclasses import asdict

from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
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


def write(model: Encoder, source: str, how: Search) -> str:
    """The target of a source by an encoder-decoder, with a note where either was cut."""
    assert isinstance(model, EncoderDecoder)
    [ids] = model.tokenizer.encode_batch([source])
    room, notes = model.max_length - model.special.count(), []
    if len(ids) > room:
        notes.append(f"(The source has {len(ids)} tokens; the last {len(ids) - room} are cut: {room} fit.)")
    marks = model.tokenizer.sentinels
    if marks and not set(marks) & set(ids):
        notes.append(f"(The text has no {model.shown(marks[:1])}, in whose place the model writes what is missing.)")
    new = model.generate(ids, **asdict(how))
    if len(new) >= min(how.tokens, model.max_length) - len(model.target_prefix):
        notes.append(f"(Stopped after {len(new)} tokens.)")
    if not new:
        notes.append("(The target is empty.)")
    return "\n".join([model.shown(new), *notes])
