"""`predict`: labels or tags of new texts, as JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys

from pipeline.cli.arguments import Parser, place, positive
from pipeline.errors import UserError
from pipeline.presets import INPUTS

HELP = "labels or tags of new texts, as JSON lines"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--model", type=place, required=True, help="model folder of a fine-tune")
    parser.add_argument("--input", default="-", help="file, or - for standard input")
    parser.add_argument("--format", choices=INPUTS, default=None, help="of the input; by its name")
    parser.add_argument("--out", type=place, default=None, help="file; standard output otherwise")
    parser.add_argument("--batch-size", type=positive, default=64)


def run(options: argparse.Namespace) -> None:
    from pipeline.finetuning import model as models
    from pipeline.finetuning import predict_files
    from pipeline.training.run_folder import check_place

    if options.out is not None:
        check_place(options.out)
        if options.out.resolve().parent == options.model.resolve():
            raise UserError(f"{options.out} lies in the folder of the model; choose another --out.")
    form = predict_files.form_of(options.input, options.format)
    name = "standard input" if options.input == "-" else options.input
    with contextlib.ExitStack() as files:
        model = models.load(options.model)
        source = files.enter_context(predict_files.open_source(options.input))
        target = files.enter_context(predict_files.open_target(options.out, source)) if options.out else sys.stdout
        try:
            predict_files.predict(model, source, name, target=target, form=form, batch_size=options.batch_size)
        except UnicodeDecodeError:
            raise UserError(f"{name} is not UTF-8 text.") from None
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
