"""`make finetune`: an encoder and a head on a labeled task; with SEEDS=, several runs compared with scratch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from pipeline.cli.arguments import (
    Parser,
    add_encoder,
    add_model,
    add_out,
    add_overrides,
    add_resume,
    add_task,
    add_teacher,
    positive,
    request_of,
)
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets.arms import ARMS
from pipeline.training.requests import FineTuneRequest

HELP = "fine-tune an encoder on a task"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_task(parser)
    about = "encoder folder, or a fine-tuned run [runs/pretrain/MODEL/encoder; to count: none, and bytes]"
    add_encoder(parser, about)
    add_teacher(parser, "fine-tuned run whose probabilities are learned beside the labels [none]")
    parser.add_argument("--arm", choices=ARMS, default="full", help="what is trained, from which weights")
    parser.add_argument("--seeds", type=positive, default=None, help="run this many seeds, and as many from scratch")
    add_out(parser)
    add_resume(parser)
    add_overrides(parser, "finetune")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.continued import TEACHER
    from pipeline.cli.encoder_folders import made_in
    from pipeline.cli.task_template import add_missing

    request = request_of(FineTuneRequest, options)
    if options.teacher is not None:
        request = request.override({TEACHER: made_in(options.teacher)}, first=True)
    add_missing(request.task, request.data)
    several_seeds(request, options.seeds) if options.seeds else finetune(request)


def finetune(request: FineTuneRequest) -> None:
    from pipeline.cli.config import finetuning
    from pipeline.cli.encoder_folders import source_folder
    from pipeline.experiments import finetuning_run

    configuration = finetuning(request)  # names and settings before folders
    finetuning_run.finetune(request, configuration, source_folder(request.model, request.encoder, request.arm))


def several_seeds(request: FineTuneRequest, seeds: int) -> None:
    """One arm and scratch, with the same number of seeds, and the gain of the arm."""
    from pipeline.cli.encoder_folders import source_folder
    from pipeline.experiments.comparison.files import show
    from pipeline.experiments.comparison.grid import Arm, Grid, check_grid_settings
    from pipeline.experiments.comparison.runs import compare
    from pipeline.experiments.feasible import is_counting
    from pipeline.experiments.finetuning_run import run_name
    from pipeline.experiments.many_runs import check_seeds

    if is_counting(request.model):
        raise UserError(
            f"{typed.flag('seeds', seeds)} compares with the arm 'scratch', which {request.model} does not have: it "
            "counts the texts of the task alone."
        )
    folder = source_folder(request.model, request.encoder, request.arm)
    grid = Grid(
        models=[request.model],
        tasks={request.task: request.data},
        arms={arm: Arm(seeds) for arm in dict.fromkeys((request.arm, "scratch"))},
        encoders=None if folder is None else str(folder),
        flags=list(request.overrides),
    )
    out = request.out or Path("runs/finetune") / f"{run_name(request)}-seeds"
    if (out / "config.yaml").exists():
        raise UserError(f"{out} holds a single run; choose another {typed.flag('out')} for several.")
    check_seeds(seeds, request.seed)
    check_grid_settings(grid)
    command = replace(request, encoder=folder, out=out).command("finetune", "--seeds", str(seeds))
    compare(grid, out, finetune, command=command, overwrite=request.overwrite)
    show(out)
