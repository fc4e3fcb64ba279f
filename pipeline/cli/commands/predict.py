"""`predict`: labels, tags, scores, answers or translations of new texts, as JSON lines or as a table."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from functools import partial

from pipeline.cli.arguments import Parser, place, positive
from pipeline.console import typed
from pipeline.data.tables import INPUTS
from pipeline.errors import UserError

HELP = "labels, tags, scores, answers or translations of new texts"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        *("--from", "--model"), dest="folder", type=place, required=True, help="run or model folder of a fine-tune"
    )
    parser.add_argument(
        *("--data", "--input"), dest="input", default="-", help="file of texts or a table, or - for standard input"
    )
    parser.add_argument("--format", choices=INPUTS, default=None, help="of the input [by its name]")
    parser.add_argument(
        "--out",
        type=place,
        default=None,
        help="file: .csv and .tsv have the columns of the input too, others JSON lines [standard output]",
    )
    parser.add_argument("--batch-size", type=positive, default=64, help="texts that are read at once")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.encoder_folders import made_in
    from pipeline.data.files import BROKEN, undecompressed
    from pipeline.data.tables import not_utf8
    from pipeline.finetuning import model as models
    from pipeline.finetuning import predict_files
    from pipeline.finetuning.answers import DELIMITERS
    from pipeline.training.run_folder import check_place

    folder = made_in(options.folder)
    if options.out is not None:
        check_place(options.out)
        if options.out.resolve().parent == folder.resolve():
            raise UserError(f"{options.out} lies in the folder of the model; choose another {typed.flag('out')}.")
    form = predict_files.form_of(options.input, options.format)
    delimiter = DELIMITERS.get(options.out.suffix.lower()) if options.out is not None else None
    name = "standard input" if options.input == "-" else options.input
    with contextlib.ExitStack() as files:
        model = models.load(folder)
        source = files.enter_context(predict_files.open_source(options.input, form))
        target = files.enter_context(predict_files.open_target(options.out, source)) if options.out else sys.stdout
        if source is sys.stdin and sys.stdin.isatty():
            reads = typed.flag("data", "FILE")
            print(f"Reading texts from the keyboard, one a line; Ctrl-D ends. ({reads} reads a file.)", file=sys.stderr)
        try:
            reading = partial(predict_files.predict, model, source, name, form=form, batch_size=options.batch_size)
            reading(target=target, delimiter=delimiter)
        except UnicodeDecodeError:
            raise UserError(f"{name} is not UTF-8 text." if options.input == "-" else not_utf8(name)) from None
        except BROKEN:
            raise UserError(undecompressed(name)) from None
        except BrokenPipeError:  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if options.out is not None:
        print(f"Saved {options.out}")
