"""A mixture of two language models, p = w p1 + (1 - w) p2: w from one half of a text, the score from the other.

Interpolation of models is as old as n-grams (Jelinek and Mercer 1980); Bengio et al. (2003) mix a neural one with a
trigram. Shapes: N tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import UserError
from pipeline.inspection.token_log_probs import TokenLogProbs, bits_per_byte
from pipeline.objectives.base import perplexity

RESAMPLES = 1000
FEWEST_DOCUMENTS, BLOCKS = 30, 100  # fewer documents say little of each other: then blocks of text are drawn again


@dataclass(frozen=True)
class Mixture:
    """Two models and their mixture on the second half of a text.

    Attributes:
        weight: of the first model, from the first half.
        losses: nats per token of the first model, the second, and the mixture.
        bits_per_byte: the same in bits per byte.
        better_half: 0 or 1, which model alone is better.
        gain: bits per byte that the mixture has less than the better model.
        interval: 95 % of the gain, see `units`.
        units: what is drawn again for the interval (Efron 1979), as `57 documents`.
        tokens: of the second half.
    """

    weight: float
    losses: tuple[float, float, float]
    bits_per_byte: tuple[float, float, float]
    better_half: int
    gain: float
    interval: tuple[float, float]
    units: str
    tokens: int


def mix(first: TokenLogProbs, second: TokenLogProbs) -> Mixture:
    """The mixture of two models of one text in the same tokens.

    Raises:
        UserError: the texts differ, have fewer than two tokens, or a token that neither model thinks possible.
    """
    if not np.array_equal(first.tokens, second.tokens):
        raise UserError("Only models of the same text in the same tokens can be mixed.")
    if len(first) < 2:
        raise UserError("The text is too short to be halved: a mixture needs two tokens at least.")
    both = [scores.log_probs.astype(np.float64) for scores in (first, second)]
    if np.isneginf(np.maximum(*both)).any():
        raise UserError("Both models give a token of the text probability 0, and so does each mixture.")
    middle = len(first) // 2
    weight = fitted_weight(both[0][:middle], both[1][:middle])
    tried = [part[middle:] for part in both]
    mixed = mixed_log_probs(tried[0], tried[1], weight)
    losses = [-float(part.mean()) for part in (*tried, mixed)]
    better = int(losses[1] < losses[0])
    gains, units = by_unit(mixed - tried[better], first.documents[middle:])
    low, high = (bits_per_byte(end, first.per_byte) for end in bootstrap(gains))
    spelling = float(first.spelling[middle:].mean())
    bits = [bits_per_byte(loss + spelling, first.per_byte) for loss in losses]
    return Mixture(
        weight=weight,
        losses=(losses[0], losses[1], losses[2]),
        bits_per_byte=(bits[0], bits[1], bits[2]),
        better_half=better,
        gain=bits[better] - bits[2],
        interval=(low, high),
        units=units,
        tokens=len(mixed),
    )


def table(mixture: Mixture, names: Sequence[str]) -> str:
    """Weights, perplexities and bits per byte of both models and their mixture, and the gain with its interval."""
    weights, width = (mixture.weight, 1 - mixture.weight), max(map(len, [*names, "mixture"]))
    lines = [
        f"Mixture, its weight fitted on the first half of the text, scored on the second ({mixture.tokens:,} tokens):",
        f"{'':<{width}}  weight  perplexity  bits per byte",
    ]
    for number, name in enumerate([*names, "mixture"]):
        weight = f"{weights[number]:.3f}" if number < 2 else ""
        figures = f"{perplexity(mixture.losses[number]):>10.4f}  {mixture.bits_per_byte[number]:>13.4f}"
        lines.append(f"{name:<{width}}  {weight:>6}  {figures}")
    low, high = mixture.interval
    lines.append(
        f"Gain over {names[mixture.better_half]} alone: {mixture.gain:.4f} bits per byte, 95 % interval {low:.4f} to "
        f"{high:.4f} (bootstrap over {mixture.units})"
    )
    return "\n".join(lines)


def mixed_log_probs(first: np.ndarray, second: np.ndarray, weight: float) -> np.ndarray:
    """log(w p1 + (1 - w) p2) of two log-probabilities, each (N,)."""
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log(weight) + first, np.log1p(-weight) + second)


def fitted_weight(first: np.ndarray, second: np.ndarray) -> float:
    """The weight of the first model under which a text is likeliest, to six places; log-probabilities (N,) each.

    The log-likelihood is concave in the weight: its slope has one zero at most, which bisection finds.
    """
    larger = np.maximum(first, second)
    one, other = np.exp(first - larger), np.exp(second - larger)
    low, high = 0.0, 1.0
    for _ in range(60):
        weight = (low + high) / 2
        slope = ((one - other) / (weight * one + (1 - weight) * other)).sum()
        if slope == 0:
            return weight
        low, high = (weight, high) if slope > 0 else (low, weight)
    return round((low + high) / 2, 6)


def by_unit(gains: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, str]:
    """Gains of tokens (N,) -> sums and numbers of tokens of documents, or of blocks of text, (2, units)."""
    begins = np.flatnonzero(np.diff(documents, prepend=documents[0] - 1))
    name = "documents"
    if len(begins) < FEWEST_DOCUMENTS:
        begins = np.unique(np.linspace(0, len(gains), min(BLOCKS, len(gains)), endpoint=False).astype(np.int64))
        name = "blocks of text"
    sums = np.stack([np.add.reduceat(gains, begins), np.diff(begins, append=len(gains))])
    return sums, f"{len(begins):,} {name}"


def bootstrap(sums: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of total / number of (2, units) when units are drawn again; seeded."""
    rng = np.random.default_rng(0)
    units = sums.shape[1]
    drawn = [sums[:, rng.integers(units, size=units)].sum(1) for _ in range(RESAMPLES)]
    total, count = np.array(drawn).T
    low, high = np.quantile(total / count, [0.025, 0.975])
    return float(low), float(high)
