"""`make compare`: a grid of fine-tunes (models x tasks x arms x seeds), and one table and plot of what they gained.

What is finished is skipped, so a grid can be stopped and gone on with at any moment.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from tqdm import tqdm

from pipeline.errors import UserError
from pipeline.experiments import comparison as gains
from pipeline.presets import ARMS, FROZEN, recipe, task_file, task_of
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.folders import remove
from pipeline.storage.paths import path_of
from pipeline.storage.validation import checked, read_json, read_yaml
from pipeline.tracking import loggers as tracking
from pipeline.training.run_folder import SIGN, check_place, lock_run
from pipeline.training.task_data import content_of

OF_KIND = ("model.optimization.", "model.craft.lm_weight", "model.craft.mix_dropout", "model.craft.unfreeze_share")
FineTune = Callable[..., None]  # by name: flags, model, task, arm, seed, data, encoder, out, resume
Name = Annotated[str, Field(min_length=1)]
Taken = Callable[[dict[str, Any]], dict[str, Any]]  # from the content of a metrics.json
BEGUN = ("checkpoints/last.ckpt", "metrics.json")  # what a run has that cannot be refused any more
NOTE = "cell.json"  # of a run of a grid: what its figures depend on


@dataclass
class Arm:
    """One way to fine-tune.

    Args:
        seeds: how many.
        choose: flags -> values. For each model and task all combinations are run with seed 0, and the other seeds
            take the one that is best on the validation part: each arm has its own best.
    """

    seeds: Annotated[int, Field(ge=1)]
    choose: dict[str, Annotated[list[Any], Field(min_length=1)]] = field(default_factory=dict)

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

    models: Annotated[list[Name], Field(min_length=1)]
    tasks: Annotated[dict[Name, str | None], Field(min_length=1)]
    arms: Annotated[dict[str, Arm], Field(min_length=1)]
    encoders: Name
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
    content = read_yaml(file, dict[str, Any])
    places = content.get("tasks")
    content |= changes
    if isinstance(content.get("tasks"), list):  # their data are where the file says, or with the task
        places = places if isinstance(places, dict) else {}
        content["tasks"] = {task: places.get(task) for task in checked(list[Name], content["tasks"], file)}
    grid = checked(Grid, {name: value for name, value in content.items() if (name, value) != ("data", None)}, file)
    if unknown := [arm for arm in grid.arms if arm not in ARMS]:
        raise UserError(f"{file}: there is no arm '{unknown[0]}', but {', '.join(ARMS)}.")
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
    check_place(out)
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
        figures, _ = finished(folder, cell, summary)
        if run is not None:
            bar.set_postfix_str(name)
            bar.initial += figures is not None and not anew  # which says nothing about the time of a run
            one_run = partial(run, **shared, flags=flags, model=model, seed=seed, out=folder)
            figures = once(folder, cell, one_run, anew=anew, taken=summary)
            bar.update()
        if figures is None:
            raise LookupError(name)
        row = {"model": model, "task": task, "arm": arm, "seed": seed, "flags": " ".join(settings[setting])}
        return row | figures

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


def finished(folder: Path, cell: dict[str, Any], taken: Taken) -> tuple[dict[str, Any] | None, str | None]:
    """What is taken of a folder's `metrics.json` if that is there and made of the same, else why it is not."""
    note, figures = folder / NOTE, folder / "metrics.json"
    if not figures.is_file():
        return None, None
    try:
        before = read_json(note, dict[str, Any]) if note.is_file() else {}
        if before != cell:
            return None, f"not of the same {', '.join(name for name in cell if cell[name] != before.get(name))}."
        return taken(read_json(figures, dict[str, float | int | bool | str | None])), None
    except UserError as error:
        return None, str(error)
    except LookupError as error:
        return None, f"{figures} has no {error.args[0]}."


