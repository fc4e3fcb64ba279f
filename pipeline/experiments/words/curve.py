"""Accuracy over words seen: a task's prompts put to the encoders that pretraining runs have saved on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.console.progress import progress
from pipeline.data.row_sources import source_hash
from pipeline.errors import UserError
from pipeline.experiments.many_runs import ZeroShot
from pipeline.experiments.run_cache import finite, run_once
from pipeline.experiments.words import plot as words_plot
from pipeline.experiments.words.saved import Curve, model_of
from pipeline.models.folder import FILES
from pipeline.presets.tasks import task_file, task_hash, task_of
from pipeline.prompting.run import check_prompts
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.csv_table import csv_table
from pipeline.tracking.groups import MOST, by_column
from pipeline.tracking.tables import markdown_table
from pipeline.tracking.words_seen import name_of
from pipeline.training.requests import ZeroShotRequest
from pipeline.training.run_folder import check_place


def measure(
    request: ZeroShotRequest,
    curves: Sequence[Curve],
    out: Path,
    zeroshot: ZeroShot,
    *,
    overwrite: bool,
) -> None:
    """Asks each encoder that has not answered yet; writes curve.csv, curve.md and curve.png.

    Args:
        request: task, data and settings of all runs.
        overwrite: ask again.

    Raises:
        UserError: the task has no prompts, or an encoder cannot be asked.
    """
    file = task_file(request.task)
    task = task_of(file)
    check_prompts(task, file)
    if len(request.shots) > 1:
        raise UserError(f"A curve over words has one number of shots: set {typed.flag('shots', request.shots[0])}.")
    check_place(out)
    asked = {name: repr(getattr(request, name)) for name in ("shots", "limit", "seed", "unigram")}
    asked |= {"files": task_hash(file), "prompts": repr(task.prompts)}
    data = source_hash(task, request.data)
    with progress(total=sum(len(curve.saved) for curve in curves), desc="zeroshot", unit="encoder") as bar:
        for curve in curves:
            for saved in curve.saved:
                folder = out / "runs" / f"{curve.name}-{name_of(saved.words)}"
                made_of = {"encoder": digest([file_hash(saved.folder / name) for name in FILES]), "data": data, **asked}
                one = replace(request, model=model_of(saved.folder), encoder=saved.folder, out=folder, overwrite=True)
                how: dict[str, Any] = {"overwrite": overwrite, "taken": answers, "bar": bar}
                curve.metrics.append(run_once(one, made_of, zeroshot, **how))
    report(curves, getattr(task, "groups", []), out, title=file.stem)


def answers(metrics: dict[str, Any]) -> dict[str, Any]:
    """What a curve takes from metrics.json.

    Raises:
        LookupError: it is not that of a zero-shot run.
    """
    finite(metrics, "zeroshot/accuracy", most=1)
    return {name: value for name, value in metrics.items() if name.startswith(("zeroshot/", "published/"))}


# ---------------------------------------------------------------------- report


def report(curves: Sequence[Curve], columns: Sequence[str], out: Path, *, title: str) -> None:
    """Writes curve.csv, curve.md and curve.png."""
    column = phenomenon(curves, columns)
    write_atomically(out / "curve.csv", csv_of(curves))
    write_atomically(out / "curve.md", tables(curves, column))
    words_plot.plot(curves, column, groups_of(curves, column), out / "curve.png", title=title)


def groups_of(curves: Sequence[Curve], column: str | None) -> list[str]:
    """The values of a column by which the answers are grouped."""
    return list(by_column(curves[0].metrics[0]).get(column or "", {}))


def phenomenon(curves: Sequence[Curve], columns: Sequence[str]) -> str | None:
    """The column with the most groups that can be shown side by side, the last of several; None: none has several."""
    sizes = {column: len(groups_of(curves, column)) for column in columns}
    shown = [column for column in columns if 1 < sizes[column] <= MOST]
    return max(reversed(shown), key=lambda column: sizes[column], default=None)


def csv_of(curves: Sequence[Curve]) -> str:
    """A row for each encoder and group; an empty group is all rows."""
    rows = [
        [curve.name, saved.words, saved.step, column, group, value]
        for curve in curves
        for saved, metrics in zip(curve.saved, curve.metrics, strict=True)
        for column, accuracies in {"": {"": metrics["zeroshot/accuracy"]}, **by_column(metrics)}.items()
        for group, value in accuracies.items()
    ]
    return csv_table(["run", "words", "step", "column", "group", "accuracy"], rows)


def tables(curves: Sequence[Curve], column: str | None) -> str:
    """Accuracy of each run by words seen; and of its last encoder by group, beside what was published."""
    rows = [
        [curve.name, f"{saved.words:,}", f"{one['zeroshot/accuracy']:.3f} ± {one['zeroshot/standard_error']:.3f}"]
        for curve in curves
        for saved, one in zip(curve.saved, curve.metrics, strict=True)
    ]
    published = curves[0].published()
    others = [f"{model} (published)" for model in published]
    rows += [[name, "", f"{value:.3f}"] for name, value in zip(others, published.values(), strict=True)]
    text = markdown_table(["run", "words seen", "accuracy"], rows)
    if column is None:
        return text
    lines = []
    for group in groups_of(curves, column):
        ours = [curve.metrics[-1][f"zeroshot/{column}/{group}"] for curve in curves]
        theirs = curves[0].published(f"/{column}/{group}").values()
        lines.append([group.replace("_", " "), *(f"{value:.3f}" for value in (*ours, *theirs))])
    last = ", ".join(f"{curve.name} {curve.saved[-1].words:,}" for curve in curves)
    by = column.replace("_", " ")
    table = markdown_table([by, *(curve.name for curve in curves), *others], lines)
    return f"{text}\nBy {by}, after the most words ({last}):\n\n{table}"
