"""The worth of pretraining: how many labels fresh weights need to score as pretrained ones do with fewer.

Both arms are fine-tuned on 10, 32, 100, ... and all labels, with several seeds. Of a seed each set of rows holds the
smaller ones, has each class in its share, and is the same for both arms; validation and test part are as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import metrics
from pipeline.console.progress import progress
from pipeline.data import labeled
from pipeline.errors import UserError
from pipeline.experiments import worth_plot
from pipeline.experiments.comparison import format_score
from pipeline.experiments.feasible import effective, learning_of, task_as_run, why_not
from pipeline.experiments.few_rows import check_settings, crossing, settings_for, training_sizes
from pipeline.experiments.grid import FineTune
from pipeline.experiments.run_cache import cell_of, finite, once, starting
from pipeline.metrics import ROUNDING
from pipeline.presets import ArmName
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.storage.csv_table import csv_table
from pipeline.tracking.metric_names import baselines_of
from pipeline.tracking.tables import markdown_table
from pipeline.training.requests import FineTuneRequest, Overrides, overrides_of
from pipeline.training.run_folder import SIGN, check_place, elsewhere

FULL: ArmName = "full"
SCRATCH: ArmName = "scratch"
POINTS = 1001  # numbers of labels that are tested for the interval, evenly on a logarithmic scale
CLEARLY = 1.01  # more labels than others: above rounding
HEAD = ["labels", FULL, SCRATCH, "best baseline", f"labels that {SCRATCH} needs for the score of {FULL}"]
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
    """

    title: str
    metric: str
    mode: str
    full: dict[int, list[float]]
    scratch: dict[int, list[float]]
    baselines: dict[int, float]

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


def measure(
    request: FineTuneRequest,
    finetune: FineTune,
    out: Path,
    *,
    seeds: int,
    labels: Sequence[int] | None,
    choices: Mapping[str, Sequence[Overrides]],
    overwrite: bool,
) -> LabelsSaved:
    """Runs what is not yet finished; writes worth.md, worth.csv, worth.png and metrics.json.

    Args:
        request: model, encoder, task, data and settings of all runs.
        labels: see `training_sizes`.
        choices: arm -> settings; for each number of labels it takes those that are best on the validation part with
            seed 0. An arm that is not named has those of the configuration.
        overwrite: run what is finished too.

    Raises:
        UserError: a task that is not trained, or has too few rows; a model without both arms; a setting that each run
            sets itself.
    """
    task = task_as_run(request.task, request.overrides)
    check_settings(request)
    learning = learning_of(request.encoder)
    if (reason := why_not(request.model, learning, request.task, SCRATCH)) is not None:
        raise UserError(reason)
    check_place(out)
    if (out / SIGN).exists():
        raise UserError(f"{out} is the folder of a run, whose metrics.json this would replace; {elsewhere()}.")
    rows = len(labeled.read(task, request.data).parts["train"].rows)
    sizes = training_sizes(rows, labels)
    title = f"{request.model} on {Path(request.task).stem}"
    scores: dict[str, dict[int, list[float]]] = {FULL: {}, SCRATCH: {}}
    baselines: dict[int, float] = {}
    tries = {  # without those that mean nothing to this task: they would repeat others
        arm: list(dict.fromkeys(effective(one, learning, request.task, arm) for one in choices.get(arm, ()))) or [()]
        for arm in (FULL, SCRATCH)
    }

    def taken(content: dict[str, Any]) -> dict[str, Any]:
        score, chosen_by = (f"{part}{task.metric}" for part in ("test/", "val/best_"))
        return {
            "score": finite(content, score, most=task.bound),
            "by": finite(content, chosen_by, most=task.bound),
            "baselines": baselines_of(content),
        }

    with progress(
        total=len(sizes) * sum(len(tried) + seeds - 1 for tried in tries.values()), desc="worth", unit="run"
    ) as bar:

        def run(arm: ArmName, size: int, seed: int, choice: int) -> dict[str, Any]:
            own = (*overrides_of(settings_for(size, of=rows)), *tries[arm][choice], *request.overrides)
            folder = out / "runs" / (f"{arm}-{size}-{seed}" + (f"-{choice}" if len(tries[arm]) > 1 else ""))
            settings = effective(own, learning, request.task, arm)
            one = replace(request, arm=arm, seed=seed, overrides=settings, out=folder)
            return once(folder, cell_of(one), starting(finetune, one), overwrite=overwrite, taken=taken, bar=bar)

        better = max if task.mode == "max" else min
        for size in sizes:
            for arm in (FULL, SCRATCH):
                tried = [run(arm, size, 0, choice) for choice in range(len(tries[arm]))]
                best = better(range(len(tried)), key=lambda choice: tried[choice]["by"])
                runs = [tried[best], *(run(arm, size, seed, best) for seed in range(1, seeds))]
                scores[arm][size] = [one["score"] for one in runs]
            if means := mean_of_each([one["baselines"] for one in runs]):  # the same in both arms
                baselines[size] = better(means.values())
            found = LabelsSaved(title, task.metric, task.mode, scores[FULL], scores[SCRATCH], baselines)
            report(found, out)
    return found


