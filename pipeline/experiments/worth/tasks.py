"""The worth of pretraining on the tasks of a comparison: each as in `pretraining.py`, then one table and plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.experiments.comparison.grid import Grid
from pipeline.experiments.conditions import differing
from pipeline.experiments.feasible import learning_of, why_not
from pipeline.experiments.many_runs import FineTune
from pipeline.experiments.run_cache import fingerprint_of_finetune
from pipeline.experiments.worth import plot as worth_plot
from pipeline.experiments.worth.labels_saved import RUN, SCRATCH, LabelsSaved
from pipeline.experiments.worth.pretraining import measure
from pipeline.experiments.worth.report import HEAD, caveats, note, verdict
from pipeline.experiments.worth.report import lines as lines_of
from pipeline.storage.atomic import write_atomically
from pipeline.storage.csv_table import csv_table
from pipeline.storage.paths import path_of
from pipeline.tracking.tables import markdown_table
from pipeline.training.requests import FineTuneRequest
from pipeline.training.run_folder import check_place


def requests_of(grid: Grid, request: FineTuneRequest) -> dict[str, FineTuneRequest]:
    """Task -> the request of its runs: data are where the comparison says.

    Raises:
        UserError: the model cannot do one of the tasks with fresh weights, or its data are missing.
    """
    found = {}
    overrides, learning = (*grid.flags, *request.overrides), learning_of(request.model, request.encoder)
    for task, place in grid.tasks.items():
        if (reason := why_not(request.model, learning, task, SCRATCH)) is not None:
            raise UserError(reason)
        data = None if place is None else str(path_of(grid.data) / place)
        found[Path(task).stem] = replace(request, task=task, data=data, overrides=overrides)
    for one in found.values():
        fingerprint_of_finetune(one)  # not after the runs of the tasks before it
    return found


def measure_all(
    requests: dict[str, FineTuneRequest], finetune: FineTune, out: Path, *, title: str, **options: Any
) -> list[LabelsSaved]:
    """Runs what is not yet finished; after each task worth.md, worth.csv and worth.png have all so far.

    Args:
        requests: see `requests_of`; each task has a folder of its name.
        options: see `measure` of `pretraining.py`.

    Raises:
        UserError: see there.
    """
    check_place(out)
    found: dict[str, LabelsSaved] = {}
    for name, request in requests.items():
        found[name] = measure(request, finetune, out / name, **options)
        report({name: one for name, one in found.items() if one.sizes}, out, title=title)
    return list(found.values())


def report(found: dict[str, LabelsSaved], out: Path, *, title: str) -> None:
    """Writes worth.csv, worth.md and worth.png, unless there is nothing to write."""
    if not found:
        return
    rows = [[name, one.metric, *run] for name, one in found.items() for run in one.runs]
    write_atomically(out / "worth.csv", csv_table(["task", "metric", *RUN], rows))
    write_atomically(out / "worth.md", table(found))
    tasks = list(found.values())
    worth_plot.plot(tasks, out / "worth.png", title=title if len(tasks) > 1 else tasks[0].title)


def table(found: dict[str, LabelsSaved]) -> str:
    """Markdown: a line for each task and number of labels, and what it comes to."""
    columns = differing([runs for one in found.values() for runs in one.made_with])
    rows = [[f"{name} ({one.metric})", *line] for name, one in found.items() for line in lines_of(one, columns)]
    verdicts = "\n".join(f"- {name}: {verdict(one)}" for name, one in found.items())
    scores = f"Scores are {note(next(iter(found.values())))}"
    made = caveats(list(found.values()))
    return f"{markdown_table(['task (metric)', *HEAD, *columns], rows)}\n{scores}\n{made}\n{verdicts}\n"
