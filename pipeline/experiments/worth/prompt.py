"""The worth of a prompt: how many labels does a fine-tune need to score as well (Le Scao and Rush 2021)?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import metrics
from pipeline.console.progress import progress
from pipeline.data import labeled
from pipeline.errors import UserError
from pipeline.experiments.feasible import effective, learning_of
from pipeline.experiments.many_runs import FineTune, ZeroShot
from pipeline.experiments.run_cache import Fingerprint, fingerprint_of_finetune, finite, run_once
from pipeline.experiments.worth.few_rows import check_worth_settings, crossing, settings_for, training_sizes
from pipeline.presets.tasks import task_file, task_of
from pipeline.prompting.run import check_prompts
from pipeline.storage.atomic import write_json
from pipeline.tracking import plots
from pipeline.tracking.history import read_metrics
from pipeline.training.requests import FineTuneRequest, ZeroShotRequest, overrides_of, settings_in
from tasks.base import Task
from tasks.metrics import standard_error

MOST = 1000  # labels of a fine-tune
CERTAIN = 1.96  # standard errors


def measure(
    request: FineTuneRequest,
    finetune: FineTune,
    zeroshot: ZeroShot,
    out: Path,
    *,
    seeds: int,
    overwrite: bool,
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
    check_worth_settings(request)
    if changed := sorted(name for name in settings_in(request.overrides) if name.startswith("data.task.")):
        raise UserError(f"{changed[0]} changes the task for fine-tunes, but not for the prompt: set it in a task file.")
    numbers = training_sizes(len(labeled.read(task, request.data).parts["train"].rows), most=MOST)
    made_of = fingerprint_of_finetune(request)
    learning = learning_of(request.model, request.encoder)

    folder_of_prompt = out / "zeroshot"
    asked = ZeroShotRequest(
        model=request.model,
        task=request.task,
        data=request.data,
        encoder=request.encoder,
        out=folder_of_prompt,
        overwrite=True,
    )
    line: dict[int, list[float]] = {}
    with progress(total=1 + len(numbers) * seeds, desc="worth", unit="run") as bar:
        accuracy = partial(accuracy_of, overwrite=overwrite, bar=bar)
        prompt = accuracy("zeroshot/accuracy", asked, made_of | {"prompts": repr(task.prompts)}, zeroshot)
        for number in numbers:
            for seed in range(seeds):
                folder = out / "runs" / f"{number}-{seed}"
                trained = made_of | {"rows": list(overrides_of(settings_for(number)))}
                settings = effective(overrides_of(settings_for(number)), learning, request.task, request.arm)
                one = replace(request, seed=seed, out=folder, overrides=(*settings, *request.overrides))
                line.setdefault(number, []).append(accuracy("test/accuracy", one, trained, finetune))
    answers = read_metrics(folder_of_prompt)
    figures: dict[str, Any] = {
        "zeroshot": prompt,
        "standard_error": standard_error(prompt, int(answers["zeroshot/rows"])),
        "without_prompt": max(answers[name] for name in ("zeroshot/chance", "zeroshot/majority") if name in answers),
        "finetuned": {str(n): scores for n, scores in line.items()},
    }
    means = {n: metrics.mean_and_deviation(scores)[0] for n, scores in line.items()}
    figures["labels"] = crossing(means, prompt) if is_certain(figures) else None
    write_json(out / "worth.json", figures)
    plot(line, prompt, figures["labels"], out / "worth.png", title=f"{request.model} on {file.stem}")
    return figures


def accuracy_of(name: str, request: Any, made_of: Fingerprint, run: Callable[..., object], **how: Any) -> float:
    """The accuracy of a run, by its name in metrics.json.

    Raises:
        LookupError: it is missing, or none that can be.
    """
    return run_once(request, made_of, run, taken=lambda metrics: {name: finite(metrics, name, most=1)}, **how)[name]


def is_certain(figures: dict[str, Any]) -> bool:
    """Whether the prompt is certainly better than a guess and the most frequent label."""
    return figures["zeroshot"] - CERTAIN * figures["standard_error"] > figures["without_prompt"]


def verdict(figures: dict[str, Any]) -> str:
    """In a sentence; of a prompt that may be no better than a guess nothing."""
    labels, finetuned = figures["labels"], figures["finetuned"]
    if not is_certain(figures):
        guess = f"{figures['without_prompt']:.3f}, a guess or the most frequent label"
        return f"zero-shot {figures['zeroshot']:.3f} is not certainly above {guess}: the prompt may be worth no labels"
    most, least = max(map(int, finetuned)), min(map(int, finetuned))
    value = (
        f"more than {most:,}" if labels is None else f"at most {least:,}" if labels <= least else f"about {labels:,.0f}"
    )
    return f"zero-shot {figures['zeroshot']:.3f}: the prompt is worth {value} labels"


def plot(line: dict[int, list[float]], prompt: float, labels: float | None, file: Path, *, title: str) -> None:
    """Accuracy over labels, the prompt as a horizontal line.

    Args:
        labels: where the two meet, which is marked between the numbers that were tried; None: nowhere.
    """
    figure, axes = plots.subplots(figsize=(6.5, 4), title=f"{title}: how many labels a prompt is worth")
    numbers = sorted(line)
    means, deviations = zip(*(metrics.mean_and_deviation(line[number]) for number in numbers), strict=True)
    spread = " (mean ± std over seeds)" * any(len(scores) > 1 for scores in line.values())
    axes.errorbar(numbers, means, yerr=deviations, marker="o", capsize=3, label=f"fine-tuned{spread}")
    axes.axhline(prompt, color=plots.COLORS[1], linestyle="--", label="zero-shot (mean of the templates)")
    if labels is not None and labels > numbers[0]:
        axes.axvline(labels, color=plots.GREY, linewidth=0.8, label=f"equal at about {labels:,.0f} labels")
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xlabel("labeled rows")
    axes.set_ylabel("accuracy on the test part")
    axes.legend(frameon=False)
    plots.save_figure(figure, file)