def once(
    folder: Path,
    cell: dict[str, Any],
    run: Callable[..., None],
    *,
    anew: bool = False,
    taken: Taken = dict,
) -> dict[str, Any]:
    """Runs what writes `metrics.json` into a folder, unless it is there and made of the same.

    What was there before is gone only when the new run has begun: one that is refused leaves everything as it was.

    Args:
        cell: what the figures depend on.
        run: takes `resume`, whether to go on with a run of the same that was stopped.
        anew: run it also where it is there.
        taken: what to return of the content of `metrics.json`; a LookupError says what it lacks.

    Raises:
        UserError: the run is refused, or another process is at it, or the folder is not of a grid's run.
    """
    check_place(folder)
    lock = lock_run(folder, folder.with_name(f".{folder.name}.lock"))  # beside it: the folder itself may be set aside
    try:
        return _once(folder, cell, run, anew=anew, taken=taken)
    finally:
        lock.release()


def _once(folder: Path, cell: dict[str, Any], run: Callable[..., None], *, anew: bool, taken: Taken) -> dict[str, Any]:
    note, figures, aside = folder / NOTE, folder / "metrics.json", folder.with_name(f".{folder.name}.before")
    put_back(aside, folder)  # after a kill
    there, why = finished(folder, cell, taken)
    if there is not None and not anew:
        return there
    if why is not None:
        tqdm.write(f"{folder.name} is run anew: {why}", file=sys.stderr)
    stopped = not figures.is_file() and (folder / "checkpoints" / "last.ckpt").is_file()
    resume = not anew and stopped and _note_of(folder) == cell
    if os.path.lexists(folder) and not resume:
        check_own(folder)
        check_own(aside)
        remove(aside)
        folder.rename(aside)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(note, json.dumps(cell) + "\n")
    try:
        with tracking.quiet(folder / "log.txt"):
            run(resume=resume)
    except UserError:
        put_back(aside, folder)
        raise
    remove(aside)
    return taken(read_json(figures, dict[str, Any]))


def _note_of(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(UserError):  # missing or damaged
        return read_json(folder / NOTE, dict[str, Any])
    return {}


def check_own(folder: Path) -> None:
    """Raises: UserError, a folder holds something, and nothing that a grid has made."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    if folder.is_symlink() or not folder.is_dir() or not ((folder / NOTE).is_file() or (folder / SIGN).is_file()):
        raise UserError(f"{folder} is in the way of a run, and no run has made it; move it, or choose another OUT=.")


def put_back(aside: Path, folder: Path) -> None:
    """What was set aside for a run that has not begun."""
    if os.path.lexists(aside) and not any((folder / name).exists() for name in BEGUN):
        check_own(aside)
        check_own(folder)
        remove(folder)
        aside.rename(folder)


def summary(figures: dict[str, Any]) -> dict[str, Any]:
    """What the table takes from `metrics.json`.

    Raises:
        LookupError: it is not that of a fine-tune.
    """
    metric = next((name.removeprefix("val/best_") for name in figures if name.startswith("val/best_")), None)
    if metric is None:
        raise LookupError("val/best_ of a metric")
    kept = {name: value for name, value in figures.items() if name.startswith("baseline/")}
    return {
        "metric": metric,
        "score": figure(figures, f"test/{metric}", most=1),
        "chosen_by": figure(figures, f"val/best_{metric}", most=1),
        "degenerate": figure(figures, "degenerate"),
        "tokens": figure(figures, "tokens"),
        "minutes": figure(figures, "seconds") / 60,
        **kept,
    }


def figure(figures: dict[str, Any], name: str, *, most: float = math.inf) -> Any:
    """A figure, which may be true or false.

    Raises:
        LookupError: it is not there, no finite number, or its size is above `most`.
    """
    value = figures.get(name)
    if not isinstance(value, (int, float)) or not math.isfinite(value) or abs(value) > most:
        raise LookupError(f"{name} that can be")
    return value
