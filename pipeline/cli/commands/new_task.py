"""`make new-task`: the YAML file of a new data set, with comments, and a test of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser
from pipeline.cli.task_template import KINDS, described, new_task
from pipeline.console import typed

HELP = "the YAML file of a new data set, and a test of it"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", required=True, help="small letters, digits and hyphens")
    parser.add_argument(
        "--kind", choices=tuple(KINDS), default=None, help="of the task (default: what the data look like)"
    )
    parser.add_argument("--data", default=None, help="file or folder of its data: columns and labels are guessed")


def run(options: argparse.Namespace) -> None:
    [file, *tests] = new_task(options.name, options.kind, Path(), data=options.data)
    for path in (file, *tests):
        print(f"Wrote {path}")
    next_command = typed.command("finetune", task=options.name, data=options.data or "reviews.csv")
    if options.data is None:
        print(f"Now name your columns there, then: {next_command}")
    else:
        print(f"{described(file)}\nNext: {next_command}")
