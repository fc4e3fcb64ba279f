"""What each token of a text costs a model."""

from __future__ import annotations

import torch

from pipeline.models.base import Encoder
from pipeline.prompting.scoring import scorer_of


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