def mean_of_each(baselines: Sequence[dict[str, float]]) -> dict[str, float]:
    """Name -> the mean over runs, which have the same baselines."""
    return {name: sum(one[name] for one in baselines) / len(baselines) for name in baselines[0]}


# ---------------------------------------------------------------------- report


def report(found: LabelsSaved, out: Path) -> None:
    """Writes worth.md, worth.csv, worth.png and, last, metrics.json."""
    write_atomically(out / "worth.csv", csv_table([*RUN[:-1], found.metric], found.runs))
    write_atomically(out / "worth.md", table(found))
    worth_plot.plot([found], out / "worth.png", title=found.title)
    write_json(out / "metrics.json", figures(found))


def figures(found: LabelsSaved) -> dict[str, Any]:
    """The content of metrics.json; null where the most labels that were tried are too few."""
    result: dict[str, Any] = {"metric": found.metric, "seeds": len(found.full[found.sizes[0]])}
    for size in found.sizes:
        for arm in (FULL, SCRATCH):
            mean, deviation = metrics.mean_and_deviation(found.arms[arm][size])
            result |= {f"labels/{size}/{arm}": mean, f"labels/{size}/{arm}_deviation": deviation}
        if size in found.baselines:
            result[f"labels/{size}/baseline"] = found.baselines[size]
        need = found.needs[size]
        values = {"needed": need.labels}
        if need.interval is not None:
            values |= dict(zip(("needed_low", "needed_high"), need.interval, strict=True))
        result |= {f"labels/{size}/{name}": _or_none(value) for name, value in values.items()}
    most = found.headline
    return result if most is None else {**result, "worth": _or_none(found.needs[most].labels - most), "worth_at": most}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def table(found: LabelsSaved) -> str:
    """Markdown: a line for each number of labels, and what it comes to."""
    return f"{markdown_table(HEAD, lines(found))}\n{found.metric.replace('_', ' ')} {note(found)} {verdict(found)}\n"


def note(found: LabelsSaved) -> str:
    """What the scores and brackets of a table are."""
    rows = "A label is that of a row: all tags of a sentence are one."
    if len(found.full[found.sizes[0]]) == 1:
        return f"on the test part, of one seed, so how far another would lie from it is not known. {rows}"
    spread = "mean ± standard deviation over seeds; brackets: 95 %,\nfrom paired t-tests over seeds."
    return f"on the test part, {spread} {rows}"


def lines(found: LabelsSaved) -> list[list[str]]:
    """The cells of a line for each number of labels, below `HEAD`."""

    def line(size: int) -> list[str]:
        scores = [format_score(found.arms[arm][size]) for arm in (FULL, SCRATCH)]
        baseline = f"{found.baselines[size]:.3f}" if size in found.baselines else ""
        return [f"{size:,}", *scores, baseline, needed_text(found.needs[size], found.sizes)]

    return [line(size) for size in found.sizes]


def needed_text(need: Need, sizes: Sequence[int]) -> str:
    """Labels with their interval, as 1,240 [900, 1,600]; beyond the numbers that were measured it says so."""
    least, most = sizes[0], sizes[-1]

    def words(value: float) -> str:
        return f"> {most:,}" if value == math.inf else f"≤ {least:,}" if value <= least else f"{value:,.0f}"

    if need.interval is None:
        return words(need.labels)
    return f"{words(need.labels)} [{words(need.interval[0])}, {words(need.interval[1])}]"


def verdict(found: LabelsSaved) -> str:
    """What pretraining is worth, in a sentence or two."""
    size, most = found.headline, found.sizes[-1]
    if not any(map(found.beats_baseline, found.sizes)):
        return f"With none of these numbers of labels is {FULL} better than the best baseline."
    if size is None and any(need.certain for need in found.needs.values()):
        return f"Where {SCRATCH} needs more labels than {FULL}, the best baseline is better than both."
    if size is None:
        return f"These runs leave open whether pretraining saves labels: {SCRATCH} may need no more of them."
    need, score = found.needs[size], metrics.mean_and_deviation(found.full[size])[0]
    begin = f"With {size:,} labels {FULL} scores {score:.3f}"
    if size == most:
        return f"{begin}, and {SCRATCH} less: it needs more labels for that than were tried."
    least = need.labels if need.interval is None else need.interval[0]
    if least == math.inf:
        return f"{begin}, and {SCRATCH} does not with {most:,}: pretraining is worth more than {most - size:,} labels."
    reached = needed_text(need, found.sizes)
    if need.labels == math.inf:
        worth = f"pretraining is worth more than {least - size:,.0f} labels"
        return f"{begin}; {SCRATCH} needs {reached} labels for that: {worth}."
    worth = f"pretraining is worth {need.labels - size:,.0f} labels"
    return f"{begin}; {SCRATCH} needs {reached} labels for that: {worth}."
