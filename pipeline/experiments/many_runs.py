"""Many runs at once: what they have in common, and settings that each of them sets itself and that are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.errors import Diverged, UserError
from pipeline.experiments.feasible import PAIR, readings_of
from pipeline.training.requests import FineTuneRequest, ZeroShotRequest
from pipeline.training.run_folder import MARKER, check_place, elsewhere

FineTune = Callable[[FineTuneRequest], None]
ZeroShot = Callable[[ZeroShotRequest], None]


def best_with_seeds(
    run: Callable[[int, int], dict[str, Any]], *, settings: int, seeds: int
) -> Iterator[dict[str, Any]]:
    """Runs seed 0 with all settings, and the other seeds with the one that is best on the validation part.

    A setting with which the loss is not finite, as too high a rate, is the worst one.

    Args:
        run: number of a seed and of a setting -> what it gave: `chosen_by`, of which `mode` says what is better, ...

    Returns:
        What each seed gave with that setting.

    Raises:
        Diverged: with all settings the loss is not finite, or with the best one and a further seed.
    """
    tried: dict[int, dict[str, Any]] = {}
    for setting in range(settings):
        try:
            tried[setting] = run(0, setting)
        except Diverged as error:
            last = error
    if not tried:
        raise last
    better = max if next(iter(tried.values()))["mode"] == "max" else min
    best = better(tried, key=lambda setting: tried[setting]["chosen_by"])
    yield tried[best]
    yield from (run(seed, best) for seed in range(1, seeds))


def check_no_run(out: Path, file: str) -> None:
    """Raises: UserError, `out` cannot be a folder of many runs, or is that of a run, which has such a file itself."""
    check_place(out)
    if (out / MARKER).exists():
        raise UserError(f"{out} is the folder of a run, whose {file} this would change; {elsewhere()}.")


def check_pairs(settings: Iterable[str], tasks: Iterable[str]) -> None:
    """Raises: UserError, there is a setting of pairs of texts, and no task that has them."""
    if PAIR in settings and not any(map(readings_of, tasks)):
        raise UserError(f"{PAIR} has no effect: no task here has pairs of texts. Leave it out.")


def check_many_runs(settings: Iterable[str]) -> None:
    """Raises: UserError, a setting is one of a single run, or each of many runs sets it itself."""
    for name in settings:
        if name.startswith(("trainer.devices", "trainer.num_nodes", "config")):
            raise UserError(
                "Each of these runs uses one process: remove --trainer.devices, --trainer.num_nodes and --config."
            )
        if name.startswith(("model.seed", "data.seed", "model.arm")):
            raise UserError(
                "Each of these runs has its own seed and arm: leave model.seed, data.seed and model.arm out."
            )


def check_seeds(seeds: int, seed: int) -> None:
    """Raises: UserError, a single seed is set beside several."""
    if seed:
        raise UserError(
            f"{typed.flag('seeds', seeds)} runs the seeds 0 to {seeds - 1}: leave {typed.flag('seed', seed)} out."
        )
