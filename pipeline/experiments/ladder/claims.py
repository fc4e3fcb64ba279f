"""What lectures and papers claim of language models, tested on a ladder: holds, does not hold, or was not tried.

The claims themselves are in `configs/claims.yaml`, each of one of the kinds below. A selector names models of a ladder:
a rung's name, `kind=KIND`, or `AXIS=VALUE` in a ladder that is a product of choices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.metrics import ROUNDING
from pipeline.presets.files import CONFIGS
from pipeline.storage.validation import checked, read_yaml

FILE = CONFIGS / "claims.yaml"
ENOUGH = 0.01  # a longer history that gains less, of the bits per byte, is not needed

Row = dict[str, Any]  # a model of ladder.json
Selectors = Annotated[list[str], Field(min_length=1)]


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, by how much, and in how many seeds."""

    holds: bool
    by: str
    seeds: str | None = None


@dataclass(kw_only=True)
class Claim(ABC):
    """A claim and who made it."""

    claim: str
    source: str

    @abstractmethod
    def test(self, ladder: dict[str, Any]) -> Verdict | None:
        """The verdict on the content of ladder.json; None: it lacks the models."""


@dataclass(kw_only=True)
class Compared(Claim):
    """Each of some models is better than each of others, by at least so much.

    Args:
        better, worse: selectors; where they name axes, models are compared that agree in all other axes.
        least: bits per byte.
        share: bounds of the difference as a share of the worse model's figure.
        measure: what is compared, less is better.
    """

    better: Selectors
    worse: Selectors
    least: float = 0.0
    share: tuple[float, float] = (0.0, 1.0)
    measure: Literal["bits_per_byte", "seconds"] = "bits_per_byte"

    def test(self, ladder: dict[str, Any]) -> Verdict | None:
        pairs = [Pair(*rows, self.measure) for rows in comparable(ladder["models"], self.better, self.worse)]
        if not pairs:
            return None
        seeds = max(pair.seeds for pair in pairs)
        held = [all(self._holds(pair, seed) for pair in pairs) for seed in range(seeds)]
        holding = sum(self._holds(pair) for pair in pairs)
        closest = min(pairs, key=self._slack)
        by = closest.text()
        if len(pairs) > 1:
            by += f", {closest.first['title']} against {closest.second['title']}; in {holding} of {len(pairs)} pairs"
        return Verdict(holding == len(pairs), by, f"{sum(held)} of {seeds}")

    def _slack(self, pair: Pair, seed: int | None = None) -> float:
        """How far the share of a pair is inside the bounds."""
        low, high = self.share
        share = pair.share(seed)
        return min(share - low, high - share)

    def _holds(self, pair: Pair, seed: int | None = None) -> bool:
        ahead = self.share[0] != 0 or pair.gap(seed) > ROUNDING  # from 0: better, not as good
        return ahead and self._slack(pair, seed) >= 0 and (not self.least or pair.gap(seed) >= self.least)


@dataclass(kw_only=True)
class Mixed(Claim):
    """Each of some models gains from the best of others: the 95 % interval of the gain is above 0.

    Args:
        mixed, partner: selectors.
    """

    mixed: Selectors
    partner: Selectors

    def test(self, ladder: dict[str, Any]) -> Verdict | None:
        partners = selected(ladder["models"], self.partner)
        if not partners:
            return None
        best = min(partners, key=lambda row: figure(row))["name"]
        names = {row["name"] for row in selected(ladder["models"], self.mixed)} - {best}
        found = [
            mixture for mixture in ladder["mixtures"] if best in mixture["models"] and names & {*mixture["models"]}
        ]
        if not found:
            return None
        above = sum(mixture["interval"][0] > 0 for mixture in found)
        least = min(found, key=lambda mixture: mixture["gain"])
        low, high = least["interval"]
        by = f"{least['gain']:z.4f} bits per byte ({low:z.4f} to {high:z.4f})"
        by = f"{by}, {' + '.join(least['models'])}; in {above} of {len(found)} pairs" if len(found) > 1 else by
        return Verdict(above == len(found), by, f"{int(above == len(found))} of 1")


@dataclass(kw_only=True)
class History(Claim):
    """The shorter the units, the longer the history from which on a model gains nothing worth its length.

    Args:
        history: the axis of lengths of the history.
        unit: the axis of units, which the ladder lists from the shortest to the longest.
    """

    history: str
    unit: str

    def test(self, ladder: dict[str, Any]) -> Verdict | None:
        by_unit: dict[str, list[Row]] = {}
        for row in ladder["models"]:
            if {self.history, self.unit} <= row["axes"].keys():
                by_unit.setdefault(row["axes"][self.unit], []).append(row)
                if not row["axes"][self.history].isdigit():  # a ladder of a user, with other labels
                    return None
        by_unit = {unit: rows for unit, rows in by_unit.items() if len(rows) > 1}
        needed = [self._needed(rows) for rows in by_unit.values()]
        if len(needed) < 2:
            return None
        holds = needed == sorted(needed, reverse=True) and needed[0] > needed[-1]
        by = ", ".join(f"{unit} {length}" for unit, length in zip(by_unit, needed, strict=True))
        return Verdict(holds, by, f"{int(holds)} of 1")

    def _needed(self, rows: Sequence[Row]) -> int:
        least = min(figure(row) for row in rows)
        enough = [row for row in rows if figure(row) <= least * (1 + ENOUGH)]
        return min(int(row["axes"][self.history]) for row in enough)


