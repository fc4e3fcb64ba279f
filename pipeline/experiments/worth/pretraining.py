"""The worth of pretraining: how many labels fresh weights need to score as pretrained ones do with fewer.

Both arms are fine-tuned on 10, 32, 100, ... and all labels, with several seeds. Of a seed each set of rows holds the
smaller ones, has each class in its share, and is the same for both arms; validation and test part are as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.console.progress import progress
from pipeline.data import labeled
from pipeline.errors import Diverged, UserError
from pipeline.experiments.conditions import CONDITIONS
from pipeline.experiments.feasible import effective, learning_of, task_as_run, why_not
from pipeline.experiments.many_runs import FineTune, best_with_seeds, check_no_run
from pipeline.experiments.run_cache import fingerprint_of_finetune, finite, run_once
from pipeline.experiments.worth.few_rows import check_worth_settings, settings_for, training_sizes
from pipeline.experiments.worth.labels_saved import FULL, SCRATCH, LabelsSaved
from pipeline.experiments.worth.report import report
from pipeline.presets.arms import ArmName
from pipeline.tracking.metric_names import baselines_of
from pipeline.training.requests import FineTuneRequest, Overrides, overrides_of


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

    A number of labels with which a loss is not finite is left out; see `check_finite`.

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
    check_worth_settings(request)
    learning = learning_of(request.model, request.encoder)
    if (reason := why_not(request.model, learning, request.task, SCRATCH)) is not None:
        raise UserError(reason)
    check_no_run(out, "metrics.json")
    rows = len(labeled.read(task, request.data).parts["train"].rows)
    sizes = training_sizes(rows, labels)
    title = f"{request.model} on {Path(request.task).stem}"
    found = LabelsSaved(title, task.metric, task.mode)
    tries = {  # without those that mean nothing to this task: they would repeat others
        arm: list(dict.fromkeys(effective(one, learning, request.task, arm) for one in choices.get(arm, ()))) or [()]
        for arm in (FULL, SCRATCH)
    }

    def taken(content: dict[str, Any]) -> dict[str, Any]:
        score, chosen_by = (f"{part}{task.metric}" for part in ("test/", "val/best_"))
        return {
            "score": finite(content, score, most=task.bound),
            "chosen_by": finite(content, chosen_by, most=task.bound),
            "mode": task.mode,
            "baselines": baselines_of(content),
            "conditions": {name: content[name] for name in CONDITIONS if name in content},
        }

    with progress(
        total=len(sizes) * sum(len(tried) + seeds - 1 for tried in tries.values()), desc="worth", unit="run"
    ) as bar:

        def run(arm: ArmName, size: int, seed: int, choice: int) -> dict[str, Any]:
            own = (*overrides_of(settings_for(size, of=rows)), *tries[arm][choice], *request.overrides)
            folder = out / "runs" / (f"{arm}-{size}-{seed}" + (f"-{choice}" if len(tries[arm]) > 1 else ""))
            settings = effective(own, learning, request.task, arm)
            one = replace(request, arm=arm, seed=seed, overrides=settings, out=folder)
            return run_once(one, fingerprint_of_finetune(one), finetune, overwrite=overwrite, taken=taken, bar=bar)

        for size in sizes:
            try:
                full, scratch = (
                    list(best_with_seeds(partial(run, arm, size), settings=len(tries[arm]), seeds=seeds))
                    for arm in (FULL, SCRATCH)
                )
            except Diverged:  # of which it has been said; the others are run all the same
                found = replace(found, diverged=[*found.diverged, size])
            else:
                found = found.with_runs(size, full, scratch)
            if found.sizes:
                report(found, out)
    return found


def check_finite(tables: Sequence[LabelsSaved]) -> None:
    """Raises: UserError, numbers of labels are left out, since a loss was not finite."""
    if left := [f"{found.title} with {size:,} labels" for found in tables for size in found.diverged]:
        raise UserError(
            f"No finite loss: {', '.join(left)}. The tables are without {'it' if len(left) < 2 else 'them'}."
        )
