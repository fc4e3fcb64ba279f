"""`make evaluate`: losses and bits per byte of an encoder on a text."""

from __future__ import annotations

import argparse
import json

from pipeline.cli.arguments import (
    OUTPUT,
    Parser,
    add_corpus,
    add_encoder,
    add_model,
    add_overrides,
    place,
    request_of,
)
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.training.requests import CorpusRequest, by_setting

HELP = "losses and bits per byte of an encoder on a text"
FIXED = ("model.encoder", "trainer.", "data.validation_rows", "data.tokenizer")  # by the encoder


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_encoder(parser)
    parser.group(OUTPUT).add_argument("--out", type=place, default=None, help="JSON file to write the figures into")
    add_overrides(parser, "pretrain")


def run(options: argparse.Namespace) -> None:
    from pipeline import encoders
    from pipeline.cli.config import pretraining
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.inspection import evaluate as evaluating
    from pipeline.storage.atomic import write_atomically
    from pipeline.training.run_folder import check_place
    from pipeline.version import __version__

    for name, words in by_setting(options.overrides):
        if name.startswith(FIXED):
            raise UserError(f"evaluate takes an encoder as it was saved, and all rows of a text: leave out {words[0]}.")
    if options.out is not None:
        check_place(options.out)
        if options.out.exists():
            raise UserError(f"{options.out} is there already; choose another {typed.flag('out')}.")
    folder = encoder_folder(options.model, options.encoder)
    encoder = encoders.load_with_heads(folder)
    request = request_of(CorpusRequest, options)
    trained = evaluating.training_length(encoder, folder)
    configuration = pretraining(request if trained is None else request.override({"data.length": trained}, first=True))
    if note := evaluating.note_on_length(encoder, configuration.data.length, trained):
        print(note)
    metrics = evaluating.evaluate(encoder, configuration.data)
    for name, value in metrics.items():
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value:.4f}")
    if options.out is not None:
        about = {"encoder": str(folder), "corpus": options.corpus, "data": options.data, "version": __version__}
        write_atomically(options.out, json.dumps({**about, **metrics}, indent=2) + "\n")
        print(f"Saved {options.out}")
    if (unknown := metrics["unknown"]) > evaluating.FEW_UNKNOWN:
        print(
            f"Warning: {unknown:.1%} of what is predicted is unknown to this encoder, and [UNK] is an easy guess: its "
            "perplexity here compares with none of another text or vocabulary."
        )
