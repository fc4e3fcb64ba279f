"""`make zeroshot`: a task's prompts put to an encoder, and the run folder that this leaves."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from pipeline.data.documents import Source
from pipeline.data.files import find_files
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.prompting import evaluate as zeroshot
from pipeline.prompting.evaluate import Result
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.storage.json_lines import json_line
from pipeline.tracking import lineage, plots
from pipeline.tracking.history import write_metrics
from pipeline.tracking.tables import markdown_line, markdown_table
from pipeline.tracking.wandb import closing_run, use_artifact, wandb_logger
from pipeline.training.run_folder import begun, clear
from pipeline.training.task_data import rows_of
from tasks.base import Row, Task


def run(
    encoder: Encoder,
    task: Task,
    out: Path,
    *,
    files: str | None,
    shots: list[int],
    seed: int,
    limit: int,
    folder: Path,
    tags: list[str],
    group: str,
    log_text: bool,
    unigram: str | None = None,
) -> None:
    """Asks all prompts, for each number of shots, and writes metrics.json, predictions.jsonl and plots into `out`.

    Args:
        unigram: texts whose words' frequencies alone are a baseline.

    Raises:
        UserError: a task without prompts or without the parts that are needed; a baseline that it cannot have.
    """
    if not task.prompts:
        raise UserError("This task has no prompts; write some into its YAML file (see configs/tasks/sentiment.yaml).")
    if unigram is not None and any(prompt.shape == "last_word" for prompt in task.prompts):
        raise UserError("--unigram compares candidates by their words; a last_word prompt has only one.")
    source = None if unigram is None else Source(files=find_files(unigram))
    rows, examples = read(task, files, limit=limit, with_examples=max(shots) > 0)
    zeroshot.demonstrations(task, examples, max(shots), seed)  # are there so many?
    settings = {"shots": shots, "seed": seed, "limit": limit, "files": files}
    config = {"task": tags[1], "encoder": str(folder), **settings}
    came = [*lineage.read(folder), {"stage": "task", "name": tags[1], "sha256": digest(rows), "rows": len(rows)}]
    logged = {**config, "lineage": came}
    print(f"encoder     {folder}: {zeroshot.method(encoder, task)}")
    print(f"task        {len(rows):,} rows, {len(task.prompts)} prompts, shots {', '.join(map(str, shots))}")
    total = requests_of(task, rows) * len(shots)
    results: dict[int, list[Result]] = {}
    with tqdm(total=total, desc="zeroshot", unit="text", file=sys.stderr) as bar:
        for count in shots:
            results[count] = zeroshot.evaluate(
                encoder, task, rows, examples, shots=count, seed=seed, progress=lambda n: bar.update(n)
            )
    figures = figures_of(task, rows, results)
    if source is not None:
        counts = zeroshot.word_counts(paragraph for document, _ in source.documents() for paragraph in document)
        answers = results[min(results)][0].answers
        right = zeroshot.unigram(answers, counts)
        figures["baseline/unigram"] = sum(right) / len(right)
        for column in getattr(task, "groups", []):
            for name, (accuracy, _) in zeroshot.by_group(right, rows, column).items():
                figures[f"baseline/unigram/{column}/{name}"] = accuracy
    # Only now: a prompt that cannot be asked costs no run that was there.
    clear(out)
    run_stage = partial(lineage.run_stage, "zeroshot", out, seed=seed, config=config)
    lineage.write(out, [*came, run_stage()])  # now the folder is known for a run's
    write_atomically(out / "config.yaml", yaml.safe_dump(config, sort_keys=False))
    logger = wandb_logger(out, job_type="zeroshot", group=group, tags=tags, config=logged)
    lineage.write(out, [*came, run_stage()])  # with its id in W&B
    found = [row for parts in results.values() for part in parts for row in zeroshot.predictions(part, rows)]
    write_atomically(out / "predictions.jsonl", "".join(map(json_line, found)))
    if len(shots) > 1:
        plots.plot_shots({count: zeroshot.summary(parts) for count, parts in results.items()}, out / "shots.png")
    write_metrics(out, figures)
    begun(out)  # an upload that is interrupted costs no answers
    print(report(task, rows, results))
    if unigram is not None:
        print(f"frequency of words alone {figures['baseline/unigram']:.3f}")
    print(f"Saved metrics.json and predictions.jsonl in {out}")
    if logger is not None:
        with closing_run(logger) as wandb_run:
            use_artifact(logger, folder)
            tell(wandb_run, out, figures, found if log_text else [])


def read(task: Task, files: str | None, *, limit: int, with_examples: bool) -> tuple[list[Row], list[Row]]:
    """The rows to ask about, and those of the training part."""
    parts = {split: rows_of(task, files, split) for split in ("train", "test") if split == "test" or _has(task, split)}
    rows, examples = parts["test"], parts.get("train") or []
    if not rows:
        raise UserError("The task has no test part" + (f" at {files}." if files else "."))
    if with_examples and not examples:
        raise UserError("SHOTS needs a training part, which this task has not.")
    if task.head != "none":
        task.learn_labels(examples or rows)
    kept = [row for row in rows if not task.is_ignored(row)]
    if not kept:
        raise UserError("No row of the task's test part has a label.")
    for row in kept:
        if task.head != "none":
            task.example(row, {name: i for i, name in enumerate(task.label_names)})
    return kept[: limit or None], [row for row in examples if not task.is_ignored(row)]


def _has(task: Task, split: str) -> bool:
    return task.sample is not None or split in task.splits


def requests_of(task: Task, rows: list[Row]) -> int:
    """How many texts are scored for one number of shots."""
    return sum(1 if p.shape == "last_word" else len(p.candidates) for p in task.prompts) * len(rows)


def figures_of(task: Task, rows: list[Row], results: dict[int, list[Result]]) -> dict[str, Any]:
    """`zeroshot/NAME` over templates, `.../template_1/NAME` of each, `zeroshot/shots_4/...` for further shots."""
    figures: dict[str, Any] = {"zeroshot/rows": len(rows)}
    for count, parts in results.items():
        prefix = "zeroshot" if count == min(results) else f"zeroshot/shots_{count}"
        figures |= {f"{prefix}/{name}": value for name, value in zeroshot.summary(parts).items()}
        for number, part in enumerate(parts, start=1):
            figures |= {f"{prefix}/template_{number}/{name}": value for name, value in part.figures.items()}
        for column in getattr(task, "groups", []):
            right = [answer.credit("sum") for answer in parts[0].answers]
            for name, (accuracy, _) in zeroshot.by_group(right, rows, column).items():
                figures[f"{prefix}/{column}/{name}"] = accuracy
    return figures


def report(task: Task, rows: list[Row], results: dict[int, list[Result]]) -> str:
    """Tables to read: a row for each template and number of shots, then one for each group."""
    first = next(iter(results.values()))[0].figures
    rules = [name for name in first if name.startswith("accuracy_")]
    head = ["shots", "template", "accuracy", *[name[9:].replace("_", " ") for name in rules], "chosen"]
    lines = markdown_table(head, []).splitlines()
    for count, parts in results.items():
        for number, part in enumerate(parts, start=1):
            f = part.figures
            others = [f"{f[name]:.3f}" if name in f else "" for name in rules]
            chosen = " ".join(f"{f[name]:.2f}" for name in f if name.startswith("chosen_"))
            cells = [str(count), str(number), f"{f['accuracy']:.3f} ± {f['standard_error']:.3f}", *others, chosen]
            lines.append(markdown_line(cells).rstrip())
            if part.dropped:
                lines.append(f"({part.dropped:,} examples did not fit in front of template {number})")
            if part.shortened:
                lines.append(
                    f"({part.shortened:,} texts behind the candidates of template {number} were cut at their end)"
                )
        found = zeroshot.summary(parts)
        if len(parts) > 1:
            spread = f"{found['accuracy_min']:.3f} to {found['accuracy_max']:.3f}"
            lines.append(f"(mean of the templates {found['accuracy']:.3f}, {spread})")
    if "chance" in first:
        floors = f"chance {first['chance']:.3f}"
        floors += f", majority {first['majority']:.3f}" if "majority" in first else ""
        lines.append(f"{floors}; ± one standard error, a 95 % interval is twice as wide")
    else:
        lines.append(f"perplexity of the word {first['perplexity']:.2f}")
    for name, text in (
        ("cut", "texts were cut on the left"),
        ("unknown_words", "rows have words unknown to it"),
        ("ties", "rows are ties"),
    ):
        if first.get(name):
            lines.append(f"{first[name]:,.0f} {text}")
    for column in getattr(task, "groups", []):
        lines.append(f"{column}:")
        right = [answer.credit("sum") for answer in next(iter(results.values()))[0].answers]
        for name, (accuracy, count) in zeroshot.by_group(right, rows, column).items():
            lines.append(f"  {name:<45} {accuracy:.3f}  ({count:,})")
    return "\n".join(lines)


def tell(wandb_run: Any, out: Path, figures: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Figures, plots and the first of the answers, for Weights & Biases."""
    import wandb

    wandb_run.summary.update(figures)
    names: list[str | int] = ["context", "candidates", "log_likelihoods", "choice", "gold", "right"]
    if found:
        cells = [[str(row[str(name)]) for name in names] for row in found[:200]]
        wandb_run.log({"examples": wandb.Table(names, cells)})
    for picture in out.glob("*.png"):
        wandb_run.log({picture.stem: wandb.Image(str(picture))})
