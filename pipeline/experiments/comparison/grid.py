"""A grid of fine-tunes: models x tasks x arms x seeds. As runs: `runs.py`."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.experiments.feasible import (
    REINIT,
    TASK,
    effective,
    learning_of,
    task_as_run,
    why_not,
)
from pipeline.experiments.many_runs import check_many_runs, check_pairs
from pipeline.presets import former_names
from pipeline.presets.arms import ARMS, FROZEN
from pipeline.storage.paths import path_of
from pipeline.storage.validation import Name, checked, read_yaml
from pipeline.training.requests import Overrides, overrides_of, settings_in
from tasks.dataset import repeated

# Settings that mean different things for frozen and trained encoders.
OF_KIND = ("model.optimization.", "model.recipe.lm_weight", "model.recipe.mix_dropout", "model.recipe.unfreeze_share")
Cell = tuple[str, str, str]  # task, model and arm


@dataclass
class Arm:
    """One way to fine-tune.

    Args:
        seeds: how many.
        choose: setting -> values. For each model and task all combinations are run with seed 0, and the other seeds
            take the one that is best on the validation part: each arm has its own best.
    """

    seeds: Annotated[int, Field(ge=1)]
    choose: dict[str, Annotated[list[Any], Field(min_length=1)]] = field(default_factory=dict)

    @property
    def settings(self) -> list[Overrides]:
        """All combinations of `choose`."""
        combinations = itertools.product(*self.choose.values())
        return [overrides_of(dict(zip(self.choose, values, strict=True))) for values in combinations]


@dataclass
class Grid:
    """What to compare; a YAML file in `configs/compare` has these fields.

    Args:
        models: as in MODEL=.
        tasks: name or path of a task -> where its data are (under `data`), or None for its own source.
        arms: by name, as in ARM=.
        encoders: the encoder folder of a model, with `{model}` for its name; None: all begin with fresh weights.
        data: folder that the tasks' data are in.
        flags: settings of every run.
        corpus: that encoders are pretrained on where they are missing, as in CORPUS=.
    """

    models: Annotated[list[Name], Field(min_length=1)]
    tasks: Annotated[dict[Name, str | None], Field(min_length=1)]
    arms: Annotated[dict[str, Arm], Field(min_length=1)]
    encoders: Name | None
    data: str = "."
    flags: list[str] = field(default_factory=list)
    corpus: Name | None = None

    def encoder(self, model: str) -> Path | None:
        return None if self.encoders is None else path_of(self.encoders.replace("{model}", model))

    def missing_encoders(self) -> dict[str, Path]:
        """The models whose encoder is not there, and its folder."""
        folders = {model: folder for model in self.models if (folder := self.encoder(model)) is not None}
        return {model: folder for model, folder in folders.items() if not (folder / "model.safetensors").is_file()}

    def cells(self) -> list[Cell]:
        """All combinations but those that a model cannot do."""
        return [cell for cell in itertools.product(self.tasks, self.models, self.arms) if self._why_not(cell) is None]

    def left_out(self) -> list[str]:
        """What the models cannot do, a sentence each."""
        reasons = map(self._why_not, itertools.product(self.tasks, self.models, self.arms))
        return list(dict.fromkeys(reason for reason in reasons if reason is not None))

    def _why_not(self, cell: Cell) -> str | None:
        task, model, arm = cell
        return why_not(model, learning_of(model, self.encoder(model)), task, arm)

    def settings(self, cell: Cell) -> list[Overrides]:
        """The combinations of settings that are tried in a cell, beside the flags of all runs."""
        task, model, arm = cell
        learning = learning_of(model, self.encoder(model))
        return list(dict.fromkeys(effective(chosen, learning, task, arm) for chosen in self.arms[arm].settings))

    def runs(self, cell: Cell) -> int:
        """Runs of a cell: seed 0 with all settings, and the other seeds."""
        return len(self.settings(cell)) + self.arms[cell[2]].seeds - 1

    def size(self) -> int:
        return sum(map(self.runs, self.cells()))


def load(file: Path, **changes: Any) -> Grid:
    """A grid from its YAML file.

    Args:
        changes: fields to replace; `arms` may name some of the file's, `seeds` is for all arms.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind.
    """
    seeds, arms = changes.pop("seeds", None), changes.pop("arms", None)
    content = read_yaml(file, dict[str, Any])
    places = content.get("tasks")
    content |= changes
    if isinstance(content.get("tasks"), list):  # their data are where the file says, or with the task
        places = places if isinstance(places, dict) else {}
        content["tasks"] = {task: places.get(task) for task in checked(list[Name], content["tasks"], file)}
    if {"models", "tasks", "arms"} <= content.keys() and "encoders" not in content:
        raise UserError(
            f"{file} names no encoder folders: write a line like `encoders: runs/pretrain/{{model}}/encoder`, or "
            f"set {typed.flag('from', 'runs/pretrain/{model}/encoder')}."
        )
    grid = checked(Grid, {name: value for name, value in content.items() if (name, value) != ("data", None)}, file)
    if grid.encoders is None:
        raise UserError(f"{file}: encoders is None; it must name encoder folders, with {{model}} for a model's name.")
    if unknown := [arm for arm in grid.arms if arm not in ARMS]:
        raise UserError(f"{file}: there is no arm '{unknown[0]}', but {', '.join(ARMS)}.")
    if arms is not None:
        if unknown := [arm for arm in arms if arm not in grid.arms]:
            raise UserError(f"{file} has no arm '{unknown[0]}'; it has {', '.join(grid.arms)}.")
        grid.arms = {arm: grid.arms[arm] for arm in arms}
    for arm in grid.arms.values():
        arm.seeds = seeds or arm.seeds
    # Of all its arms and tasks: where some are taken, what a file chooses for the others is left out.
    chosen = {name for options in content["arms"].values() for name in options.get("choose", ())}
    check_used(chosen, content["arms"], [*grid.tasks, *(places if isinstance(places, dict | list) else ())])
    check_folders(grid.tasks)
    return grid


def check_folders(tasks: Iterable[str]) -> None:
    """Raises: UserError, two tasks have the same name."""
    if twice := repeated([Path(task).stem for task in tasks]):
        raise UserError(f"Two of the tasks are called '{twice}': their runs would have the same folders. Rename one.")


# ---------------------------------------------------------------------- settings that a grid refuses


def check_grid_settings(grid: Grid) -> None:
    """Refuses settings that some arm overrides or that mean different things in different arms.

    Raises:
        UserError: which of them.
    """
    shared = settings_in(former_names.flags(grid.flags))
    for name in sorted(shared):
        if setters := [arm for arm, options in grid.arms.items() if name in former_names.current(options.choose)]:
            raise UserError(
                f"--{name} has no effect: the arm {setters[0]} chooses it itself. Change that in the grid's file."
            )
        if name.startswith(OF_KIND) and 0 < sum(arm in FROZEN for arm in grid.arms) < len(grid.arms):
            raise UserError(
                f"--{name} means different things for frozen and trained encoders, and this grid has both "
                f"({', '.join(grid.arms)}). Leave it out, compare one kind ({typed.flag('arms')}), or name it under "
                "`choose` of an arm in a grid's file."
            )
    check_used(shared, grid.arms, grid.tasks)
    check_many_runs(shared.union(*(arm.choose for arm in grid.arms.values())))
    if any(name.startswith(TASK) for arm in grid.arms.values() for name in arm.choose):
        check_metrics(grid)


def check_used(settings: Collection[str], arms: Collection[str], tasks: Iterable[str]) -> None:
    """Raises: UserError, a setting has no effect in any of these arms and tasks."""
    if REINIT in settings and "full" not in arms:
        raise UserError(f"{REINIT} has no effect: it is for the arm full. Leave it out.")
    check_pairs(settings, tasks)


def check_metrics(grid: Grid) -> None:
    """Raises: UserError, the settings that arms choose from give a task different metrics."""
    settings = {(*grid.flags, *one) for arm in grid.arms.values() for one in arm.settings}
    for task in grid.tasks:
        if len(found := sorted({task_as_run(task, one).metric for one in settings})) > 1:
            raise UserError(
                f"The arms score {Path(task).stem} by {' and '.join(found)}, which cannot be compared: leave what sets "
                "the metric out of `choose`."
            )
