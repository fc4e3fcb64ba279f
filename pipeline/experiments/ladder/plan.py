"""The runs that a ladder needs, before any of them: steps, rates, folders, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.experiments.ladder.rungs import Ladder, Rung
from pipeline.experiments.run_cache import folder_of, has_ended
from pipeline.experiments.token_runs import EVERY, STEPS, WARMUP, Configure, check_not_derived, of_steps
from pipeline.tracking.history import read_metrics
from pipeline.training.configuration import Configuration
from pipeline.training.corpus_data import CorpusData
from pipeline.training.requests import Overrides, PretrainRequest, overrides_of, settings_in

POINTS = 20  # of a validation curve
BITS = "val/bits_per_byte"
RATE = "model.optimization.learning_rate"
OF_LADDER = "the ladder's `tokens`, `rates` and `trial`"
OWN = (STEPS, EVERY, RATE, WARMUP)  # settings that follow from the ladder's


@dataclass(frozen=True)
class Plan:
    """How a rung is trained.

    Args:
        request: of its runs, but for steps, rate, seed and folder.
        configuration: of that request.
        runs: the folder of the runs.
    """

    ladder: Ladder
    rung: Rung
    request: PretrainRequest
    configuration: Configuration
    runs: Path

    @cached_property
    def is_counting(self) -> bool:
        """Whether it counts instead of training: no steps, no rate, no seed."""
        return self.configuration.module.is_counting

    @property
    def data(self) -> CorpusData:
        return self.configuration.data

    @property
    def step_tokens(self) -> int:
        return self.data.batch_size * self.data.length

    def steps(self, share: float = 1.0) -> int:
        """Optimizer steps of a run on a share of the ladder's tokens."""
        assert self.ladder.tokens is not None
        return max(1, round(self.ladder.tokens * share / self.step_tokens))

    def rate(self, factor: float) -> float:
        return float(f"{factor * self.configuration.resolved['model']['optimization']['learning_rate']:.6g}")

    def run(self, name: str, *, factor: float, share: float = 1.0, seed: int = 0) -> PretrainRequest:
        """A run with `factor` times the model's own rate."""
        request = replace(self.request, seed=seed, out=self.runs / name)
        if self.is_counting:
            return request
        steps = self.steps(share)
        every = steps if share < 1 else max(1, steps // POINTS)
        return of_steps(request, self.configuration, steps, every=every, settings={RATE: self.rate(factor)})

    def trials(self) -> list[PretrainRequest]:
        """A short run with each rate; none where there is nothing to choose."""
        rates, share = self.ladder.rates_of(self.rung), self.ladder.trial
        if self.is_counting or len(rates) == 1:
            return []
        return [self.run(f"{self.rung.name}-rate-{self.rate(f):g}", factor=f, share=share) for f in rates]

    def whole(self, best: int) -> list[PretrainRequest]:
        """The run of each seed, with the rate of that number; a trial on all tokens is one of them."""
        factor, trials = self.ladder.rates_of(self.rung)[best], self.trials()
        names = [f"{self.rung.name}-seed-{seed}" if seed else self.rung.name for seed in self.seeds]
        runs = [self.run(name, factor=factor, seed=seed) for seed, name in zip(self.seeds, names, strict=True)]
        return [trials[best], *runs[1:]] if trials and self.ladder.trial == 1 else runs

    @property
    def seeds(self) -> range:
        return range(1 if self.is_counting else self.ladder.seeds)

    def tokens(self) -> int:
        """That all its runs are trained on."""
        if self.is_counting:
            return 0
        trials = len(self.trials())
        whole = len(self.seeds) - (trials > 0 and self.ladder.trial == 1)
        steps = trials * self.steps(self.ladder.trial) + whole * self.steps()
        return steps * self.step_tokens


def plans(ladder: Ladder, out: Path, configure: Configure, overrides: Overrides) -> dict[str, Plan]:
    """A plan for each rung that has a model, by its name; nothing is read yet but configurations.

    Raises:
        UserError: a model is unknown or does not score from left to right, a setting is not valid, or the ladder sets
            it, or the models differ in what they must share.
    """
    check_not_derived([*ladder.settings, *settings_in(overrides)], OWN, OF_LADDER)
    for name in sorted(settings_in(overrides)):
        values = {repr(rung.settings.get(name)): rung.name for rung in ladder.rungs if rung.model is not None}
        if len(values) > 1:
            raise UserError(
                f"--{name} is what {' and '.join([*values.values()][:2])} differ in: leave it out, or choose rungs "
                f"that have the same ({typed.flag('models')})."
            )
    found: dict[str, Plan] = {}
    for rung in ladder.rungs:
        check_not_derived(rung.settings, OWN, OF_LADDER)
        if rung.model is None:
            continue
        settings = overrides_of({**rung.settings, **ladder.settings})
        request = PretrainRequest(model=rung.model, corpus=str(ladder.corpus), overrides=(*settings, *overrides))
        try:
            configuration = configure(request)
        except UserError as error:
            raise UserError(f"The rung {rung.name}: {error}") from None
        encoder = configuration.encoder_class
        if encoder.scoring != "causal":
            raise UserError(
                f"The rung {rung.name}: {typed.flag('model', rung.model)} is {encoder.scoring}, and a ladder compares "
                "models that predict each token from those before it."
            )
        plan = found[rung.name] = Plan(ladder, rung, request, configuration, out / "runs")
        if ladder.tokens is None and not plan.is_counting:
            raise UserError(f"The rung {rung.name} is trained: give the ladder the `tokens` that it is trained on.")
    check_alike(ladder, list(found.values()))
    return found


def check_alike(ladder: Ladder, found: Sequence[Plan]) -> None:
    """Raises: UserError, two models have other tokenizers, where they must share one, or rows of other lengths, or one
    of them reads less of the text."""

    def shared(plan: Plan) -> dict[str, Any]:
        data = plan.configuration.resolved["data"]
        tokenizer = data["tokenizer"] if ladder.one_tokenizer else {"lowercase": data["tokenizer"]["lowercase"]}
        return {"data.length": data["length"], **{f"data.tokenizer.{name}": tokenizer[name] for name in tokenizer}}

    for plan in found[1:]:
        first, this = shared(found[0]), shared(plan)
        for name in this:
            if this[name] != first[name]:
                raise UserError(
                    f"The rungs {found[0].rung.name} and {plan.rung.name} differ in {name}: {first[name]} and "
                    f"{this[name]}. Give the ladder one value of it under `settings`."
                )


def what_is_missing(found: Iterable[Plan], *, overwrite: bool) -> str:
    """A line for each model: its runs, and the time that those not yet made take, where some were timed.

    Whether finished runs are of the same text and settings is not looked at.

    Args:
        overwrite: whether what is finished is run again.
    """
    return "\n".join(f"{plan.rung.name:<20} {_missing(plan, overwrite=overwrite)}" for plan in found)


def _missing(plan: Plan, *, overwrite: bool) -> str:
    trials, whole = plan.trials(), plan.whole(0)
    runs = [*trials, *(request for request in whole if request not in trials)]
    folders = [] if overwrite else [folder_of(request) for request in runs]
    made = [folder for folder in folders if (folder / "metrics.json").is_file()]
    if sum(map(has_ended, folders)) == len(runs):
        return "finished"
    if plan.is_counting:
        return "to be counted"
    share = plan.ladder.trial
    about = f"{plan.steps():,} steps, {plan.tokens() / 1e6:,.1f} M tokens in {len(runs)} run{'s' * (len(runs) > 1)}"
    about += f" ({len(trials)} of them on {share:.0%} of the tokens)" if trials and share < 1 else ""
    timed = [read_metrics(folder) for folder in made]
    if not timed:
        return f"{about}, none finished"
    left = plan.tokens() - sum(metrics["tokens"] for metrics in timed)
    speed = sum(metrics["tokens"] for metrics in timed) / sum(metrics["seconds"] for metrics in timed)
    return f"{about}, {len(made)} finished, about {left / speed / 60:,.0f} minutes left"
