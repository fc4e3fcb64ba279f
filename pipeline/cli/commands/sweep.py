"""`make sweep`: a sweep of Weights & Biases over one stage, chosen by its server."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pipeline.cli.arguments import (
    Parser,
    add_corpus,
    add_encoder,
    add_model,
    add_overrides,
    add_task,
    natural,
)
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets.files import DEFAULT_TASK, named_config, unknown
from tasks.base import Task

HELP = "a sweep of Weights & Biases over one stage"
FLAGS = {"pretrain": ("model", "corpus", "from"), "finetune": ("model", "task", "from")}  # that its runs take


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", default="finetune", help="a name in configs/sweeps")
    add_model(parser)
    add_corpus(parser)
    add_task(parser)
    add_encoder(parser)
    parser.set_defaults(corpus=None, task=None)  # what is given is refused where the stage does not take it
    parser.add_argument("--count", type=natural, default=20, help="runs here; 0: until it is stopped")
    add_overrides(parser)


def run(options: argparse.Namespace) -> None:
    """Unknown flags go to each run of the sweep."""
    from pipeline.experiments.feasible import task_as_run

    file = named_config("sweeps", options.name)
    if file is None or options.name not in FLAGS:
        raise UserError(unknown("sweep", options.name, "sweeps"))
    given = {"model": options.model, "corpus": options.corpus, "task": options.task, "from": options.encoder}
    if odd := [name for name in given if given[name] and name not in FLAGS[options.name]]:
        raise UserError(f"A sweep over {options.name} takes no {typed.flag(odd[0])}.")
    flags = [part for name in FLAGS[options.name] if given[name] for part in (f"--{name}", str(given[name]))]
    flags += ["--data", options.data] if options.data else []
    flags += ["--seed", str(options.seed), *options.overrides]
    task = task_as_run(options.task or DEFAULT_TASK, options.overrides) if options.name == "finetune" else None
    name = start(load(file, flags, task), count=options.count)
    print(f"More runs of it: .venv/bin/wandb agent {name}")


def load(file: Path, flags: list[str], task: Task | None) -> dict[str, Any]:
    """A sweep of W&B from its YAML file, named as the command that it runs, with the flags of that command.

    Args:
        task: its metric takes the place of {metric} in the name of what is optimized, and has its own goal.
    """
    from pipeline.storage.validation import read_yaml

    content = read_yaml(file, dict[str, Any])
    goal = dict(content["metric"])
    if task is not None and "{metric}" in goal["name"]:
        direction = "maximize" if task.mode == "max" else "minimize"
        goal = {"name": goal["name"].replace("{metric}", task.metric), "goal": direction}
    command = [sys.executable, "-m", "pipeline", file.stem, *flags, "${args}"]
    return {**content, "metric": goal, "name": file.stem, "command": command}


def start(sweep: dict[str, Any], *, count: int) -> str:
    """Starts a sweep and runs `count` of its runs here; returns it as `wandb agent` finds it, on further machines too.

    Raises:
        UserError: no key, since it is the server that chooses what to try.
    """
    from pipeline.tracking.wandb_environment import has_key, wandb_project

    if not has_key():
        raise UserError(
            "A sweep is controlled by the server of Weights & Biases: set WANDB_API_KEY. Offline, "
            f"`{typed.command('compare')}` tries all combinations of the settings under `choose` in its YAML file."
        )
    import wandb

    os.environ.pop("WANDB_MODE", None)
    project = wandb_project()
    name = wandb.sweep(sweep, project=project)
    wandb.agent(name, project=project, count=count or None)
    return "/".join(part for part in (os.environ.get("WANDB_ENTITY"), project, name) if part)
