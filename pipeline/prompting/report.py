"""Zero-shot evaluation as a run: reads rows, evaluates, writes the run folder, prints tables, logs to W&B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.console.progress import progress
from pipeline.data import labeled
from pipeline.data.documents import Source
from pipeline.data.files import find_files
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.presets import task_file
from pipeline.prompting.evaluate import Result, evaluate
from pipeline.prompting.few_shot import demonstrations
from pipeline.prompting.metrics import by_group, summary, unigram_credits, word_counts
from pipeline.prompting.scoring import scorer_of
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.storage.json_lines import json_line
from pipeline.tracking import lineage, plots
from pipeline.tracking.artifacts import use_artifact
from pipeline.tracking.history import write_metrics
from pipeline.tracking.tables import markdown_line, markdown_table
from pipeline.tracking.wandb import closing_run, wandb_logger
from pipeline.training import advice
from pipeline.training.requests import ZeroShotRequest
from pipeline.training.run import group_of
from pipeline.training.run_folder import begun, clear
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
            "task": self.name,
            "encoder": str(self.folder),
            "shots": list(request.shots),
            "seed": request.seed,
            "limit": request.limit,
            "files": request.data,
        }


def run(prompting: Prompting) -> None:
    """Evaluates all prompts, for each number of shots; writes metrics.json, predictions.jsonl and plots.

    Raises:
        UserError: the encoder cannot be prompted, the task has no prompts or lacks a part that is needed, or cannot
            have the baseline.
    """
    request, encoder, task = prompting.request, prompting.encoder, prompting.task
    folder, out, name = prompting.folder, prompting.out, prompting.name
    method = scorer_of(encoder).describe({prompt.shape for prompt in task.prompts})
    check_prompts(task, task_file(request.task))
    if request.unigram is not None and any(prompt.shape == "last_word" for prompt in task.prompts):
        raise UserError("--unigram compares candidates by their words; a last_word prompt has only one.")
    source = None if request.unigram is None else Source(files=find_files(request.unigram))
    rows, examples = read(task, request.data, limit=request.limit, with_examples=max(request.shots) > 0)
    shown = {count: demonstrations(task, examples, count, request.seed) for count in request.shots}
    inform(
        f"encoder     {folder}: {method}",
        f"task        {len(rows):,} rows, {len(task.prompts)} prompts, shots {', '.join(map(str, request.shots))}",
    )
    with progress(total=requests_of(task, rows) * len(shown), desc="zeroshot", unit="text") as bar:
        results = evaluate(encoder, task, rows, shown, progress=bar.update)
    metrics = metrics_of_run(task, rows, results)
    if source is not None:
        metrics |= unigram_baseline(source, task, rows, results)

    stages = [*lineage.read(folder), {"stage": "task", "name": name, "sha256": digest(rows), "rows": len(rows)}]
    clear(out)  # only now: a prompt that cannot be scored leaves an earlier run as it was
    run_stage = partial(lineage.run_stage, "zeroshot", out, seed=request.seed, config=prompting.config)
    lineage.write(out, [*stages, run_stage()])  # marks the folder as a run folder
    write_atomically(out / "config.yaml", yaml.safe_dump(prompting.config, sort_keys=False))
    write_atomically(out / "command.txt", replace(request, encoder=folder).command("zeroshot") + "\n")
    logger = wandb_logger(
        out,
        job_type="zeroshot",
        group=group_of(request.model, encoder.tokenizer),
        tags=[request.model, name, "zeroshot"],
        config={**prompting.config, "lineage": stages},
        seed=request.seed,
    )
    lineage.write(out, [*stages, run_stage()])  # with its id in W&B
    predictions = [row for parts in results.values() for part in parts for row in predictions_of(part, rows)]
    write_atomically(out / "predictions.jsonl", "".join(map(json_line, predictions)))
    if len(results) > 1:
        title = f"{request.model} on {name}, prompted: {len(rows):,} rows of the test part"
        plots.plot_shots({count: _summary(parts) for count, parts in results.items()}, out / "shots.png", title=title)
    write_metrics(out, metrics)
    begun(out)  # an upload that is interrupted costs no answers
    print(report(task, rows, results))
    for parts in results.values():
        if warning := not_better_than_guessing(parts):
            print(warning)
    if source is not None:
        print(f"word-frequency baseline {metrics['baseline/unigram']:.3f}")
    print(advice.saved(out))
    named = {name: getattr(request, name) for name in ("model", "task", "data")}
    inform(advice.after_zeroshot(**named, encoder=folder, out=out, trained=isinstance(task, Task)))
    if logger is not None:
        with closing_run(logger) as wandb_run:
            use_artifact(logger, folder)
            log_to_wandb(wandb_run, out, metrics, predictions if request.data is None or request.log_text else [])


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
        parts = {split: labeled.rows_of(task, files, split) or [] for split in ("train", "test")}
        examples, rows = ([row for row in part if not task.is_ignored(row)] for part in parts.values())
    if not rows:
        raise UserError("The task has no test part" + (f" at {files}." if files else "."))
    if with_examples and not examples:
        raise UserError(f"{typed.flag('shots')} needs a training part, which this task does not have.")
    return rows[: limit or None], examples


def requests_of(task: DataSet, rows: Sequence[Row]) -> int:
    """How many texts are scored for one number of shots."""
    return sum(1 if p.shape == "last_word" else len(p.candidates) for p in task.prompts) * len(rows)


# ---------------------------------------------------------------------- metrics


def metrics_of_run(task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]) -> dict[str, Any]:
    """`zeroshot/NAME` over templates, `.../template_1/NAME` of each, `zeroshot/shots_4/...` for further shots."""
    metrics: dict[str, Any] = {"zeroshot/rows": len(rows)}
    for count, parts in results.items():
        prefix = "zeroshot" if count == min(results) else f"zeroshot/shots_{count}"
        metrics |= {f"{prefix}/{name}": value for name, value in _summary(parts).items()}
        for number, part in enumerate(parts, start=1):
            metrics |= {f"{prefix}/template_{number}/{name}": value for name, value in part.metrics.items()}
        metrics |= _by_groups(prefix, task, rows, _credits(parts[0]))
    return metrics


def unigram_baseline(
    source: Source, task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]
) -> dict[str, float]:
    """Accuracy of the word-frequency baseline, and by group."""
    counts = word_counts(paragraph for document, _ in source.documents() for paragraph in document)
    questions = [answer.question for answer in results[min(results)][0].answers]
    credits = unigram_credits(questions, counts)
    name = "baseline/unigram"
    return {name: sum(credits) / len(credits), **_by_groups(name, task, rows, credits)}


def _summary(parts: Sequence[Result]) -> dict[str, float]:
    return summary([part.metrics for part in parts])


def _credits(part: Result) -> list[float]:
    return [answer.credit("sum") for answer in part.answers]


def _by_groups(prefix: str, task: DataSet, rows: Sequence[Row], credits: Sequence[float]) -> dict[str, float]:
    return {
        f"{prefix}/{column}/{name}": accuracy
        for column in getattr(task, "groups", [])
        for name, (accuracy, _) in by_group(credits, rows, column).items()
    }


# ---------------------------------------------------------------------- predictions and tables


def predictions_of(result: Result, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each question: its texts, and the scores of each candidate."""
    return [
        {
            "id": row.get("idx", row.get("pairID", row.get("id", number))),
            "place": place,
            "shots": result.shots,
            "template": result.prompt.text,
            "context": answer.question.left,
            "behind": answer.question.right,
            "candidates": answer.question.candidates,
            "tokens": [scored.tokens for scored in answer.scored],
            "log_likelihoods": [scored.total for scored in answer.scored],
            "scores": answer.scores,
            "choice": answer.choice("sum"),
            "gold": answer.question.gold,
            "right": answer.credit("sum"),
        }
        for number, (answer, (place, row)) in enumerate(zip(result.answers, rows, strict=True))
    ]


