"""A grid of runs in Weights & Biases: one run with the table and the plots of all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.storage.folders import remove
from pipeline.tracking.wandb import end_run, wandb_logger


def log_grid(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Logs the table of a grid and its pictures; a grid that is continued has the same run, with a new table.

    Args:
        out: folder of the grid.
        rows: of the table, a run each.
    """
    models, tasks, arms = (list(dict.fromkeys(str(row[name]) for row in rows)) for name in ("model", "task", "arm"))
    config = {"models": models, "tasks": [Path(task).stem for task in tasks], "arms": arms, "runs": len(rows)}
    for part in (out / "wandb").glob("offline-run-*"):
        remove(part)  # of the grid before it was continued: the table below has all of it
    logger = wandb_logger(out, job_type="compare", group=out.name, tags=["compare", out.name], config=config)
    if logger is None:
        return
    import wandb

    names: list[Any] = [name for name in dict.fromkeys(name for row in rows for name in row) if name != "flags"]
    shown = [{**row, "task": Path(row["task"]).stem} for row in rows]  # a task may be a path
    cells = [[row.get(name) for name in names] for row in shown]

    def log(run: Any) -> None:
        run.log({"runs": wandb.Table(columns=names, data=cells)})
        run.log({path.stem: wandb.Image(str(path)) for path in sorted(out.glob("*.png"))})
        by_arm: dict[str, list[float]] = {}
        for row in shown:
            by_arm.setdefault("/".join(row[name] for name in ("model", "task", "arm")), []).append(float(row["score"]))
        run.summary.update({name: sum(scores) / len(scores) for name, scores in by_arm.items()})

    end_run(logger, log)
