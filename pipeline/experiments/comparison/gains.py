"""Comparison: the scores of many fine-tunes by task, model and arm, and what pretraining gained."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.presets.arms import ARMS
from pipeline.tracking.metric_names import baselines_of, readable
from tasks.metrics import shown

Rows = list[dict[str, Any]]  # fine-tunes: model, task, arm, seed, metric, score, ... (see runs.summary)


@dataclass(frozen=True)
class Gain(metrics.Difference):
    """The mean difference of two arms."""

    @property
    def is_open(self) -> bool:
        """Whether the runs do not tell a gain from a loss, as those without an interval."""
        return self.half is None or abs(self.mean) <= self.half

    @property
    def is_certain(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.mean > 0 and not self.is_open

    def __str__(self) -> str:
        return f"**{self.text}**" if self.is_certain else self.text


def is_same(one: float, other: float) -> bool:
    """Whether two scores differ by rounding alone: some are of float32, baselines of float64."""
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)


@dataclass(frozen=True)
class Baseline:
    """A baseline of a line of the table.

    Attributes:
        name: in words.
        scores: seed -> score: training rows may differ. Runs of several arms have it in common.
    """

    name: str
    scores: dict[int, float]

    @property
    def mean(self) -> float:
        return sum(self.scores.values()) / len(self.scores)


@dataclass(frozen=True)
class Line:
    """All runs of a model on a task: a line of the table.

    Attributes:
        arms: name -> scores by seed, of the arms that the whole comparison has.
    """

    task: str
    model: str
    rows: Rows
    arms: dict[str, list[float]]

    @property
    def task_name(self) -> str:
        return Path(self.task).stem

    @property
    def metric(self) -> str:
        """Its name in words."""
        return readable(self.rows[0]["metric"])

    @property
    def sign(self) -> int:
        """1 where more of the metric is better, -1 where less is: a gain is positive where pretraining helped."""
        return metrics.sign(self.rows[0].get("mode"))

    @property
    def is_share(self) -> bool:
        """Whether scores are of at most 1, which is best, as an accuracy."""
        of_100 = {row["metric"] for row in self.rows} & {"bleu", "chrf"}
        return self.sign > 0 and not of_100 and all(row["score"] <= 1 for row in self.rows)

    @property
    def best_arm(self) -> str | None:
        """The arm with the best mean; None where another one has the same."""
        means = {arm: self.sign * sum(scores) / len(scores) for arm, scores in self.arms.items() if scores}
        best = [arm for arm, mean in means.items() if is_same(mean, max(means.values()))]
        return best[0] if len(best) == 1 else None

    @property
    def is_worth_a_mark(self) -> bool:
        """Whether the best arm is the best of several, and better than the best baseline."""
        best, arm = self.best_baseline, self.best_arm
        if arm is None or sum(map(bool, self.arms.values())) < 2:
            return False
        if best is None or math.isnan(best.mean):
            return True
        score = sum(self.arms[arm]) / len(self.arms[arm])
        return self.sign * (score - best.mean) > 0 and not is_same(score, best.mean)

    @property
    def best_baseline(self) -> Baseline | None:
        """That with the best mean over seeds, of those that all runs have: another version may know another one."""
        names = [name for name in baselines_of(self.rows[0]) if all(name in row for row in self.rows)]
        baselines = [
            Baseline(
                name.removeprefix("baseline/").replace("_", " "), {row["seed"]: float(row[name]) for row in self.rows}
            )
            for name in names
        ]
        return max(baselines, key=lambda one: self.sign * one.mean, default=None)

    @property
    def gain_over_scratch(self) -> Gain | None:
        """Of the arm that pretraining is judged by, over the seeds that both arms have."""
        arm = pretrained_arm(list(self.arms))
        if arm is None:
            return None
        ours, scratch = (
            {row["seed"]: row["score"] for row in self.rows if row["arm"] == name} for name in (arm, "scratch")
        )
        return self._gain([(score, scratch[seed]) for seed, score in ours.items() if seed in scratch])

    @property
    def gain_over_baseline(self) -> Gain | None:
        arm, best = pretrained_arm(list(self.arms)), self.best_baseline
        if arm is None or best is None:
            return None
        return self._gain([(row["score"], best.scores[row["seed"]]) for row in self.rows if row["arm"] == arm])

    @property
    def by_seed(self) -> list[Rows]:
        """Runs that are compared with each other: those of a seed."""
        return [[row for row in self.rows if row["seed"] == seed] for seed in {row["seed"] for row in self.rows}]

    @property
    def gains(self) -> list[Gain]:
        return [gain for gain in (self.gain_over_scratch, self.gain_over_baseline) if gain is not None]

    def _gain(self, pairs: Sequence[tuple[float, float]]) -> Gain | None:
        """Of scores, each with the one beside it."""
        if not pairs:
            return None
        return Gain.of(*([self.sign * value for value in side] for side in zip(*pairs, strict=True)))

    def degenerate(self, arm: str) -> int:
        """How many runs of an arm predict the same for all rows."""
        return sum(bool(row["degenerate"]) for row in self.rows if row["arm"] == arm)

    def mean_of(self, name: str) -> float:
        return sum(row[name] for row in self.rows) / len(self.rows)


def lines_of(rows: Rows) -> list[Line]:
    """A line for each task and model, in the order of the rows."""
    arms, found = arms_of(rows), []
    for task, model in itertools.product(in_order(rows, "task"), in_order(rows, "model")):
        mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        if mine:
            scores = {arm: [row["score"] for row in mine if row["arm"] == arm] for arm in arms}
            found.append(Line(task, model, mine, scores))
    return found


def has_several_runs(lines: Sequence[Line]) -> bool:
    """Whether an arm has more than one seed."""
    return any(len(scores) > 1 for line in lines for scores in line.arms.values())


def has_intervals(lines: Sequence[Line]) -> bool:
    """Whether a gain has an interval: those of one seed, or of seeds with equal differences, have none."""
    return any(gain.half is not None for line in lines for gain in line.gains)


def why_no_interval(lines: Sequence[Line]) -> str:
    """Of what the gains are where none has an interval."""
    return "of seeds with equal differences" if has_several_runs(lines) else "of one seed"


def in_order(rows: Rows, name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))


def arms_of(rows: Rows) -> list[str]:
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


def pretrained_arm(arms: list[str]) -> str | None:
    """The arm whose gain over scratch is reported."""
    return next((arm for arm in ("full", "frozen", "random") if arm in arms and "scratch" in arms), None)


def format_score(scores: Sequence[float]) -> str:
    """Mean and standard deviation."""
    if not scores:
        return ""
    mean, deviation = metrics.mean_and_deviation(list(scores))
    return shown(mean) if len(scores) == 1 else f"{shown(mean)} ± {_like(mean, deviation)}"


def format_scores(scores: Sequence[float]) -> str:
    """Mean, standard deviation and the scores of all runs."""
    runs = f" ({', '.join(_like(max(scores), score) for score in scores)})" if len(scores) > 1 else ""
    return format_score(scores) + runs


def _like(score: float, value: float) -> str:
    """A value beside a score: with three digits, unless the score itself is too small for them."""
    return f"{value:.3f}" if shown(score) == f"{score:.3f}" else shown(value)
