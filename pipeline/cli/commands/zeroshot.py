"""`make zeroshot`: a task's prompts put to a pretrained encoder, without training; to several, over words seen."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, add_encoder, add_model, add_out, add_task, natural, request_of
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.training.requests import ZeroShotRequest

HELP = "prompt a pretrained encoder, without training"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_task(parser)
    add_encoder(parser, "encoder folder, or RUN/encoders: a curve over words seen [runs/pretrain/MODEL/encoder]")
    parser.add_argument("--shots", default="0", help="solved examples in front; several numbers give a curve: 0,1,4")
    parser.add_argument("--limit", type=natural, default=0, help="number of rows; 0: all")
    parser.add_argument("--log-text", action="store_true", help="texts of DATA may go to Weights & Biases")
    about = "file or pattern of texts: the frequencies of their words are one more baseline"
    parser.add_argument("--unigram", default=None, help=about)
    add_out(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.task_template import add_missing

    request = request_of(ZeroShotRequest, options, shots=shots_of(options.shots))
    add_missing(request.task, request.data)
    if not over_words(request):
        zeroshot(request)


def over_words(request: ZeroShotRequest) -> bool:
    """Draws a curve, where FROM= names encoders that were saved at numbers of words; False: it does not."""
    from pipeline.experiments.words.curve import measure
    from pipeline.experiments.words.saved import runs_at
    from pipeline.presets.tasks import task_file

    curves = runs_at(request.encoder)
    if curves:
        name = f"{curves[0].name if len(curves) == 1 else 'several'}-{task_file(request.task).stem}-words"
        out = request.out or Path("runs/zeroshot") / name
        measure(request, curves, out, zeroshot, overwrite=request.overwrite)
        print(f"{(out / 'curve.md').read_text()}\nSaved curve.csv, curve.md and curve.png in {out}")
    return bool(curves)


def shots_of(text: str) -> tuple[int, ...]:
    """Raises: UserError, it is not a list of numbers."""
    try:
        shots = tuple(int(part) for part in text.replace(",", " ").split())
    except ValueError:
        raise UserError(f"{typed.flag('shots', text)} must be numbers, as 0 or 0,1,4.") from None
    if not shots or min(shots) < 0:
        raise UserError(f"{typed.flag('shots', text)} must be numbers of at least 0.")
    return shots


def zeroshot(request: ZeroShotRequest) -> None:
    from pipeline.cli.encoder_folders import encoder_folder, load_for_prompts
    from pipeline.presets.tasks import task_file, task_of
    from pipeline.prompting.run import Prompting, run
    from pipeline.storage.paths import path_of
    from pipeline.training.run_folder import check_run_folder, run_folder

    file = task_file(request.task)  # names before folders
    task, folder = task_of(file), encoder_folder(request.model, request.encoder)
    encoder = load_for_prompts(folder)
    out = run_folder(request.out, "zeroshot", f"{request.model}-{file.stem}")
    uses = [folder, file, *(path_of(place) for place in (request.data, request.unigram) if place is not None)]
    check_run_folder(out, overwrite=request.overwrite, stage="zeroshot", resumes=False, uses=uses, rows=request.data)
    run(Prompting(request, encoder, task, file.stem, folder, out))
