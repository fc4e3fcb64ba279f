"""Fine-tunes on few rows: how many, with which settings, and where a line of their scores reaches another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pipeline.errors import UserError
from pipeline.experiments.many_runs import check_many_runs
from pipeline.training.requests import FineTuneRequest, settings_in

STEPS = 100  # the fewest optimizer steps, however few the rows
BATCH = 10  # rows of one
MANY, LARGE_BATCH = 1000, 32  # more rows than that are trained on in larger batches
CLOSE = 1.25  # a number of rows is left out where all are not even so many times as many


def training_sizes(rows: int, wanted: Sequence[int] | None = None, *, most: int | None = None) -> list[int]:
    """Numbers of labels: those wanted, or 10, 32, 100, 316, ... and all.

    Args:
        wanted: as a user gives them; 0: all.
        most: no more than these.

    Raises:
        UserError: there is only one.
    """
    limit = min(rows, most or rows)
    halves = [round(10 ** (power / 2)) for power in range(2, 20)]
    numbers = [size for size in halves if size * CLOSE < limit] + [limit] if wanted is None else wanted
    sizes = sorted({min(number or limit, limit) for number in numbers})
    if len(sizes) < 2:
        only = f"there is only {sizes[0]:,} (the training part has {rows:,} rows)"
        raise UserError(f"Scores by the number of labels need at least two such numbers, and {only}.")
    return sizes


def check_worth_settings(request: FineTuneRequest) -> None:
    """Raises: UserError, a setting that each run sets itself."""
    settings = settings_in(request.overrides)
    if any(name.startswith("data.train_rows") for name in settings):
        raise UserError("worth varies data.train_rows itself; remove that flag.")
    check_many_runs(settings)


def settings_for(rows: int, *, of: int = 0) -> dict[str, Any]:
    """Settings of a fine-tune on so few rows: enough epochs, and the last step is tested.

    To choose among several checkpoints would take the labels of the validation part.

    Args:
        of: rows of the whole training part; all of many have the epochs and batches of their task.
    """
    chosen = {"data.train_rows": rows, "validations": 1}
    if MANY < of <= rows:
        return chosen
    epochs = max(5, math.ceil(STEPS * BATCH / rows))
    batch = BATCH if rows <= MANY else LARGE_BATCH
    return {**chosen, "data.batch_size": batch, "data.epochs": epochs}


def crossing(line: dict[int, float], score: float) -> float | None:
    """Labels at which a line of scores first reaches another score, on a logarithmic scale; None if never."""
    before: tuple[int, float] | None = None
    for number, reached in sorted(line.items()):
        if reached >= score:
            if before is None:
                return float(number)
            share = (score - before[1]) / (reached - before[1])
            return float(math.exp(math.log(before[0]) + share * (math.log(number) - math.log(before[0]))))
        before = (number, reached)
    return None
