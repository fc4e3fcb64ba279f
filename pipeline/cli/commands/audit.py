"""`make audit`: checks of masks, labels and leaks on real batches. Exit status 1 when one fails."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, add_corpus, add_model, add_overrides, request_of
from pipeline.training.requests import CorpusRequest

HELP = "check masks, labels and leaks of a model"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_overrides(parser, "pretrain", only=("batch-size", "length", "vocab-size"))


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.config import pretraining
    from pipeline.inspection.audit import audit

    configuration = pretraining(request_of(CorpusRequest, options))
    data, module = configuration.data, configuration.module
    data.prepare(module.make_network)
    module.build(data)
    print(f"audit of {options.model} on {Path(options.corpus).name}")
    failed = 0
    for check in audit(module.encoder, data, uniform=module.baselines["baseline/uniform"]):
        print(check, flush=True)
        failed += not check.passed
    print(f"{failed} failed" if failed else "all passed")
    if failed:
        raise SystemExit(1)
