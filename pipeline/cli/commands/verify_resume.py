"""`make verify-resume`: does a killed run end as an uninterrupted one? Exit status 1 when it does not.

On a processor unless ARGS say otherwise: some of CUDA's kernels add up in another order each time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, add_corpus, add_model, add_out, add_overrides, request_of
from pipeline.presets.files import DEFAULT_CORPUS, DEFAULT_TASK, named_config
from pipeline.training.requests import FineTuneRequest, PretrainRequest, by_setting

HELP = "does a killed run end as an uninterrupted one?"
# Settings of both stages: what a run computes on, and with.
OF_BOTH = ("precision", "trainer.accelerator", "trainer.accumulate_grad_batches")
SHORT = {"trainer.max_steps": 40, "validate_every": 6, "trainer.log_every_n_steps": 2}


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    parser.add_argument("--task", default=DEFAULT_TASK, help="what the encoder is fine-tuned on")
    add_out(parser)
    add_overrides(parser, "pretrain")


def run(options: argparse.Namespace) -> None:
    from pipeline.cli import config
    from pipeline.experiments import resume_test

    out, place = options.out or Path("runs/verify-resume") / options.model, {"trainer.accelerator": "cpu"}
    preset = options.corpus != DEFAULT_CORPUS and named_config("corpora", options.corpus) is not None
    data = options.data if preset else None  # else of the task
    pretraining = request_of(PretrainRequest, options, out=None, overwrite=False, data=data)
    config.check_steps(pretraining)
    results = {}
    request = pretraining.override(place | SHORT, first=True)
    settings = config.pretraining(request).settings
    resume_test.plan(settings.trainer.max_steps, settings.validate_every, options.seed)  # refuses too few validations
    results["pretrain"] = resume_test.verify("pretrain", request, out, seed=options.seed)
    shared = [words for name, words in by_setting(options.overrides) if name.startswith(OF_BOTH)]
    tuning = FineTuneRequest(
        model=options.model,
        seed=options.seed,
        task=options.task,
        data=None if preset else options.data,
        encoder=out / "pretrain-straight/encoder",
        overrides=tuple(word for words in shared for word in words),
    ).override({"data.epochs": 3, "model.recipe.unfreeze_share": 0.5, **place}, first=True)
    results["finetune"] = resume_test.verify("finetune", tuning, out, seed=options.seed)
    about = {"model": options.model, "corpus": Path(options.corpus).name, "task": options.task}
    print(resume_test.certificate(out, results, **about))
    if not all(result["passed"] for result in results.values()):
        raise SystemExit(1)
