"""The runs of a grid, and one table and plot of what they gained.

What is finished is skipped, so a grid can be stopped and continued at any moment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from pipeline.console.messages import inform
from pipeline.console.progress import progress
from pipeline.errors import Diverged, UserError
from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.comparison.grid import Cell, Grid, check_grid_settings
from pipeline.experiments.comparison.table import footnotes
from pipeline.experiments.conditions import CONDITIONS
from pipeline.experiments.feasible import (
    effective,
    learning_of,
    task_as_run,
)
from pipeline.experiments.many_runs import FineTune, best_with_seeds, check_no_run
from pipeline.experiments.run_cache import (
    Taken,
    check_diverged,
    fingerprint_of_finetune,
    finished,
    finite,
    folder_of,
    has_ended,
    run_once,
)
from pipeline.presets.arms import ArmName
from pipeline.presets.files import LARGEST_SEED
from pipeline.storage.paths import path_of
from pipeline.tracking.wandb_grid import log_grid
from pipeline.training.requests import FineTuneRequest
from tasks.base import Task


@dataclass
class GridRun:
    """One fine-tune of a grid, and what the table says of it beside its metrics."""

    request: FineTuneRequest
    labels: dict[str, Any]

    @property
    def folder(self) -> Path:
        return folder_of(self.request)


def run_of(grid: Grid, cell: Cell, out: Path, *, seed: int, setting: int) -> GridRun:
    """`setting` is a number of the arm's settings."""
    task, model, arm = cell
    settings, location = grid.settings(cell), grid.tasks[task]
    shared = effective(tuple(grid.flags), learning_of(model, grid.encoder(model)), task, arm)
    name = f"{model}-{Path(task).stem}-{arm}-{seed}" + (f"-{setting}" if len(settings) > 1 else "")
    request = FineTuneRequest(
        model=model,
        task=task,
        arm=cast(ArmName, arm),
        seed=seed,
        data=None if location is None else str(path_of(grid.data) / location),
        encoder=grid.encoder(model),
        out=out / "runs" / name,
        overrides=(*shared, *settings[setting]),
    )
    labels = {"model": model, "task": task, "arm": arm, "seed": seed, "flags": " ".join(settings[setting])}
    return GridRun(request, labels)


