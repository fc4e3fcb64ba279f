"""Settings of many runs at once: what each of them sets itself is refused."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.experiments.feasible import PAIR, readings_of


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
