"""Zero-shot evaluation as a run: reads rows, evaluates, writes the run folder, prints tables, logs to W&B."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.console.progress import progress
from pipeline.data import labeled, row_sources
from pipeline.data.documents import Source
from pipeline.data.files import find_files
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import set_language
from pipeline.presets.tasks import task_file
from pipeline.prompting.evaluate import Result, evaluate
from pipeline.prompting.few_shot import demonstrations, unseen
from pipeline.prompting.report import (
    metrics_of_run,
    not_better_than_guessing,
    predictions_of,
    summary_of,
    tables,
    unigram_baseline,
)
from pipeline.prompting.scoring import scorer_of
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.storage.json_lines import json_line
from pipeline.tracking import lineage, plots
from pipeline.tracking.history import LOCAL, write_metrics
from pipeline.tracking.wandb import ResumableWandb, end_run
from pipeline.tracking.wandb_artifacts import use_artifact
from pipeline.training import advice
from pipeline.training.configuration import Record, group_of
from pipeline.training.hardware import device_name
from pipeline.training.opening import open_run
from pipeline.training.requests import ZeroShotRequest
from pipeline.training.run_folder import discard_old, set_aside
from pipeline.version import __version__
from tasks.base import Task
from tasks.dataset import DataSet, Row

LOGGED_ROWS = 200  # of a table in Weights & Biases


@dataclass
class Prompting:
    """A request with what it names, opened.

    Args:
        name: of the task.
        folder: of the encoder.
        out: the run folder.
    """

    request: ZeroShotRequest
    encoder: Encoder
    task: DataSet
    name: str
    folder: Path
    out: Path

    @property
    def config(self) -> dict[str, Any]:
        """The settings, as config.yaml has them."""
        request = self.request
        return {
            "model": str(request.model),  # YAML knows no kinds of text
            "task": self.name,
            "encoder": str(self.folder),
            "shots": list(request.shots),
            "seed": request.seed,
            "limit": request.limit,
            "files": request.data,
            "unigram": request.unigram,
            "log_text": request.log_text,
        }

    def conditions(self, seconds: float) -> dict[str, Any]:
        """What the scores depend on, as in the metrics of training."""
        return {
            "encoder": lineage.weights_of(lineage.read(self.folder))[:12],
            "seconds": round(seconds, 2),
            "device": device_name(self.encoder.device),
            "seed": self.request.seed,
            "version": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def run(prompting: Prompting) -> None:
    """Evaluates all prompts, for each number of shots; writes metrics.json, predictions.jsonl and plots.

    Raises:
        UserError: the encoder cannot be prompted, the task has no prompts or lacks a part that is needed, or cannot
            have the baseline.
    """
    request, encoder, task = prompting.request, prompting.encoder, prompting.task
    folder, out = prompting.folder, prompting.out
    method = scorer_of(encoder).describe({prompt.shape for prompt in task.prompts})
    check_prompts(task, task_file(request.task))
    if request.unigram is not None and any(prompt.shape == "last_word" for prompt in task.prompts):
        raise UserError("--unigram compares candidates by their words; a last_word prompt has only one.")
    source = None if request.unigram is None else Source(files=find_files(request.unigram))
    rows, known = read(task, request.data, limit=request.limit, with_examples=max(request.shots) > 0)
    examples = unseen(task, known, rows) if max(request.shots) > 0 else known
    shown = {count: demonstrations(task, examples, count, request.seed) for count in request.shots}
    left_out = len(known) - len(examples)
    language_note = set_language(encoder, task.language)
    inform(
        f"encoder     {folder}: {method}",
        *([] if language_note is None else [f"            {language_note}"]),
        f"task        {len(rows):,} rows, {len(task.prompts)} prompts, shots {', '.join(map(str, request.shots))}",
        *(
            [f"            {left_out:,} rows of the training part are questions too: they are no examples"]
            if left_out
            else []
        ),
    )
    began = time.perf_counter()
    with progress(total=count_requests(task, rows) * len(shown), desc="zeroshot", unit="text") as bar:
        results = evaluate(encoder, task, rows, shown, progress=bar.update)
    metrics = metrics_of_run(task, rows, results) | prompting.conditions(time.perf_counter() - began)
    if source is not None:
        metrics |= unigram_baseline(source, task, rows, results)
    set_aside(out)  # only now: a prompt that cannot be scored leaves an earlier run as it was
    predictions = [row for parts in results.values() for part in parts for row in predictions_of(part, rows)]
    logger = _save(prompting, rows, results, metrics, predictions)
    _announce(prompting, rows, results, metrics)
    if logger is not None:
        public = predictions if row_sources.is_public(task, request.data) or request.log_text else []

        def log(wandb_run: Any) -> None:
            use_artifact(logger, folder)
            log_to_wandb(wandb_run, out, metrics, public)

        end_run(logger, log)


def _save(
    prompting: Prompting,
    rows: Sequence[Row],
    results: Mapping[int, Sequence[Result]],
    metrics: dict[str, Any],
    predictions: Sequence[dict[str, Any]],
) -> ResumableWandb | None:
    """Writes the run folder, and opens the run in Weights & Biases."""
    request, out, name = prompting.request, prompting.out, prompting.name
    task = {"stage": "task", "name": name, "sha256": digest(rows), "rows": len(rows)}
    record = Record(
        job_type="zeroshot",
        group=group_of(request.model, prompting.encoder.tokenizer),
        tags=[request.model, name, "zeroshot"],
        seed=request.seed,
        stages=[*lineage.read(prompting.folder), task],
        command=replace(request, encoder=prompting.folder).command("zeroshot"),
    )
    logger, _ = open_run(out, record, prompting.config)
    write_atomically(out / "predictions.jsonl", "".join(map(json_line, predictions)))
    if len(results) > 1:
        title = f"{request.model} on {name}, prompted: {len(rows):,} rows of the test part"
        plots.plot_shots({count: summary_of(parts) for count, parts in results.items()}, out / "shots.png", title=title)
    write_metrics(out, metrics)
    discard_old(out)  # an upload that is interrupted costs no answers
    return logger


def _announce(
    prompting: Prompting, rows: Sequence[Row], results: Mapping[int, Sequence[Result]], metrics: dict[str, Any]
) -> None:
    """Prints the tables, warnings, and what to do next."""
    request, task = prompting.request, prompting.task
    print(tables(task, rows, results))
    for parts in results.values():
        if warning := not_better_than_guessing(parts):
            print(warning)
    if request.unigram is not None:
        print(f"word-frequency baseline {metrics['baseline/unigram']:.3f}")
    print(advice.saved(prompting.out))
    named = {name: getattr(request, name) for name in ("model", "task", "data")}
    trained = isinstance(task, Task)
    inform(advice.after_zeroshot(**named, encoder=prompting.folder, out=prompting.out, trained=trained))


def check_prompts(task: DataSet, file: Path) -> None:
    """Raises: UserError, the task has none."""
    if not task.prompts:
        candidates = ", ".join(f"{name}: ' ...'" for name in task.label_names) or "..."
        shown = f"{{shape: choice, text: '{{text}} It was', candidates: {{{candidates}}}}}"
        raise UserError(f"{file} has no prompts; write some there, as in configs/tasks/sentiment.yaml: {shown}.")


def read(task: DataSet, files: str | None, *, limit: int, with_examples: bool) -> tuple[list[Row], list[Row]]:
    """The rows of the test part, and those of the training part.

    Raises:
        UserError: a part that is needed is missing, or has no label.
    """
    if isinstance(task, Task):
        found = labeled.read(task, files, splits=("train", "test"))
        rows, examples = found.parts["test"].rows, found.parts["train"].rows if "train" in found.parts else []
        if "test" in found.made:
            print(f"test        {len(rows):,} rows: {found.made['test']}, as in fine-tuning")
    else:
        parts = {split: row_sources.rows_of(task, files, split) or [] for split in ("train", "test")}
        examples, rows = ([row for row in part if not task.is_ignored(row)] for part in parts.values())
    if not rows:
        raise UserError("The task has no test part" + (f" at {files}." if files else "."))
    if with_examples and not examples:
        raise UserError(f"{typed.flag('shots')} needs a training part, which this task does not have.")
    return rows[: limit or None], examples


def count_requests(task: DataSet, rows: Sequence[Row]) -> int:
    """How many texts are scored for one number of shots."""
    return sum(1 if p.shape == "last_word" else len(p.candidates) for p in task.prompts) * len(rows)


def log_to_wandb(wandb_run: Any, out: Path, metrics: dict[str, Any], predictions: list[dict[str, Any]]) -> None:
    """Metrics, plots and the first of the predictions."""
    import wandb

    wandb_run.summary.update({name: value for name, value in metrics.items() if name not in LOCAL})
    names: list[str | int] = ["context", "candidates", "log_likelihoods", "choice", "gold", "right"]
    if predictions:
        cells = [[str(row[str(name)]) for name in names] for row in predictions[:LOGGED_ROWS]]
        wandb_run.log({"examples": wandb.Table(names, cells)})
    for picture in out.glob("*.png"):
        wandb_run.log({picture.stem: wandb.Image(str(picture))})