def report(task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]) -> str:
    """Tables to read: a row for each template and number of shots, then one for each group."""
    first = next(iter(results.values()))[0]
    rules = [name for name in first.metrics if name.startswith("accuracy_")]
    head = ["shots", "template", "accuracy", *[name[9:].replace("_", " ") for name in rules], "chosen"]
    lines = [
        f"template {number}  {part.prompt.text!r}"
        + (f", then {' or '.join(map(repr, candidates))}" if (candidates := candidates_of(part)) else "")
        for number, part in enumerate(next(iter(results.values())), start=1)
    ]
    lines += markdown_table(head, []).splitlines()
    for parts in results.values():
        for number, part in enumerate(parts, start=1):
            lines += _template_lines(number, part, rules, task.label_names)
        means = _summary(parts)
        if len(parts) > 1:
            spread = f"{means['accuracy_min']:.3f} to {means['accuracy_max']:.3f}"
            lines.append(f"(mean of the templates {means['accuracy']:.3f}, {spread})")
    lines += _notes(first.metrics)
    for column in getattr(task, "groups", []):
        lines.append(f"{column}:")
        for name, (accuracy, count) in by_group(_credits(first), rows, column).items():
            lines.append(f"  {name:<45} {accuracy:.3f}  ({count:,})")
    return "\n".join(lines)


