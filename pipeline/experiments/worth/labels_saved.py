"""How many labels fresh weights need to score as pretrained ones do with fewer: the statistics of finished runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipeline import metrics
from pipeline.experiments.conditions import Runs
from pipeline.experiments.worth.few_rows import crossing
from pipeline.metrics import ROUNDING
from pipeline.presets.arms import ArmName

FULL: ArmName = "full"
SCRATCH: ArmName = "scratch"
POINTS = 1001  # numbers of labels that are tested for the interval, evenly on a logarithmic scale
CLEARLY = 1.01  # more labels than others: above rounding
RUN = ["arm", "labels", "seed", "score"]


@dataclass(frozen=True)
class Need:
    """Labels that fresh weights need.

    Args:
        labels: infinite where the most that were tried do not suffice.
        interval: 95 %; None of a single seed.
        certain: whether it is more than pretrained weights had, beyond what chance does in 5 % of all such experiments.
    """

    labels: float
    interval: tuple[float, float] | None
    certain: bool


@dataclass(frozen=True)
class LabelsSaved:
    """The scores of both arms by the number of labels.

    Args:
        title: model and task.
        metric: of the task.
        mode: whether more or less of it is better.
        full, scratch: labels -> score of each seed; both arms have the same numbers of labels and seeds.
        baselines: labels -> score of the best baseline of the same labels, a mean over seeds; none where a task has no
            baselines.
        conditions: labels -> of each seed what its runs were made with, one of each arm.
        diverged: labels whose runs had no finite loss, and that the arms do not have.
    """

    title: str
    metric: str
    mode: str
    full: dict[int, list[float]] = field(default_factory=dict)
    scratch: dict[int, list[float]] = field(default_factory=dict)
    baselines: dict[int, float] = field(default_factory=dict)
    conditions: dict[int, list[Runs]] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)

    def with_runs(self, size: int, full: Sequence[dict[str, Any]], scratch: Sequence[dict[str, Any]]) -> LabelsSaved:
        """With the runs of both arms for one more number of labels: `score`, `baselines` and `conditions` of each."""
        means = mean_of_each([run["baselines"] for run in full])  # the same in both arms
        best = {size: (max if self.sign > 0 else min)(means.values())} if means else {}
        return replace(
            self,
            full=self.full | {size: [run["score"] for run in full]},
            scratch=self.scratch | {size: [run["score"] for run in scratch]},
            baselines=self.baselines | best,
            conditions=self.conditions
            | {size: [[run["conditions"] for run in pair] for pair in zip(full, scratch, strict=True)]},
        )

    @property
    def sign(self) -> int:
        """1 where more of the metric is better, -1 where less is."""
        return metrics.sign(self.mode)

    @property
    def arms(self) -> dict[str, dict[int, list[float]]]:
        return {FULL: self.full, SCRATCH: self.scratch}

    @property
    def runs(self) -> list[list[Any]]:
        """A row for each run, as `RUN` names its cells."""
        return [
            [arm, size, seed, score]
            for arm, by_size in self.arms.items()
            for size, scores in sorted(by_size.items())
            for seed, score in enumerate(scores)
        ]

    @property
    def made_with(self) -> list[Runs]:
        """Of each number of labels what its runs were made with."""
        return [[run for pair in self.conditions.get(size, ()) for run in pair] for size in self.sizes]

    @property
    def sizes(self) -> list[int]:
        """Numbers of labels, rising."""
        return sorted(self.full)

    @cached_property
    def needs(self) -> dict[int, Need]:
        """Labels -> those that fresh weights need for the score that pretrained ones have with so many.

        On the line through the means of the scores, over the logarithm of the number of labels. The interval has all
        numbers at which a paired t-test over seeds does not tell the arms apart, on the line of each seed. `certain`
        divides its 5 % among the numbers of labels (Bonferroni). With one seed nothing is certain.
        """
        full, scratch = (self.sign * np.array([arm[size] for size in self.sizes]) for arm in (self.full, self.scratch))
        found = {}
        for size, scores in zip(self.sizes, full, strict=True):
            reached = crossing(dict(zip(self.sizes, scratch.mean(1).tolist(), strict=True)), float(scores.mean()))
            labels, interval, strict = math.inf if reached is None else reached, None, None
            if len(scores) > 1:
                interval = self._interval(scores, scratch, labels, level=0.05)
                strict = self._interval(scores, scratch, labels, level=0.05 / len(self.sizes))
            found[size] = Need(labels, interval, certain=strict is not None and strict[0] > size * CLEARLY)
        return found

    def _interval(self, scores: np.ndarray, line: np.ndarray, labels: float, *, level: float) -> tuple[float, float]:
        """The fewest and most labels at which scores (seeds,) and lines (sizes, seeds) do not differ at a level.

        Beyond the most that were tried it is infinite. Where they differ everywhere both are `labels`.
        """
        from scipy.stats import t

        sizes = np.log(self.sizes)
        places = np.linspace(sizes[0], sizes[-1], POINTS)
        apart = scores - np.stack([np.interp(places, sizes, of_seed) for of_seed in line.T], 1)
        error = apart.std(1, ddof=1) / math.sqrt(len(scores))
        close = np.abs(apart.mean(1)) <= t.ppf(1 - level / 2, len(scores) - 1) * error
        same = np.flatnonzero(close | (error <= ROUNDING))  # seeds that all differ alike do not say what chance does
        if not len(same):
            return labels, labels
        low, high = np.exp(places[same[[0, -1]]]).tolist()
        low, high = low if same[0] else float(self.sizes[0]), high if same[-1] < POINTS - 1 else math.inf
        return min(low, labels), max(high, labels)  # a line that falls may have reached the score before

    @property
    def headline(self) -> int | None:
        """The labels that say most: the most with which fresh weights need certainly more, and a number that is known.

        Where they need more than were tried: the fewest with which that is so. Only where pretraining is better than
        the best baseline, which needs no network at all. None: these runs leave it open.
        """
        saved = [size for size, need in self.needs.items() if need.certain and self.beats_baseline(size)]
        known = [size for size in saved if self.needs[size].labels < math.inf]
        return max(known) if known else min(saved, default=None)

    def beats_baseline(self, size: int) -> bool:
        """Whether the mean of the pretrained arm is better than the best baseline, or there is none."""
        mean = metrics.mean_and_deviation(self.full[size])[0]
        return size not in self.baselines or self.sign * mean > self.sign * self.baselines[size]


def mean_of_each(baselines: Sequence[dict[str, float]]) -> dict[str, float]:
    """Name -> the mean over runs, of the baselines that all have: a seed's rows may leave one out."""
    shared = [name for name in baselines[0] if all(name in one for one in baselines)]
    return {name: sum(one[name] for one in baselines) / len(baselines) for name in shared}
