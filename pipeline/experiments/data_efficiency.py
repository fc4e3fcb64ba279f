"""`make worth`: how many labels is a prompt worth (Le Scao and Rush 2021)? Zero-shot beside fine-tunes on few rows."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from pipeline import metrics
from pipeline.errors import UserError
from pipeline.experiments.grid import figure, once
from pipeline.storage.atomic import write_atomically
from pipeline.tracking import plots

LABELS = (10, 32, 100, 316, 1000)
STEPS = 100  # at least so many optimiser steps, however few the rows
BATCH = 10  # rows of one

Run = Callable[..., None]


def worth(
    finetune: Run, zeroshot: Run, out: Path, *, rows: int, seeds: int, anew: bool, cell: dict[str, Any], prompts: str
) -> dict[str, Any]:
    """Runs what is not there yet; writes worth.json and worth.png; returns the figures.

    Args:
        finetune: runs a fine-tune; takes `out`, `seed`, `flags` and `resume`.
        zeroshot: runs the zero-shot evaluation; takes `out` and `resume`.
        rows: of the training part.
        seeds: fine-tunes for each number of labels.
        anew: run what is there too.
        cell: what every figure depends on.
        prompts: and what that of the prompts does.

    Raises:
        UserError: too few rows for a line.
    """
    numbers = [number for number in LABELS if number <= rows] + ([rows] if rows < LABELS[-1] else [])
    numbers = sorted(set(numbers))
    if len(numbers) < 2:
        raise UserError(f"The training part has only {rows} rows, too few for a line.")
    asked = out / "zeroshot"
    line: dict[int, list[float]] = {}
    with tqdm(total=1 + len(numbers) * seeds, desc="worth", unit="run", file=sys.stderr) as bar:
        ask, score = partial(zeroshot, out=asked), "zeroshot/accuracy"
        prompt = once(asked, cell | {"prompts": prompts}, ask, anew=anew, taken=partial(only, score))[score]
        bar.update()
        for number in numbers:
            for seed in range(seeds):
                folder, flags = out / "runs" / f"{number}-{seed}", flags_of(number)
                one = partial(finetune, out=folder, seed=seed, flags=flags)
                score = "test/accuracy"
                found = once(folder, cell | {"rows": flags}, one, anew=anew, taken=partial(only, score))
                line.setdefault(number, []).append(found[score])
                bar.update()
    figures = {"zeroshot": prompt, "finetuned": {str(n): scores for n, scores in line.items()}}
    figures["labels"] = crossing({n: metrics.mean_and_deviation(scores)[0] for n, scores in line.items()}, prompt)
    write_atomically(out / "worth.json", json.dumps(figures, indent=2) + "\n")
    plot(line, prompt, figures["labels"], out / "worth.png")
    return figures


def only(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Raises: LookupError, it is not there, or cannot be."""
    return {name: figure(figures, name, most=1)}


def flags_of(rows: int) -> list[str]:
    epochs = max(5, math.ceil(STEPS * BATCH / rows))
    # The last step is tested: to choose among several would take the labels of the validation part.
    return [f"--data.train_rows={rows}", f"--data.batch_size={BATCH}", f"--data.epochs={epochs}", "--validations=1"]


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


def plot(line: dict[int, list[float]], prompt: float, labels: float | None, file: Path) -> None:

    figure, axes = plots.subplots(figsize=(6.5, 4))
    numbers = sorted(line)
    means, deviations = zip(*(metrics.mean_and_deviation(line[number]) for number in numbers), strict=True)
    axes.errorbar(numbers, means, yerr=deviations, marker="o", capsize=3, label="fine-tuned (mean ± std over seeds)")
    axes.axhline(prompt, color="C1", linestyle="--", label="zero-shot (mean of the templates)")
    if labels is not None:
        axes.axvline(labels, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
    axes.set_xlabel("labelled rows")
    axes.set_ylabel("accuracy on the test part")
    axes.legend()
    plots.save_figure(figure, file)
