"""`make pretrain`: an encoder from raw text."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import (
    Parser,
    add_corpus,
    add_encoder,
    add_model,
    add_out,
    add_overrides,
    add_resume,
    add_teacher,
    request_of,
)
from pipeline.training.requests import PretrainRequest

HELP = "pretrain an encoder on raw text"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_encoder(parser, "encoder folder to go on from, with its tokenizer, sizes and weights [none: fresh weights]")
    add_teacher(parser, "encoder folder to distill: the student has half of its layers, learns what it predicts [none]")
    add_out(parser)
    add_resume(parser)
    add_overrides(parser, "pretrain")


def run(options: argparse.Namespace) -> None:
    pretrain(request_of(PretrainRequest, options))


def pretrain(request: PretrainRequest) -> None:
    from pipeline.cli.config import check_updates, pretraining
    from pipeline.experiments import pretraining_run

    check_updates(request)
    pretraining_run.pretrain(request, pretraining(request))