@dataclass(kw_only=True)
class Tuned(Claim):
    """Each model with a learning rate is the best of several rates."""

    rates: int

    def test(self, ladder: dict[str, Any]) -> Verdict | None:
        rows = [row for row in ladder["models"] if row["learning_rate"] is not None]
        enough = sum(len(row["rates"]) >= self.rates for row in rows)
        highest = sum(
            row["learning_rate"] == max(rate["learning_rate"] for rate in row["rates"]) for row in rows if row["rates"]
        )
        beyond = f"; {highest} best at the highest rate tried" if highest else ""  # a higher one may be better
        return Verdict(enough == len(rows), f"{enough} of {len(rows)} models{beyond}") if rows else None


KINDS: dict[str, type[Claim]] = {"better": Compared, "mixed": Mixed, "history": History, "rates": Tuned}


@dataclass(frozen=True)
class Pair:
    """Two models in one measure, of which the first should have less."""

    first: Row
    second: Row
    measure: str

    @property
    def seeds(self) -> int:
        counts = [len(figures(row, self.measure)) for row in (self.first, self.second)]
        return min([count for count in counts if count > 1], default=1)

    def values(self, seed: int | None) -> tuple[float, float]:
        """Their figures with a seed, or the means of all; a model without seeds has one figure for all of them."""
        one, other = (figures(row, self.measure) for row in (self.first, self.second))
        if seed is None:
            return sum(one) / len(one), sum(other) / len(other)
        return one[seed if len(one) > 1 else 0], other[seed if len(other) > 1 else 0]

    def gap(self, seed: int | None = None) -> float:
        first, second = self.values(seed)
        return second - first

    def share(self, seed: int | None = None) -> float:
        first, second = self.values(seed)
        return 1 - first / second if 0 < second < math.inf else float(first < second)

    def text(self) -> str:
        gap, share = self.gap(), f"{abs(self.share()):.1%}".replace("%", " %")
        if self.measure == "seconds":
            return f"{share} {'less' if gap >= 0 else 'more'} time"
        return f"{abs(gap):.3f} bits per byte ({share}) {'better' if gap >= 0 else 'worse'}"


def claims_of(ladder: dict[str, Any], file: Path = FILE) -> list[dict[str, Any]]:
    """Each claim with its verdict: claim, source, holds (None: not tried), by and seeds.

    Args:
        ladder: the content of ladder.json.
        file: the claims.

    Raises:
        UserError: the file has a claim of no kind, or with an unknown key.
    """
    verdicts = []
    for claim in load(file):
        verdict = claim.test(ladder)
        shown = {"holds": None, "by": None, "seeds": None} if verdict is None else vars(verdict)
        verdicts.append({"claim": claim.claim, "source": claim.source, **shown})
    return verdicts


def load(file: Path = FILE) -> list[Claim]:
    """The claims of a file.

    Raises:
        UserError: see `claims_of`.
    """
    found = []
    for content in read_yaml(file, list[dict[str, Any]]):
        kind = next((KINDS[key] for key in content if key in KINDS), Compared)
        found.append(checked(kind, content, file))
    return found


def selected(models: Sequence[Row], selectors: Sequence[str]) -> list[Row]:
    return [row for row in models if any(_matches(row, selector) for selector in selectors)]


def comparable(models: Sequence[Row], first: Sequence[str], second: Sequence[str]) -> list[tuple[Row, Row]]:
    """Pairs of selected models that have the same choices in all axes that no selector names."""
    named = {selector.partition("=")[0] for selector in (*first, *second)}

    def others(row: Row) -> dict[str, str]:
        return {axis: value for axis, value in row["axes"].items() if axis not in named}

    return [
        (one, other)
        for one in selected(models, first)
        for other in selected(models, second)
        if one is not other and others(one) == others(other)
    ]


def _matches(row: Row, selector: str) -> bool:
    key, sign, value = selector.partition("=")
    if not sign:
        return row["name"] == selector
    return value == (row["kind"] if key == "kind" else row["axes"].get(key))


def figures(row: Row, measure: str) -> list[float]:
    """Of each seed; infinite where there is no finite one."""
    values = row["by_seed"] if measure == "bits_per_byte" else [row[measure]]
    return [math.inf if value is None else value for value in values]


def figure(row: Row) -> float:
    """Bits per byte, the mean of the seeds."""
    values = figures(row, "bits_per_byte")
    return sum(values) / len(values)
