"""A held-out paragraph, token by token, in the colors of what one model or two expected."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from pipeline.metrics import signed
from pipeline.reporting.ladder_models import best_of, is_finite, is_trained
from pipeline.reporting.page import Block, Section, Text
from pipeline.tokenization.base import printable

MOST_MARKED = 3000  # tokens of the paragraph in all its fixed copies: the page stays small
BITS = 1.5  # of a step of the color of surprisal
STEPS = (0.5, 1, 2, 4)  # bits, of the color of a difference


@dataclass(frozen=True)
class Reading:
    """A text in the colors of one model, or of two: (token, class of its color, what is read beside the mouse)."""

    title: str
    tokens: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Readings(Block):
    """A text read by each model. `data` is what the script of the page shows in place of the fixed readings."""

    readings: Sequence[Reading]
    data: Markup


def paragraph_section(ladder: Mapping[str, Any]) -> Section:
    """A paragraph in fixed colors for every model, and the data with which a script colors it."""
    title, paragraph = "One paragraph", ladder.get("paragraph")
    models = [m for m in ladder["models"] if paragraph and m["name"] in paragraph["nats"]]
    if not paragraph or not models:
        return Section(title, [])
    tokens = [printable(token).replace("\n", "↵\n") for token in paragraph["tokens"]]
    bits = {m["name"]: [_bits(nats) for nats in paragraph["nats"][m["name"]]] for m in models}
    finite = [model for model in models if is_finite(model.get("bits_per_byte"))]
    best = best_of(finite) or models[-1]
    rivals = [best_of(finite, "counting"), best_of([*filter(is_trained, finite)])]
    other = next((model for model in rivals if model is not None and model is not best), None)
    short = tokens[: max(40, MOST_MARKED // (len(models) + 1))]
    readings = [surprisal(best["title"], short, bits[best["name"]])]
    if other is not None:
        names = best["title"], other["title"]
        readings.append(difference(*names, short, bits[best["name"]], bits[other["name"]]))
    readings += [surprisal(m["title"], short, bits[m["name"]]) for m in models if m is not best]
    data = {
        "tokens": tokens,
        "models": [[m["title"], bits[m["name"]]] for m in models],
        "first": [models.index(best), -1 if other is None else models.index(other)],
        "bits": BITS,
        "steps": STEPS,
    }
    packed = Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"))
    text = (
        "The darker a token, the less the model expected it: 0 bits is certainty, and each further bit "
        "halves the probability."
    )
    return Section(title, [Text(text), Readings(readings, packed)])


def _bits(nats: float | None) -> float | None:
    return round(nats / math.log(2), 2) if nats is not None and math.isfinite(nats) else None


def surprisal(title: str, tokens: Sequence[str], bits: Sequence[float | None]) -> Reading:
    """A text in the colors of its surprisal."""
    marked = []
    for token, value in zip(tokens, bits, strict=False):
        level = 8 if value is None else min(8, int(value / BITS))
        marked.append((token, f"u{level}", "∞" if value is None else f"{value:.1f}"))
    return Reading(f"{title}: {_mean(bits)} bits per token", marked)


def difference(
    title: str, other: str, tokens: Sequence[str], bits: Sequence[float | None], against: Sequence[float | None]
) -> Reading:
    """A text in the colors of what one model expected better than the other."""
    marked = []
    for token, a, b in zip(tokens, bits, against, strict=False):
        gap = (math.inf if b is None else b) - (math.inf if a is None else a) if (a, b) != (None, None) else 0.0
        level = sum(abs(gap) >= step for step in STEPS)
        marked.append((token, f"{'p' if gap > 0 else 'm'}{level}" if level else "u0", signed(gap, 1)))
    return Reading(f"{title} beside {other}: blue where it is better, orange where it is worse", marked)


def _mean(bits: Sequence[float | None]) -> str:
    known = [value for value in bits if value is not None]
    return "infinite" if len(known) < len(bits) or not known else f"{sum(known) / len(known):.2f}"
