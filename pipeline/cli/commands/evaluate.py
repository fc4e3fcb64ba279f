"""`make evaluate`: losses and bits per byte of an encoder on a text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.arguments import (
    INPUT,
    OUTPUT,
    Parser,
    add_corpus,
    add_encoder,
    add_model,
    add_overrides,
    check_free,
    place,
    positive,
    request_of,
)
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.training.requests import CorpusRequest, by_setting

if TYPE_CHECKING:
    from pipeline.models.base import Encoder
    from pipeline.training.corpus_data import CorpusData

HELP = "losses and bits per byte of an encoder on a text"
FIXED = ("model.encoder", "trainer.", "data.validation_rows", "data.tokenizer")  # by the encoder
TAKEN = ("data.", "model.objective", "model.encoder", "trainer.", "config")  # the others would have no effect
NATS = ("_loss", "_spelling")  # ends of the names of figures in nats


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_encoder(parser)
    parser.group(INPUT).add_argument(
        "--mix",
        metavar="FOLDER",
        type=place,
        default=None,
        help="also score the mixture with the encoder in this folder, of the same tokenizer",
    )
    group = parser.group(OUTPUT)
    group.add_argument("--out", type=place, default=None, help="JSON file to write the figures into")
    group.add_argument("--by-context", action="store_true", help="loss by tokens of context; with --out, a plot too")
    group.add_argument(
        "--stride",
        metavar="TOKENS",
        type=positive,
        default=None,
        help="also score in overlapping rows: tokens from one to the next",
    )
    add_overrides(parser, "pretrain", only=("batch-size", "length"))


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.inspection import context_loss
    from pipeline.inspection import evaluate as evaluating
    from pipeline.inspection.token_report import Wanted, check_models, token_report
    from pipeline.storage.atomic import write_json
    from pipeline.version import __version__

    for name, words in by_setting(options.overrides):
        if not name.startswith(TAKEN):
            raise UserError(f"evaluate does not train: {words[0]} has no effect, so leave it out.")
        if name.startswith(FIXED):
            raise UserError(f"evaluate takes an encoder as it was saved, and all rows of a text: leave out {words[0]}.")
    plot = options.out.with_suffix(".png") if options.out is not None and options.by_context else None
    check_free(options.out, plot)
    folder = encoder_folder(options.model, options.encoder)
    folders = [folder, *([] if options.mix is None else [options.mix])]
    if len({file.resolve() for file in folders}) < len(folders):
        raise UserError(f"{typed.flag('mix', options.mix)} is the evaluated encoder itself: give another one.")
    models, data = opened(folders, request_of(CorpusRequest, options))
    wanted = Wanted(by_context=options.by_context, stride=options.stride, mixed=options.mix is not None)
    named = dict(zip(map(name_of, folders), models, strict=True))
    if wanted:
        check_models(named, data, wanted)
    metrics = evaluating.evaluate(models[0], data)
    if note := evaluating.note_on_text(models[0], folder, data):
        print(note)
    if count := sum(parameter.numel() for parameter in data.objective.parameters() if parameter.requires_grad):
        name = type(data.objective).__name__
        print(f"Warning: {name} has {count:,} parameters of its own, which no encoder folder has: here they are fresh.")
    print_figures(metrics)
    report = token_report(named, data, wanted) if wanted else None
    if report is not None:
        print(f"\n{report}")
    if options.out is not None:
        about = {"encoder": str(folder), "corpus": options.corpus, "data": options.data, "version": __version__}
        figures = {**about, **metrics, **(report.figures() if report else {})}
        write_json(options.out, figures)
        print(f"Saved {options.out}")
    if plot is not None and report is not None:
        context_loss.plot(report.by_context, plot, title=f"Loss by context on {Path(options.corpus).name}")
        print(f"Saved {plot}")
    if (unknown := metrics["unknown"]) > evaluating.FEW_UNKNOWN:
        print(
            f"Warning: {unknown:.1%} of what is predicted is unknown to this encoder, and [UNK] is an easy guess: its "
            "perplexity here compares with none of another text or vocabulary."
        )


def opened(folders: Sequence[Path], request: CorpusRequest) -> tuple[list[Encoder], CorpusData]:
    """The encoders of folders, and the text in rows of the length that the first one was trained on."""
    from pipeline import encoders
    from pipeline.cli.config import pretraining
    from pipeline.inspection import evaluate as evaluating

    models = [encoders.load_with_heads(folder) for folder in folders]
    trained = [evaluating.training_length(*model) for model in zip(models, folders, strict=True)]
    settings = {} if trained[0] is None else {"data.length": trained[0]}
    data = pretraining(request.override(settings, first=True)).data
    for encoder, length in zip(models, trained, strict=True):
        if note := evaluating.note_on_length(encoder, data.length, length):
            print(note)
    return models, data


def print_figures(metrics: Mapping[str, float]) -> None:
    """One to a line; losses in nats."""
    for name, value in metrics.items():
        unit = " nats" if name.startswith("baseline/") or name.endswith(NATS) else ""
        print(f"{name:<24} {value:,}" if isinstance(value, int) else f"{name:<24} {value:.4f}{unit}")


def name_of(folder: Path) -> str:
    """The encoder of a run is called as its run folder."""
    return str(folder.parent if folder.name == "encoder" else folder)
