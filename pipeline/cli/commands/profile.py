"""`make profile`: a few steps of pretraining, timed; they leave no encoder."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, add_corpus, add_model, add_out, add_overrides, request_of
from pipeline.training.requests import PretrainRequest

HELP = "where the time of a step goes"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_out(parser)
    add_overrides(
        parser, "pretrain", only=("batch-size", "accumulate", "accelerator", "devices", "length", "vocab-size")
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.config import check_steps, pretraining
    from pipeline.experiments.pretraining_run import profile, short

    check_steps(request_of(PretrainRequest, options))
    request = short(request_of(PretrainRequest, options))
    profile(request, pretraining(request))
