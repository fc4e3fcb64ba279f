"""What the command `try` shows of a model: what its scoring allows, refused at the start where it does not."""

from __future__ import annotations

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.inspection.fill_mask import fill_mask
from pipeline.inspection.generate import generate
from pipeline.inspection.token_scores import token_scores
from pipeline.models.base import Encoder
from pipeline.models.generation import Search


def show(encoder: Encoder, prompt: str | None, *, score: bool, how: Search) -> str:
    """The continuation of a prompt by a causal model, its masks filled by a masked one, or the score of each token.

    Raises:
        UserError: no prompt, an empty one, or one that the encoder can do nothing with.
    """
    if not score and encoder.scoring not in ("causal", "masked"):
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
    return generate(encoder, prompt, how) if encoder.scoring == "causal" else fill_mask(encoder, prompt)


def check_word(encoder: Encoder) -> None:
    """Raises UserError where the encoder gives no vectors of whole words, by which neighbors are found."""
    if not encoder.tokenizer.spells:
        raise UserError(
            f"{typed.flag('word')} is for models that read whole words; a {encoder.model_type} does not: set "
            f"{typed.flag('prompt', 'TEXT')}."
        )
