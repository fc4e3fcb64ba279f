"""`make compare`: a grid of fine-tunes (models x tasks x arms x seeds), and one table and plot of what they gained.

What is finished is skipped, so a grid can be stopped and gone on with at any moment.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from pipeline import UserError, gains, tracking
from pipeline.choices import ARMS, FROZEN
from pipeline.configuration import recipe, task_file, task_of
from pipeline.folders import digest, file_hash, path_of, write_atomically
from pipeline.labeled import content_of
from pipeline.run_folder import locked

OF_KIND = ("model.optimization.", "model.craft.lm_weight", "model.craft.mix_dropout", "model.craft.unfreeze_share")
FineTune = Callable[..., None]  # by name: flags, model, task, arm, seed, data, encoder, out, resume


@dataclass
class Arm:
    """One way to fine-tune.

    Args:
        seeds: how many.
        choose: flags -> values. For each model and task all combinations are run with seed 0, and the other seeds
            take the one that is best on the validation part: each arm has its own best.
    """

    seeds: int
    choose: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def settings(self) -> list[list[str]]:
        """All combinations of `choose`, as flags."""
        combinations = itertools.product(*self.choose.values())
        return [[f"--{name}={value}" for name, value in zip(self.choose, c, strict=True)] for c in combinations]


@dataclass
class Grid:
    """What to compare; a YAML file in `configs/compare` has these fields.

    Args:
        models: as in MODEL=.
        tasks: name or path of a task -> where its data are (under `data`), or None for its own source.
        arms: by name, as in ARM=.
        encoders: the encoder folder of a model, with `{model}` for its name.
        data: folder that the tasks' data are in.
        flags: of every run.
    """

    models: list[str]
    tasks: dict[str, str | None]
    arms: dict[str, Arm]
    encoders: str
    data: str = "."
    flags: list[str] = field(default_factory=list)

    def encoder(self, model: str) -> Path:
        return path_of(self.encoders.replace("{model}", model))

    def size(self) -> int:
        runs = sum(len(arm.settings) + arm.seeds - 1 for arm in self.arms.values())
        return len(self.models) * len(self.tasks) * runs


def load(file: Path, **changes: Any) -> Grid:
    """A grid from its YAML file.

    Args:
        changes: fields to replace; `arms` may name some of the file's, `seeds` is for all arms.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind.
    """
    seeds, arms = changes.pop("seeds", None), changes.pop("arms", None)
    try:
        content = yaml.safe_load(file.read_text())
        places = content["tasks"] if isinstance(content["tasks"], dict) else {}  # of the tasks' data
        content |= changes
        content["arms"] = {name: Arm(**options) for name, options in content["arms"].items()}
        if isinstance(content["tasks"], list):
            content["tasks"] = {task: places.get(task) for task in content["tasks"]}
        grid = Grid(**content)
        for value, kind in ((grid.models, list), (grid.tasks, dict), (grid.flags, list)):
            if not isinstance(value, kind):
                raise TypeError(f"{value!r} is no {kind.__name__}")
        if unknown := [arm for arm in grid.arms if arm not in ARMS]:
            raise TypeError(f"there is no arm '{unknown[0]}', but {', '.join(ARMS)}")
        grid.encoder("")
        for arm in grid.arms.values():
            if not (isinstance(arm.seeds, int) and all(isinstance(v, list) and v for v in arm.choose.values())):
                raise TypeError("an arm has seeds, a number, and lists to choose from")
    except (TypeError, KeyError, AttributeError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is no valid grid: {error}.") from None
    if arms is not None:
        if unknown := [arm for arm in arms if arm not in grid.arms]:
            raise UserError(f"{file} has no arm '{unknown[0]}'; it has {', '.join(grid.arms)}.")
        grid.arms = {arm: grid.arms[arm] for arm in arms}
    for arm in grid.arms.values():
        arm.seeds = seeds or arm.seeds
    names = [Path(task).stem for task in grid.tasks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(
            f"Two of the tasks are called '{twice[0]}': their runs would have the same folders. Rename one."
        )
    return grid


def check_flags(grid: Grid) -> None:
    """Flags that no arm or not every arm can take as its own.

    Raises:
        UserError: the grid itself sets one, or one means another thing to each kind of arm.
    """
    given = {flag.removeprefix("--").partition("=")[0] for flag in grid.flags if flag.startswith("--")}
    for name in sorted(given):
        if setters := [arm for arm, options in grid.arms.items() if name in options.choose]:
            raise UserError(
                f"--{name} has no effect: the arm {setters[0]} chooses it itself. Change that in the grid's file."
            )
        if name.startswith(OF_KIND) and 0 < sum(arm in FROZEN for arm in grid.arms) < len(grid.arms):
            raise UserError(
                f"--{name} is another thing to a head alone than to a whole network, and here are both "
                f"({', '.join(grid.arms)}). Leave it out, compare one kind (make compare ARMS=), or name it under "
                "`choose` of an arm in a grid's file."
            )


def compare(grid: Grid, out: Path, finetune: FineTune, *, anew: bool = False, whole: Grid | None = None) -> None:
    """Runs what is not yet there; writes compare.csv, compare.md and compare.png into `out`.

    Args:
        anew: run what is there too.
        whole: the grid that `grid` is a part of; what is finished of the rest stands in the table too.

    Raises:
        UserError: a run is refused, or another process is at it.
    """
    out.mkdir(parents=True, exist_ok=True)
    whole = whole or grid
    models = list(dict.fromkeys([*whole.models, *grid.models]))
    whole = replace(whole, models=models, tasks={**whole.tasks, **grid.tasks})
    cells = list(itertools.product(whole.tasks, whole.models, whole.arms))

    def one(model: str, task: str, arm: str, seed: int, setting: int, *, run: FineTune | None) -> dict[str, Any]:
        """A fine-tune in its folder, which is run unless it is finished: its row of the table.

        Raises:
            LookupError: it is not finished, and there is nothing to run it.
        """
        settings, location = whole.arms[arm].settings, whole.tasks[task]
        name = f"{model}-{Path(task).stem}-{arm}-{seed}" + (f"-{setting}" if len(settings) > 1 else "")
        folder, flags = out / "runs" / name, [*whole.flags, *settings[setting]]
        data = None if location is None else str(path_of(whole.data) / location)
        shared: dict[str, Any] = {"task": task, "data": data, "encoder": whole.encoder(model), "arm": arm}
        cell = cell_of(**shared, flags=flags)
        figures = finished(folder, cell)
        if run is not None:
            bar.set_postfix_str(name)
            bar.initial += figures is not None and not anew  # which says nothing about the time of a run
            one_run = partial(run, **shared, flags=flags, model=model, seed=seed, out=folder)
            figures = once(folder, cell, one_run, anew=anew)
            bar.update()
        if figures is None:
            raise LookupError(name)
        row = {"model": model, "task": task, "arm": arm, "seed": seed, "flags": " ".join(settings[setting])}
        return row | summary(figures)

    def rows_of(task: str, model: str, name: str, seeds: int, **how: Any) -> list[dict[str, Any]]:
        settings = range(len(whole.arms[name].settings))
        tried = [one(model, task, name, 0, setting, **how) for setting in settings]
        best = max(settings, key=lambda setting: tried[setting]["chosen_by"])
        return [tried[best], *(one(model, task, name, seed, best, **how) for seed in range(1, seeds))]

    def there(cell: tuple[str, str, str]) -> list[dict[str, Any]]:
        with contextlib.suppress(LookupError, UserError):  # not run, or its encoder or data are gone
            return rows_of(*cell, whole.arms[cell[2]].seeds, run=None)
        return []

    found = {cell: there(cell) for cell in cells}
    with tqdm(total=grid.size(), desc="compare", unit="run", smoothing=0, file=sys.stderr) as bar:
        for cell in itertools.product(grid.tasks, grid.models, grid.arms):
            asked = rows_of(*cell, grid.arms[cell[2]].seeds, run=finetune)
            found[cell] = max(asked, there(cell), key=len)  # fewer seeds than are finished drop none
            gains.report([row for cell in cells for row in found[cell]], out)


def cell_of(*, task: str, data: str | None, encoder: Path, arm: str, flags: list[str]) -> dict[str, Any]:
    """What the figures of a fine-tune depend on, beside its seed; fresh weights are the same for any encoder's."""
    if not (encoder / "model.safetensors").is_file():
        raise UserError(f"There is no encoder in {encoder}; run `make pretrain` for it first, or set FROM=.")
    file = task_file(task)
    names = ["config.json", "tokenizer.json", *([] if arm in ("scratch", "random") else ["model.safetensors"])]
    return {
        "encoder": digest([file_hash(encoder / name) for name in names if (encoder / name).is_file()]),
        "arm": arm,
        "data": content_of(task_of(file), data),
        "files": recipe(file),
        "flags": flags,
    }


