"""`make compare`: a grid of fine-tunes, and one table of what pretraining gained."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pipeline.cli.arguments import Parser, add_overrides, natural, place
from pipeline.cli.commands.finetune import finetune
from pipeline.cli.commands.pretrain import pretrain
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets.arms import FROZEN, ArmName
from pipeline.presets.files import DEFAULT_CORPUS, preset_file
from pipeline.presets.tasks import trained_task
from pipeline.storage.paths import path_of
from pipeline.training.requests import FineTuneRequest, PretrainRequest

if TYPE_CHECKING:
    from pipeline.experiments.comparison.grid import Grid

PARTS = ("models", "tasks", "arms")  # of a grid
HELP = "models x tasks x arms x seeds in one table"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", default="sample", help="a name in configs/compare or a path to a YAML file")
    parser.add_argument("--data", default=None, help="folder that holds the data of the tasks")
    parser.add_argument(
        "--from", dest="encoders", default=None, help="encoder folders, with {model} in place of a name"
    )
    parser.add_argument("--out", type=place, default=None, help="folder of the table and its runs")
    for field in PARTS:
        parser.add_argument(f"--{field}", default=None, help="some of them, separated by spaces")
    parser.add_argument("--seeds", type=natural, default=0, help="seeds of each arm; 0: the number in the file")
    parser.add_argument("--overwrite", action="store_true", help="run what is finished too")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, and run nothing")
    add_overrides(parser, "finetune")


def run(options: argparse.Namespace) -> None:
    from pipeline.experiments.comparison.files import show
    from pipeline.experiments.comparison.runs import compare

    grid, whole, out = requested(options)
    pretrains = grid.corpus == DEFAULT_CORPUS and not options.encoders  # minutes; others take hours: make results
    if options.dry_run:
        print(what_is_missing(grid, out, pretrains=pretrains, overwrite=options.overwrite))
        return
    if pretrains:
        pretrain_missing(grid)
    check_encoders(grid, options)
    check_places(grid)
    compare(grid, out, finetune, command=command_of(options, out), overwrite=options.overwrite, whole=whole)
    show(out)


def what_is_missing(grid: Grid, out: Path, *, pretrains: bool, overwrite: bool) -> str:
    """Encoders that are not there, and how many fine-tunes are, in all and of each task, model and arm.

    Args:
        pretrains: whether the command pretrains encoders that are missing; else it refuses to run.
        overwrite: whether it runs again what is finished.
    """
    from pipeline.experiments.comparison.runs import count_finished

    missing = grid.missing_encoders().items()
    lines = [
        f"pretrain {model} on {grid.corpus} into {folder.parent}" if pretrains else f"there is no encoder in {folder}"
        for model, folder in missing
    ]
    done = {cell: 0 if overwrite else count_finished(grid, cell, out) for cell in grid.cells()}
    lines.append(f"fine-tunes: {sum(done.values())} of {grid.size()} are finished in {out}")
    for cell, count in done.items():
        tried = f", {many} settings are tried with seed 0" if (many := len(grid.settings(cell))) > 1 else ""
        if count < grid.runs(cell):
            lines.append(f"  {' '.join(map(str, cell))}: {count} of {grid.runs(cell)}{tried}")
    return "\n".join(lines)


def command_of(options: argparse.Namespace, out: Path) -> str:
    """The command as a line of a shell, to make the same table elsewhere."""
    names = ("name", "corpus", "data", *PARTS, "seeds")
    given = {name: getattr(options, name, None) for name in names} | {"from": options.encoders, "out": out}
    return typed.line(options.command, *options.overrides, **given)


def requested(options: argparse.Namespace) -> tuple[Grid, Grid, Path]:
    """The grid that is to be run, the whole one of its file, and the folder of the table.

    Raises:
        UserError: there is no such grid, or a setting does not fit it.
    """
    from pipeline.experiments.comparison.grid import check_folders, check_grid_settings, load

    file = preset_file("compare", options.name, "grid")
    places = {name: value for name in ("data", "encoders") if (value := getattr(options, name))}
    changes: dict[str, Any] = {name: value.split() for name in PARTS if (value := getattr(options, name))}
    grid, whole = load(file, **changes, **places, seeds=options.seeds), load(file, **places)
    check_folders({**whole.tasks, **grid.tasks})
    check_data(grid, file, options.data)
    grid.flags = whole.flags = [*grid.flags, *options.overrides]
    check_grid_settings(grid)  # before minutes of pretraining
    check_flags(grid, options.overrides)
    return grid, whole, options.out or Path("results") / file.stem


def check_data(grid: Grid, file: Path, data: str | None, *, alone: str = "finetune") -> None:
    """Whether all tasks use a folder of data.

    Args:
        alone: the command that runs a single task.

    Raises:
        UserError: one does not.
    """
    if data and (elsewhere := [task for task, folder in grid.tasks.items() if folder is None]):
        raise UserError(
            f"{file.name} has no folder for '{elsewhere[0]}', so {typed.flag('data')} would be ignored. Name it in "
            f"a grid of your own ({{tasks: {{{elsewhere[0]}: FOLDER}}}}), or run that task alone, with fresh weights "
            f"beside it: {typed.command(alone, task=elsewhere[0], data=data, seeds=5)}."
        )


def check_encoders(grid: Grid, options: argparse.Namespace) -> None:
    """Whether all encoders are there, before any run: those of the last model would be missed after hours.

    Raises:
        UserError: one is missing; names the command that makes it where the grid expects it.
    """
    models = {model for _, model, _ in grid.cells()}
    missing = [folder for model, folder in grid.missing_encoders().items() if model in models]
    if not missing:
        return
    asked = {name: getattr(options, name) or None for name in ("name", "data", *PARTS, "seeds", "out")}
    asked |= {"from": options.encoders, "corpus": None if grid.corpus else "FOLDER"}
    makes = f"`{typed.command('results', *options.overrides, **asked)}` pretrains what is missing, or "
    raise UserError(
        f"There is no encoder in {missing[0]}; {makes if missing[0].name == 'encoder' else ''}set {typed.flag('from')} "
        "to another place."
    )


def check_places(grid: Grid) -> None:
    """Whether the data of all tasks are there, before any run.

    Raises:
        UserError: those of one are missing.
    """
    for task, folder in grid.tasks.items():
        place = None if folder is None else path_of(grid.data) / folder
        if place is not None and not place.exists() and not glob(str(place)):
            raise UserError(f"There is no task data at {place}, where those of {task} should be.")


def check_flags(grid: Grid, flags: Sequence[str]) -> None:
    """Reads flags, and what arms choose from, as the first fine-tune in steps on each task will, before any run.

    Raises:
        UserError: one that there is not, a wrong value, or one that means nothing to a task.
    """
    from pipeline.cli.config import finetuning
    from pipeline.experiments.feasible import effective, is_counting
    from pipeline.finetuning.heads import head_class

    trained = [model for model in grid.models if not is_counting(model)]
    if not trained:
        return
    for task in grid.tasks:
        head, read = head_class(str(trained_task(task).head)), set()
        for arm, options in grid.arms.items():
            for chosen in options.settings:
                own = effective((*flags, *chosen), "gradient", task, arm)
                if own and (case := (arm in FROZEN, own)) not in read:  # other arms read them alike
                    read.add(case)
                    encoder = grid.encoder(trained[0])
                    request = FineTuneRequest(
                        model=trained[0], task=task, arm=cast(ArmName, arm), overrides=own, encoder=encoder
                    )
                    finetuning(request).module.check_head(head)


def pretrain_missing(grid: Grid) -> None:
    """Pretrains the encoders that are not there yet, each in the folder that the grid expects it in."""
    from pipeline.cli.config import pretraining

    missing, corpus = grid.missing_encoders(), cast(str, grid.corpus)
    for model in missing:  # all are known before hours of the first
        pretraining(PretrainRequest(model=model, corpus=corpus))
    for model, folder in missing.items():
        pretrain(PretrainRequest(model=model, corpus=corpus, out=folder.parent, resume=True))
