"""`make worth`: how many labels a prompt is worth (Le Scao and Rush 2021), or pretraining."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.arguments import (
    Parser,
    add_encoder,
    add_model,
    add_out,
    add_overrides,
    add_task,
    positive,
    request_of,
)
from pipeline.cli.commands.finetune import finetune
from pipeline.cli.commands.zeroshot import zeroshot
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets import former_names
from pipeline.presets.files import DEFAULT_TASK
from pipeline.training.requests import FineTuneRequest, Overrides, settings_in

if TYPE_CHECKING:
    from pipeline.experiments.comparison.grid import Grid

RATE = "model.optimization.learning_rate"
HELP = "how many labels a prompt or pretraining is worth: scores on 10, 32, 100, ... rows"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_task(parser, default=None)
    add_encoder(parser)
    parser.add_argument(
        "--of",
        choices=("prompt", "pretraining"),
        default=None,
        help="what is worth labels [prompt, where the task has prompts and accuracy]",
    )
    parser.add_argument(
        "--seeds", type=positive, default=None, help="runs of each number of rows [3; of pretraining 5]"
    )
    parser.add_argument(
        "--name", default=None, help="of pretraining: a comparison (configs/compare), all of whose tasks are run"
    )
    parser.add_argument("--tasks", default=None, help="some of the tasks of a comparison, separated by spaces")
    parser.add_argument("--labels", default=None, help="of pretraining: numbers of rows, as 10,100,all")
    parser.add_argument(
        "--rates",
        default=None,
        help="of pretraining: learning rates that arms try, as 3e-4,1e-3 [those of a comparison]",
    )
    add_out(parser)
    add_overrides(parser, "finetune")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.config import finetuning
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.experiments.many_runs import check_pairs, check_seeds

    grid = None if options.name is None else comparison(options)
    if grid is None and options.tasks is not None:
        raise UserError(f"Name the comparison that has these tasks, as {typed.flag('name', 'sample')}.")
    name = options.task or DEFAULT_TASK
    of = "pretraining" if grid is not None else kind_of(options, name)
    folder = encoder_folder(options.model, options.encoder or (grid.encoder(options.model) if grid else None))
    if of == "prompt" and (options.labels is not None or options.rates is not None):
        raise UserError("--labels and --rates are of pretraining: leave them out, or set --of pretraining.")
    seeds = options.seeds or (3 if of == "prompt" else 5)
    check_seeds(seeds, options.seed)
    if of == "pretraining":
        check_pairs(settings_in(options.overrides), grid.tasks if grid else [name])
    request = request_of(FineTuneRequest, options, task=name, encoder=folder, overwrite=False)
    if grid is None:
        finetuning(request)  # settings before an hour of runs
    short = Path(name if grid is None else options.name).stem
    out = options.out or Path("runs/worth") / (f"{options.model}-{short}" + ("" if of == "prompt" else "-labels"))
    if grid is not None:
        worth_on_tasks(grid, request, options, out, seeds)
    else:
        (worth_of_prompt if of == "prompt" else worth_of_pretraining)(request, options, out, seeds)


def comparison(options: argparse.Namespace) -> Grid:
    """The comparison whose tasks are run.

    Raises:
        UserError: there is none of that name, or something beside it does not fit.
    """
    from pipeline.cli.commands.compare import check_data
    from pipeline.experiments.comparison.grid import load
    from pipeline.presets.files import preset_file

    if options.task is not None:
        raise UserError(f"{typed.flag('name', options.name)} has its tasks: leave {typed.flag('task')} out.")
    if options.of == "prompt":
        raise UserError("--of prompt is of one task: leave --name out.")
    file = preset_file("compare", options.name, "grid")
    changes: dict[str, Any] = {"tasks": options.tasks.split()} if options.tasks else {}
    grid = load(file, **changes, **({"data": options.data} if options.data else {}))
    check_data(grid, file, options.data, alone="worth")
    return grid


def kind_of(options: argparse.Namespace, name: str) -> str:
    """What is worth labels: as asked for, or the prompt where the task has prompts and accuracy."""
    from pipeline.cli.task_template import add_missing
    from pipeline.presets.tasks import task_file, task_of

    add_missing(name, options.data)
    task = task_of(task_file(name))
    of_pretraining = options.labels is not None or options.rates is not None
    prompted = bool(task.prompts) and getattr(task, "metric", None) == "accuracy"
    return str(options.of or ("prompt" if prompted and not of_pretraining else "pretraining"))


def worth_of_prompt(request: FineTuneRequest, options: argparse.Namespace, out: Path, seeds: int) -> None:
    from pipeline.experiments.comparison.gains import format_scores
    from pipeline.experiments.worth import prompt as worth_prompt

    figures = worth_prompt.measure(request, finetune, zeroshot, out, seeds=seeds, overwrite=options.overwrite)
    for number, scores in figures["finetuned"].items():
        print(f"{number:>6} rows  {format_scores(scores)}")
    print(f"{worth_prompt.verdict(figures)}\nSaved worth.json and worth.png in {out}")


def worth_of_pretraining(request: FineTuneRequest, options: argparse.Namespace, out: Path, seeds: int) -> None:
    from pipeline.experiments.worth import pretraining as worth_pretraining

    found = worth_pretraining.measure(request, finetune, out, seeds=seeds, **how(request, options))
    if found.sizes:
        print(f"{(out / 'worth.md').read_text()}\nSaved metrics.json, worth.csv, worth.md and worth.png in {out}")
    worth_pretraining.check_finite([found])


def worth_on_tasks(grid: Grid, request: FineTuneRequest, options: argparse.Namespace, out: Path, seeds: int) -> None:
    from pipeline.cli.config import finetuning
    from pipeline.experiments.feasible import effective, learning_of
    from pipeline.experiments.worth import tasks as worth_tasks
    from pipeline.experiments.worth.pretraining import check_finite

    requests = worth_tasks.requests_of(grid, request)
    learning = learning_of(request.model, request.encoder)
    for one in requests.values():
        finetuning(replace(one, overrides=effective(one.overrides, learning, one.task, one.arm)))
    options_of_all = how(request, options, grid)
    found = worth_tasks.measure_all(requests, finetune, out, title=request.model, seeds=seeds, **options_of_all)
    if any(one.sizes for one in found):
        print(f"{(out / 'worth.md').read_text()}\nSaved worth.csv, worth.md and worth.png in {out}")
    check_finite(found)


def how(request: FineTuneRequest, options: argparse.Namespace, grid: Grid | None = None) -> dict[str, Any]:
    """The other arguments of `worth_pretraining.measure`.

    Raises:
        UserError: numbers of labels or learning rates are none, or a learning rate is set beside those to try.
    """
    labels = None if options.labels is None else [_count(part) for part in options.labels.split(",")]
    rates = [] if options.rates is None else [_rate(part) for part in options.rates.split(",")]
    fixed = (*(grid.flags if grid else ()), *request.overrides)
    if rates and RATE in settings_in(former_names.flags(fixed)):
        raise UserError(f"--{RATE} has no effect beside {typed.further('--rates', '...')}: leave one of them out.")
    choices = {arm: tries(grid, arm, rates, fixed) for arm in ("full", "scratch")}
    return {"labels": labels, "choices": choices, "overwrite": options.overwrite}


def tries(grid: Grid | None, arm: str, rates: list[float], overrides: Overrides) -> list[Overrides]:
    """The settings that an arm tries: those of a comparison, in place of which `rates` and `overrides` are taken."""
    from pipeline.experiments.comparison.grid import Arm

    chosen = grid.arms[arm].choose if grid and arm in grid.arms else {}
    fixed = settings_in(former_names.flags(overrides))
    left = {name: values for name, values in former_names.current(chosen).items() if name not in fixed}
    return Arm(seeds=1, choose=left | ({RATE: rates} if rates else {})).settings


def _count(text: str) -> int:
    """A number of labels; 0: all.

    Raises:
        UserError: it is none.
    """
    text = text.strip()
    if text == "all":
        return 0
    if not (text.isascii() and text.isdigit() and int(text) > 1):
        raise UserError(f"--labels has '{text}'; it takes numbers above 1, and all, as 10,100,all.")
    return int(text)


def _rate(text: str) -> float:
    """Raises: UserError, it is no learning rate."""
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise UserError(f"--rates has '{text.strip()}'; it takes learning rates, as 3e-4,1e-3.")
    return rate