def finished(folder: Path, cell: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a folder's `metrics.json`, if it is there and made of the same."""
    note, figures = folder / "cell.json", folder / "metrics.json"
    if note.is_file() and figures.is_file() and json.loads(note.read_text()) == cell:
        return json.loads(figures.read_text())
    return None


def once(folder: Path, cell: dict[str, Any], run: Callable[..., None], *, anew: bool = False) -> dict[str, Any]:
    """Runs what writes `metrics.json` into a folder, unless it is there and made of the same; returns its content.

    What was there before is gone only when the new run has begun: one that is refused leaves everything as it was.

    Args:
        cell: what the figures depend on.
        run: takes `resume`, whether to go on with a run of the same that was stopped.
        anew: run it also where it is there.

    Raises:
        UserError: the run is refused, or another process is at it.
    """
    lock = locked(folder, folder.with_name(f".{folder.name}.lock"))  # beside it: the folder itself may be set aside
    try:
        return _once(folder, cell, run, anew=anew)
    finally:
        lock.release()


def _once(folder: Path, cell: dict[str, Any], run: Callable[..., None], *, anew: bool) -> dict[str, Any]:
    note, figures, aside = folder / "cell.json", folder / "metrics.json", folder.with_name(f".{folder.name}.before")
    put_back(aside, folder)  # after a kill
    if (there := finished(folder, cell)) is not None and not anew:
        return there
    before = json.loads(note.read_text()) if note.is_file() else {}
    if figures.is_file() and before != cell:
        differs = [name for name in cell if cell[name] != before.get(name)]
        tqdm.write(f"{folder.name} is run anew: not of the same {', '.join(differs)}.", file=sys.stderr)
    resume = before == cell and not anew and (folder / "checkpoints" / "last.ckpt").is_file()
    if folder.exists() and not resume:
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(note, json.dumps(cell) + "\n")
    try:
        with tracking.quiet(folder / "log.txt"):
            run(resume=resume)
    except UserError:
        put_back(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)
    return json.loads(figures.read_text())


def put_back(aside: Path, folder: Path) -> None:
    """What was set aside for a run that has not begun."""
    if aside.exists() and not (folder / "lineage.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def summary(figures: dict[str, Any]) -> dict[str, Any]:
    """What the table takes from `metrics.json`."""
    [metric] = [name.removeprefix("val/best_") for name in figures if name.startswith("val/best_")]
    kept = {name: value for name, value in figures.items() if name.startswith("baseline/")}
    return {
        "metric": metric,
        "score": figures[f"test/{metric}"],
        "chosen_by": figures[f"val/best_{metric}"],
        "degenerate": figures["degenerate"],
        "tokens": figures["tokens"],
        "minutes": figures["seconds"] / 60,
        **kept,
    }
