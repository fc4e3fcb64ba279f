"""`make worth`: data efficiency, how many labels a prompt is worth (Le Scao and Rush 2021)."""

from __future__ import annotations

import argparse
from pathlib import Path

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
from pipeline.errors import UserError
from pipeline.training.requests import FineTuneRequest, settings_in

HELP = "zero-shot beside fine-tunes on 10 to 1,000 rows"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_task(parser)
    add_encoder(parser)
    parser.add_argument("--seeds", type=positive, default=3, help="fine-tunes for each number of rows")
    add_out(parser)
    add_overrides(parser, "finetune")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.cli.task_template import add_missing
    from pipeline.experiments import data_efficiency
    from pipeline.experiments.comparison import format_scores
    from pipeline.experiments.grid import check_seeds
    from pipeline.presets import task_file

    add_missing(options.task, options.data)
    file, folder = task_file(options.task), encoder_folder(options.model, options.encoder)
    out = options.out or Path("runs/worth") / f"{options.model}-{file.stem}"
    check_seeds(options.seeds, options.seed)
    if any(name.startswith("data.train_rows") for name in settings_in(options.overrides)):
        raise UserError("worth varies data.train_rows itself; remove that flag.")
    request = request_of(FineTuneRequest, options, encoder=folder, overwrite=False)
    figures = data_efficiency.measure(
        request, finetune, zeroshot, out, seeds=options.seeds, overwrite=options.overwrite
    )
    for number, scores in figures["finetuned"].items():
        print(f"{number:>6} rows  {format_scores(scores)}")
    print(f"{data_efficiency.verdict(figures)}\nSaved worth.json and worth.png in {out}")