def rows_of(
    grid: Grid, cell: Cell, out: Path, seeds: int, summarize: Callable[[GridRun], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of the table of a cell: of seed 0 with the setting that is best for it, and of the others with that."""

    def row(seed: int, setting: int) -> dict[str, Any]:
        run = run_of(grid, cell, out, seed=seed, setting=setting)
        return run.labels | summarize(run)

    yield from best_with_seeds(row, settings=len(grid.settings(cell)), seeds=seeds)


def compare(
    grid: Grid,
    out: Path,
    finetune: FineTune,
    *,
    command: str = "",
    overwrite: bool = False,
    whole: Grid | None = None,
) -> None:
    """Runs what is not yet finished; writes compare.csv, compare.md and compare.png into `out`.

    Args:
        command: that makes the same comparison, which is noted beside the table.
        overwrite: run what is finished too.
        whole: the grid that `grid` is a part of; what is finished of the rest is in the table too.

    Raises:
        UserError: an arm has no finite loss, and the others are run; a run is refused, or another process runs it; the
            file of footnotes in `out` is damaged.
    """
    check_no_run(out, "command.txt")
    check_grid_settings(grid)
    footnotes(out)  # a damaged file is refused before hours of runs
    out.mkdir(parents=True, exist_ok=True)
    whole = joined(whole or grid, grid)
    cells = whole.cells()
    for reason in grid.left_out():
        inform(f"Left out: {reason}")
    if not grid.cells():
        raise UserError("None of these models can do any of these tasks with any of these arms.")
    rows = {cell: finished_rows(whole, cell, out) for cell in cells}
    shown: list[dict[str, Any]] | None = None
    failed = list[str]()
    with progress(total=grid.size(), desc="compare", unit="run", smoothing=0) as bar:

        def train(run: GridRun) -> dict[str, Any]:
            bar.set_postfix_str(run.folder.name)
            made_of, taken = fingerprint_of_finetune(run.request), summary_of(run)
            return run_once(run.request, made_of, finetune, overwrite=overwrite, taken=taken, bar=bar)

        for cell in grid.cells():
            seeds = grid.arms[cell[2]].seeds
            if overwrite or len(rows[cell]) < seeds:
                made = list[dict[str, Any]]()
                try:
                    made.extend(rows_of(whole, cell, out, seeds, train))
                except Diverged as error:  # the other cells are run all the same
                    failed.append(f"{' '.join(map(str, cell))}: {error}")
                rows[cell] = max(made, finished_rows(whole, cell, out), key=len)  # further seeds that are finished stay
            else:
                runs = grid.runs(cell)
                bar.initial += runs  # they say nothing about the time of the others
                bar.update(runs)
            shown = _report(rows, out, shown)
            if command:  # only now: one that is refused has written nothing
                comparison_files.note_command(out, command)
    for cell in set(cells) - set(grid.cells()):  # another process may have run them meanwhile
        rows[cell] = max(rows[cell], finished_rows(whole, cell, out), key=len)
    shown = _report(rows, out, shown)
    if shown:
        log_grid(out, shown)
    if failed:
        raise UserError(f"{len(failed)} of {len(grid.cells())} arms have no finite loss: {failed[0]}")


def _report(
    rows: Mapping[Cell, list[dict[str, Any]]], out: Path, shown: list[dict[str, Any]] | None
) -> list[dict[str, Any]]:
    """Writes the rows of all cells, unless they are `shown` there; returns them."""
    found = [row for part in rows.values() for row in part]
    if found != shown:
        comparison_files.report(found, out)
    return found


def joined(whole: Grid, part: Grid) -> Grid:
    """A grid with the models and tasks of another too."""
    models = list(dict.fromkeys([*whole.models, *part.models]))
    return replace(whole, models=models, tasks={**whole.tasks, **part.tasks})


def finished_rows(grid: Grid, cell: Cell, out: Path) -> list[dict[str, Any]]:
    """The rows of a cell up to the first seed that is not finished."""
    found: list[dict[str, Any]] = []
    with contextlib.suppress(LookupError, UserError):  # no further seed, or its encoder or data are gone
        found.extend(rows_of(grid, cell, out, LARGEST_SEED, finished_summary))
    return found


def count_finished(grid: Grid, cell: Cell, out: Path) -> int:
    """How many of the runs of a cell have ended; whether they are of the same data and flags is not looked at."""
    count, settings = 0, range(len(grid.settings(cell)))
    for seed in range(grid.arms[cell[2]].seeds):
        runs = [run_of(grid, cell, out, seed=seed, setting=setting) for setting in settings]
        ended = sum(has_ended(run.folder) for run in runs)
        count += ended if seed == 0 else min(1, ended)  # other seeds take the setting that seed 0 chose
    return count


def finished_summary(run: GridRun) -> dict[str, Any]:
    """Raises: LookupError, it is not finished; Diverged, its loss was not finite."""
    if not has_ended(run.folder):  # its fingerprint takes longer: the rows of the task are read
        raise LookupError(run.folder.name)
    made_of = fingerprint_of_finetune(run.request)
    check_diverged(run.folder, made_of)
    metrics, _ = finished(run.folder, made_of, summary_of(run))
    if metrics is None:
        raise LookupError(run.folder.name)
    return metrics


def summary_of(run: GridRun) -> Taken:
    return partial(summary, task_as_run(run.request.task, run.request.overrides))


def summary(task: Task, metrics: dict[str, Any]) -> dict[str, Any]:
    """What the table takes from `metrics.json`.

    Raises:
        LookupError: it is not that of a fine-tune.
    """
    return {
        "metric": task.metric,
        "mode": task.mode,
        "score": finite(metrics, f"test/{task.metric}", most=task.bound),
        "chosen_by": finite(metrics, f"val/best_{task.metric}", most=task.bound),
        "degenerate": finite(metrics, "degenerate"),
        "tokens": finite(metrics, "tokens"),
        "minutes": finite(metrics, "seconds") / 60,
        **{name: metrics[name] for name in CONDITIONS if name in metrics},
        **{name: value for name, value in metrics.items() if name.startswith("baseline/")},
    }
