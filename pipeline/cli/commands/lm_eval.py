"""`lm-eval`: lm-evaluation-harness on an encoder."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, natural, place
from pipeline.errors import UserError

HELP = "run lm-evaluation-harness on an encoder (extra lm-eval)"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--tasks", required=True, help="lm-eval's names, with commas between them")
    parser.add_argument("--from", "--encoder", dest="folder", type=place, required=True, help="encoder folder")
    parser.add_argument("--limit", type=natural, default=0, help="number of items of each task; 0: all")
    parser.add_argument("--include-path", type=place, default=None, help="folder with YAML files of further tasks")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.encoder_folders import load_for_prompts

    try:
        from pipeline.interop import lm_eval
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("lm_eval"):
            raise
        raise UserError("lm-eval is not installed; .venv/bin/pip install -c constraints.txt -e '.[lm-eval]'.") from None
    encoder = load_for_prompts(options.folder)
    tasks = [task.strip() for task in options.tasks.split(",") if task.strip()]
    print(lm_eval.run(encoder, tasks, limit=options.limit, include=options.include_path))
