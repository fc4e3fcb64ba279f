"""The runs of a ladder: each model is counted, or trained with the best of its rates; what is finished is skipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import Diverged, UserError
from pipeline.experiments.ladder.plan import BITS, Plan
from pipeline.experiments.run_cache import check_diverged, finished, finite, folder_of, run_once
from pipeline.experiments.token_runs import Configure, fingerprint_of_pretraining, training_of
from pipeline.training.requests import PretrainRequest


class Unfinished(Exception):
    """A run is not finished, and must not be begun."""


@dataclass(frozen=True)
class Trained:
    """A finished rung.

    Attributes:
        folders: run folders of the seeds, the first one's first.
        metrics: of the first seed.
        rate: None: it counts.
        rates: what was tried; without bits per byte where it diverged.
    """

    folders: Sequence[Path]
    metrics: dict[str, Any]
    rate: float | None
    rates: list[dict[str, Any]]

    @property
    def encoders(self) -> list[Path]:
        return [folder / "encoder" for folder in self.folders]


def train(
    plan: Plan,
    configure: Configure,
    advance: Callable[[int, bool], None],
    *,
    overwrite: bool = False,
    only_finished: bool = False,
) -> Trained:
    """Trains what is missing of a rung; its data are prepared.

    Args:
        advance: called after each run with its tokens, and whether it was finished before.
        overwrite: run what is finished too.
        only_finished: train nothing.

    Raises:
        UserError: a run is refused.
        Unfinished: a run is not finished, where nothing is to be trained.
    """

    begin = training_of(configure)
    done: dict[Path, dict[str, Any]] = {}  # a trial on all tokens is the whole run too

    def run(request: PretrainRequest) -> dict[str, Any]:
        folder = folder_of(request)
        if folder in done:
            return done[folder]
        made_of = fingerprint_of_pretraining(request, plan.data)
        before = not overwrite and finished(folder, made_of, validated)[0] is not None
        if only_finished and not before:
            check_diverged(folder, made_of)
            raise Unfinished(folder.name)
        try:
            metrics = run_once(request, made_of, begin, overwrite=overwrite, taken=validated)
        except LookupError:
            raise UserError(
                f"The rung {plan.rung.name} gives a token of the validation text no probability, so its bits per "
                "byte are infinite: choose a smoothing, or leave the rung out."
            ) from None
        advance(0 if plan.is_counting else int(metrics["tokens"]), before)
        done[folder] = metrics
        return metrics

    def attempt(request: PretrainRequest) -> float:
        """Bits per byte; infinite where the rate is too high."""
        try:
            return finite(run(request), BITS)
        except Diverged:
            return math.inf

    factors, trials = plan.ladder.rates_of(plan.rung), plan.trials()
    tried = [attempt(request) for request in trials] or [math.nan]
    rung = plan.rung.name
    diverges = f"No rate of the rung {rung} leads to a model: give it lower `rates` in the ladder's file."
    if min(tried) == math.inf:
        raise UserError(diverges)
    best = min(range(len(tried)), key=tried.__getitem__)
    whole = plan.whole(best)
    try:
        metrics = [run(request) for request in whole]
    except Diverged:  # no trial did, or there was none
        raise UserError(diverges) from None
    return Trained(
        folders=[folder_of(request) for request in whole],
        metrics=metrics[0],
        rate=None if plan.is_counting else plan.rate(factors[best]),
        rates=[
            {"learning_rate": plan.rate(factor), "bits_per_byte": bits if bits < math.inf else None}
            for factor, bits in zip(factors, tried, strict=False)
            if trials
        ],
    )


def validated(metrics: dict[str, Any]) -> dict[str, Any]:
    """Raises: LookupError, they are not those of a model that predicts each token from those before it."""
    finite(metrics, BITS)
    finite(metrics, "tokens")
    return metrics
