"""`make data`: the token store of a corpus."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, add_corpus, add_model, add_overrides, request_of
from pipeline.training.requests import CorpusRequest

HELP = "build the token store and report on it"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_overrides(parser, "pretrain", only=("length", "vocab-size"))


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.config import pretraining
    from pipeline.training.corpus_report import corpus_report

    corpus = pretraining(request_of(CorpusRequest, options)).data
    corpus.prepare()
    print(corpus_report(corpus))