def not_better_than_guessing(parts: Sequence[Result]) -> str | None:
    """A warning where the mean of the templates does not beat chance, or the most frequent label."""
    guesses: dict[str, float] = {
        name: parts[0].metrics[name] for name in ("chance", "majority") if name in parts[0].metrics
    }
    return advice.not_better(_summary(parts)["accuracy"], guesses, mode="max") if guesses else None


def candidates_of(part: Result) -> list[str]:
    """The candidates of a prompt that has one for each label, in the order of labels in the data."""
    candidates = part.prompt.candidates
    return list(candidates.values()) if isinstance(candidates, dict) else []


def _template_lines(number: int, part: Result, rules: Sequence[str], labels: Sequence[str]) -> list[str]:
    f = part.metrics
    others = [f"{f[name]:.3f}" if name in f else "" for name in rules]
    shares = [f[name] for name in f if name.startswith("chosen_")]
    names = labels if isinstance(part.prompt.candidates, dict) else [str(place + 1) for place in range(len(shares))]
    chosen = ", ".join(f"{name} {share:.2f}" for name, share in zip(names, shares, strict=False))
    accuracy = f"{f['accuracy']:.3f} ± {f['standard_error']:.3f}"
    lines = [markdown_line([str(part.shots), str(number), accuracy, *others, chosen]).rstrip()]
    if part.dropped:
        lines.append(f"({part.dropped:,} examples did not fit in front of template {number})")
    if part.shortened:
        lines.append(f"({part.shortened:,} texts behind the candidates of template {number} were cut at their end)")
    return lines


def _notes(f: Mapping[str, float]) -> list[str]:
    """What the metrics of the first template compare with, and what of its rows is special."""
    if "chance" in f:
        baselines = f"chance {f['chance']:.3f}" + (f", majority {f['majority']:.3f}" if "majority" in f else "")
        lines = [f"{baselines}; ± one standard error, a 95 % interval is twice as wide"]
    else:
        lines = [f"perplexity of the word {f['perplexity']:.2f}"]
    for name, text in (
        ("cut", "texts were cut on the left"),
        ("unknown_words", "rows have words unknown to it"),
        ("ties", "rows are ties"),
    ):
        if f.get(name):
            lines.append(f"{f[name]:,.0f} {text}")
    return lines


def log_to_wandb(wandb_run: Any, out: Path, metrics: dict[str, Any], predictions: list[dict[str, Any]]) -> None:
    """Metrics, plots and the first of the predictions."""
    import wandb

    wandb_run.summary.update(metrics)
    names: list[str | int] = ["context", "candidates", "log_likelihoods", "choice", "gold", "right"]
    if predictions:
        cells = [[str(row[str(name)]) for name in names] for row in predictions[:LOGGED_ROWS]]
        wandb_run.log({"examples": wandb.Table(names, cells)})
    for picture in out.glob("*.png"):
        wandb_run.log({picture.stem: wandb.Image(str(picture))})
