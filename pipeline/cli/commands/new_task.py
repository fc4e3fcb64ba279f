"""`make new-task`: the YAML file of a new data set, with comments, and a test of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser
from pipeline.cli.task_template import KINDS, new_task
from pipeline.presets import CONFIGS

HELP = "the YAML file of a new data set, and a test of it"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", required=True, help="small letters, digits and hyphens")
    parser.add_argument("--kind", choices=tuple(KINDS), default="sentence", help="of the task")


def run(options: argparse.Namespace) -> None:
    for file in new_task(options.name, options.kind, Path(), packaged=CONFIGS / "tasks"):
        print(f"Wrote {file}")
    print(f"Now name your columns there, then: make finetune TASK={options.name} DATA=folder")
