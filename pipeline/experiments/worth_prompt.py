"""Data efficiency: how many labels is a prompt worth (Le Scao and Rush 2021)?"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.console.progress import progress
from pipeline.data import labeled
from pipeline.errors import UserError
from pipeline.experiments.feasible import effective, learning_of
from pipeline.experiments.grid import FineTune, check_many_runs
from pipeline.experiments.run_cache import cell_of, finite, once, starting
from pipeline.presets import task_file, task_of
from pipeline.prompting.run import check_prompts
from pipeline.storage.atomic import write_atomically
from pipeline.tracking import plots
from pipeline.training.requests import FineTuneRequest, ZeroShotRequest, overrides_of, settings_in
from tasks.base import Task

LABELS = (10, 32, 100, 316, 1000)
STEPS = 100  # the fewest optimizer steps, however few the rows
BATCH = 10  # rows of one
MANY, LARGE_BATCH = 1000, 32  # more rows than that are trained on in larger batches

ZeroShot = Callable[[ZeroShotRequest], None]


def measure(
    request: FineTuneRequest, finetune: FineTune, zeroshot: ZeroShot, out: Path, *, seeds: int, overwrite: bool
) -> dict[str, Any]:
    """Runs what is not yet finished; writes worth.json and worth.png; returns the content of the former.

    Args:
        request: model, encoder, task, data and settings of all runs.
        seeds: fine-tunes for each number of labels.
        overwrite: run what is finished too.

    Raises:
        UserError: a task without prompts or accuracy, or with too few rows; a setting that each run sets itself.
    """
    file = task_file(request.task)
    task = task_of(file)
    if not isinstance(task, Task) or task.metric != "accuracy":
        raise UserError(f"{file.stem} is not scored by accuracy: a prompt and a fine-tune cannot be compared.")
    check_prompts(task, file)
    check_settings(request)
    numbers = training_sizes(len(labeled.read(task, request.data).parts["train"].rows))
    cell = cell_of(request)
    learning = learning_of(request.encoder)

    def ask(*, resume: bool) -> None:
        zeroshot(
            ZeroShotRequest(
                model=request.model,
                task=request.task,
                data=request.data,
                encoder=request.encoder,
                out=out / "zeroshot",
                overwrite=True,
            )
        )

    line: dict[int, list[float]] = {}
    with progress(total=1 + len(numbers) * seeds, desc="worth", unit="run") as bar:
        prompted = cell | {"prompts": repr(task.prompts)}
        prompt = accuracy(out / "zeroshot", prompted, ask, "zeroshot/accuracy", overwrite=overwrite)
        bar.update()
        for number in numbers:
            for seed in range(seeds):
                folder = out / "runs" / f"{number}-{seed}"
                trained = cell | {"rows": list(overrides_of(settings_for(number)))}
                settings = effective(overrides_of(settings_for(number)), learning, request.task, request.arm)
                one = replace(request, seed=seed, out=folder, overrides=(*settings, *request.overrides))
                score = accuracy(folder, trained, starting(finetune, one), "test/accuracy", overwrite=overwrite)
                line.setdefault(number, []).append(score)
                bar.update()
    figures: dict[str, Any] = {"zeroshot": prompt, "finetuned": {str(n): scores for n, scores in line.items()}}
    figures["labels"] = crossing({n: metrics.mean_and_deviation(scores)[0] for n, scores in line.items()}, prompt)
    write_atomically(out / "worth.json", json.dumps(figures, indent=2) + "\n")
    plot(line, prompt, figures["labels"], out / "worth.png", title=f"{request.model} on {file.stem}")
    return figures


def accuracy(folder: Path, cell: dict[str, Any], run: Any, name: str, *, overwrite: bool) -> float:
    """The accuracy, by its name in metrics.json, of a run that is run once."""
    return once(folder, cell, run, overwrite=overwrite, taken=lambda found: {name: finite(found, name, most=1)})[name]


def training_sizes(rows: int) -> list[int]:
    """Numbers of labels to fine-tune on, all rows among them where these are few.

    Raises:
        UserError: there is only one.
    """
    sizes = sorted({*(number for number in LABELS if number <= rows), *([rows] if rows < LABELS[-1] else [])})
    if len(sizes) < 2:
        raise UserError(f"Data efficiency needs at least two training sizes; the {rows} rows of this task allow one.")
    return sizes


def check_settings(request: FineTuneRequest) -> None:
    """Raises: UserError, a setting that each run sets itself."""
    settings = settings_in(request.overrides)
    if any(name.startswith("data.train_rows") for name in settings):
        raise UserError("worth varies data.train_rows itself; remove that flag.")
    check_many_runs(settings)


def settings_for(rows: int) -> dict[str, Any]:
    """Settings of a fine-tune on so few rows: enough epochs, and the last step is tested.

    To choose among several checkpoints would take the labels of the validation part.
    """
    epochs = max(5, math.ceil(STEPS * BATCH / rows))
    batch = BATCH if rows <= MANY else LARGE_BATCH
    return {"data.train_rows": rows, "data.batch_size": batch, "data.epochs": epochs, "validations": 1}


def crossing(line: dict[int, float], prompt: float) -> float | None:
    """Labels at which the line of fine-tunes first reaches the prompt, on a logarithmic scale; None if never."""
    before: tuple[int, float] | None = None
    for number, score in sorted(line.items()):
        if score >= prompt:
            if before is None:
                return float(number)
            share = (prompt - before[1]) / (score - before[1])
            return float(math.exp(math.log(before[0]) + share * (math.log(number) - math.log(before[0]))))
        before = (number, score)
    return None


def verdict(figures: dict[str, Any]) -> str:
    labels, finetuned = figures["labels"], figures["finetuned"]
    most, least = max(map(int, finetuned)), min(map(int, finetuned))
    value = (
        f"more than {most:,}" if labels is None else f"at most {least:,}" if labels <= least else f"about {labels:,.0f}"
    )
    return f"zero-shot {figures['zeroshot']:.3f}: the prompt is worth {value} labels"


def plot(line: dict[int, list[float]], prompt: float, labels: float | None, file: Path, *, title: str) -> None:
    """Accuracy over labels, the prompt as a horizontal line."""
    figure, axes = plots.subplots(figsize=(6.5, 4))
    numbers = sorted(line)
    means, deviations = zip(*(metrics.mean_and_deviation(line[number]) for number in numbers), strict=True)
    axes.errorbar(numbers, means, yerr=deviations, marker="o", capsize=3, label="fine-tuned (mean ± std over seeds)")
    axes.axhline(prompt, color="C1", linestyle="--", label="zero-shot (mean of the templates)")
    if labels is not None:
        axes.axvline(labels, color=plots.GREY, linewidth=0.8, label=f"equal at about {labels:,.0f} labels")
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xlabel("labelled rows")
    axes.set_ylabel("accuracy on the test part")
    axes.legend(frameon=False)
    figure.suptitle(f"{title}: how many labels a prompt is worth")
    plots.save_figure(figure, file)
