"""Messages at the end of a run: the files that it wrote, a score that is no better than a baseline, what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline import metrics
from pipeline.console import typed
from pipeline.presets.files import DEFAULT_MODEL, DEFAULT_TASK, pretrained
from pipeline.training.requests import FineTuneRequest

MANY_PASSES = 50  # over a text
INTERNAL = ("checkpoints", "wandb")  # of a run folder: for resuming, and for Weights & Biases


def saved(out: Path, made: Path | None = None) -> str:
    """`Saved OUT/encoder; config.yaml, curves.png, ... in OUT`: all files of a run."""
    folders = (*INTERNAL, *([made.name] if made else []))
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".") and path.name not in folders)
    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
    return f"Saved {f'{made}; ' if made else ''}{listed} in {out}"


def many_passes(steps: int, *, rows: int, there: int) -> str | None:
    """A note where a run reads its text so often that it learns it by heart.

    Args:
        rows: of a step.
        there: rows of the text.
    """
    passes = steps * rows / max(1, there)
    if passes <= MANY_PASSES:
        return None
    return f"Note: {steps:,} steps read the text about {passes:,.0f} times: fewer steps, or more text, serve better."


def not_better(score: float, baselines: Mapping[str, float], *, mode: str, where: str = "") -> str | None:
    """A warning where a score does not beat each baseline.

    Args:
        mode: `max` where more is better, else `min`.
        where: what the score is of, in front of it.
    """
    sign = metrics.sign(mode)
    above = {name: value for name, value in baselines.items() if not math.isnan(value) and sign * (score - value) <= 0}
    if not above:
        return None
    named = " and ".join(f"{name.replace('_', ' ')} ({value:.4f})" for name, value in above.items())
    return f"Warning: {where}{score:.4f} is not better than the baseline{'s' if len(above) > 1 else ''} {named}."


def losses_above(losses: Mapping[str, tuple[float | None, float]]) -> str | None:
    """A warning where a loss of pretraining is not below that of guessing each token by its frequency.

    Args:
        losses: by name, that of the validation text and its unigram baseline.
    """
    above = {name: both for name, both in losses.items() if both[0] is not None and not both[0] < both[1]}
    if not above:
        return None
    said = " and ".join(f"{name} {loss:.4g} (unigram {baseline:.4g})" for name, (loss, baseline) in above.items())
    verb = "are" if len(above) > 1 else "is"
    return f"Warning: {said} {verb} not below the baseline: the model predicts no better than token frequencies do."


def next_steps(*steps: tuple[str, str]) -> str:
    """Commands with what they do."""
    width = max(len(command) for command, _ in steps)
    return "\n".join(
        f"{'Next:' if not number else '     '} {command:<{width}}  # {what}"
        for number, (command, what) in enumerate(steps)
    )


def _other_than_default(model: str) -> str | None:
    return None if model == DEFAULT_MODEL else model


def _unless_default(encoder: Path, model: str) -> Path | None:
    return None if encoder == pretrained(model) else encoder


def after_pretraining(
    model: str,
    encoder: Path,
    *,
    synthetic: bool,
    counted: bool,
    parallel: bool,
    task: str,
    data: str | None,
) -> str:
    """The sample has tasks about its synthetic world; other text needs the user's own.

    Args:
        task: whose texts it was, with their `data`.
        counted: what is fine-tuned by counting takes no encoder that is not named.
        parallel: whether the texts were translations of each other.
    """
    named, where = _other_than_default(model), encoder if counted else _unless_default(encoder, model)
    if parallel:
        translations = task or (None if synthetic else "mine")
        command = typed.command("retrieval", model=named, task=translations, data=data, from_=where)
        own = typed.command("new-task", name="mine", kind="translation", data="pairs.tsv")
        new = [] if task or synthetic else [(own, "describe texts and translations of your own")]
        return next_steps(*new, (command, "find translations by its vectors"))
    if synthetic and not task:
        command = typed.command("finetune", model=named, task=DEFAULT_TASK, from_=where)
        return next_steps((command, "fine-tune it on the sample's sentiment task"))
    if task:
        return next_steps(
            (typed.command("finetune", model=named, task=task, data=data, from_=where), "fine-tune on it")
        )
    return next_steps(
        (typed.command("new-task", name="mine", data="reviews.csv"), "describe a labeled data set of your own"),
        (typed.command("finetune", model=named, task="mine", data="reviews.csv", from_=where), "fine-tune on it"),
    )


def after_finetuning(
    request: FineTuneRequest, *, encoder: Path | None, out: Path, answers: str, settings: Sequence[str] | None
) -> str:
    """Answers to new texts; and the other arm, without which a score says little of pretraining.

    Args:
        encoder: the folder that was fine-tuned, if any.
        out: the run folder.
        answers: what `predict` gives.
        settings: flags that the user gave, as the other arm takes them: with other settings the difference would not be
            that of pretraining. None: the model has no such arm.
    """
    named = _other_than_default(request.model)
    predict = (typed.command("predict", from_=out / "model", data="FILE"), f"{answers} of new texts")
    if settings is None or encoder is None:
        return next_steps(predict)
    where = _unless_default(encoder, request.model)
    again = {"model": named, "task": request.task, "data": request.data, "from_": where}
    if request.arm == "scratch" and any(word.startswith("--config") for word in settings):
        return next_steps(predict)  # many runs take no such file
    if request.arm == "scratch":
        return next_steps(
            predict, (typed.command("finetune", *settings, **again, seeds=5), "what pretraining gains, with intervals")
        )
    scratch = typed.command("finetune", *settings, **again, arm="scratch", seed=request.seed or None)
    return next_steps((scratch, "the same network without pretraining"), predict)


def after_zeroshot(*, model: str, task: str, data: str | None, encoder: Path, out: Path, trained: bool) -> str:
    """What labels would give, where the task can be trained on; else a page of the answers."""
    named = _other_than_default(model)
    given = {"model": named, "task": task, "data": data, "from_": _unless_default(encoder, model)}
    if not trained:
        return next_steps((typed.command("report", from_=out), "the scores as a page"))
    return next_steps(
        (typed.command("finetune", **given), "train on the labels of the same task"),
        (typed.command("worth", **given), "how many labels the prompt is worth"),
    )
