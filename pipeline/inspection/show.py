"""What the command `try` shows of a model: what its scoring allows, refused at the start where it does not."""

from __future__ import annotations

from dataclasses import asdict

import torch

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import Search
from pipeline.prompting.scoring import scorer_of

SHOWN = 5  # candidates of a mask


def show(encoder: Encoder, prompt: str | None, *, score: bool, how: Search) -> str:
    """What a causal model continues, the target of an encoder-decoder, masks filled by a masked model, or token scores.

    Raises:
        UserError: no prompt, an empty one, or one that the encoder can do nothing with.
    """
    if not score and encoder.scoring not in ("causal", "masked", "seq2seq"):
        raise UserError(
            f"A {encoder.model_type} neither continues a prompt nor fills masks; set {typed.flag('word')} to see a "
            f"word's nearest neighbors, or {typed.further('--score')} to see what each token of a prompt costs."
        )
    if prompt is None or not prompt.strip():
        raise UserError(f"Give a text that is not empty: {typed.flag('prompt', 'TEXT')}.")
    try:
        prompt.encode()
    except UnicodeEncodeError:  # a shell hands on any bytes
        raise UserError(f"The prompt is not UTF-8 text: {prompt!a}") from None
    if score:
        return token_scores(encoder, prompt)
    shows = {"causal": generate, "seq2seq": write}
    return shows[encoder.scoring](encoder, prompt, how) if encoder.scoring in shows else fill_mask(encoder, prompt)


def check_word(encoder: Encoder) -> None:
    """Raises UserError where the encoder gives no vectors of whole words, by which neighbors are found."""
    if not encoder.tokenizer.spells:
        raise UserError(
            f"{typed.flag('word')} is for models that read whole words; a {encoder.model_type} does not: set "
            f"{typed.flag('prompt', 'TEXT')}."
        )


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


@torch.no_grad()
def fill_mask(encoder: Encoder, prompt: str) -> str:
    """The prompt, and for each of its masks the likeliest tokens with their probabilities.

    Raises:
        UserError: the encoder is not masked, there is no mask, or one does not fit into the positions.
    """
    if encoder.scoring != "masked":
        raise UserError(f"Only masked models fill masks; {encoder.model_type} is {encoder.scoring}.")
    mask = encoder.tokenizer.special["mask"]
    if mask not in prompt:
        raise UserError(
            f'The prompt has no {mask}; write it where a word is wanted, as in "The {mask} sat on the mat."'
        )
    out = encoder.encode([prompt], logits=True)
    places = (out.input_ids[0] == encoder.tokenizer.id("mask")).nonzero()[:, 0].tolist()
    if len(places) < prompt.count(mask):
        raise UserError(
            f"The prompt is longer than the encoder's {encoder.max_length} positions, and a mask is cut off."
        )
    assert out.logits is not None
    lines = []
    for number, place in enumerate(places, 1):
        best = out.logits[0, place].float().softmax(-1).topk(SHOWN)
        words = map(encoder.unit_text, best.indices.tolist())
        shown = "  ".join(f"{word} {p:.3f}" for word, p in zip(words, best.values.tolist(), strict=True))
        lines.append(f"{mask} {number}: {shown}")
    return "\n".join([prompt, *lines])


@torch.no_grad()
def token_scores(encoder: Encoder, text: str) -> str:
    """A table of what each token of a text costs: minus its log-probability, as the encoder's `scoring` has it.

    Raises:
        UserError: the encoder gives no probabilities.
    """
    scorer = scorer_of(encoder)
    [tokens] = scorer.tokens([text])
    shown = tokens[: scorer.room]
    log_probs = scorer.token_scores(shown)
    columns = {f"nats, {given}": [0.0 - value for value in values] for given, values in log_probs.items()}
    names = [encoder.unit_text(token) for token in shown]
    width = max(5, *map(len, names)) if names else 5
    lines = [f"{'token':<{width}}  " + "  ".join(columns)]
    for name, *values in zip(names, *columns.values(), strict=True):
        cells = (f"{value:>{len(head)}.3f}" for value, head in zip(values, columns, strict=True))
        lines.append(f"{name:<{width}}  " + "  ".join(cells))
    sums = "  ".join(f"{sum(values):>{len(head)}.3f}" for head, values in columns.items())
    lines.append(f"{'sum':<{width}}  {sums}")
    if len(shown) < len(tokens):
        lines.append(f"(The text has {len(tokens)} tokens; only the first {len(shown)} fit and are counted.)")
    return "\n".join(lines)
