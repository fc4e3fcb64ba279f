"""`make retrieval`: how often the nearest text of another language is the translation, by layer of an encoder."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pipeline.cli.arguments import INPUT, OUTPUT, Parser, add_encoder, add_model, check_free, place, positive
from pipeline.errors import UserError

HELP = "how often the nearest text of another language is the translation, by layer of an encoder"
DEFAULT = "translation"  # of TASK=
TEXTS = 1_000


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    group = parser.group(INPUT)
    group.add_argument("--task", default=DEFAULT, help="a translation in configs/tasks, or a path to a YAML file")
    group.add_argument("--texts", type=positive, default=TEXTS, help="at most, of a part of the task")
    add_encoder(parser, "encoder folder [runs/pretrain/MODEL/encoder]")
    parser.group(OUTPUT).add_argument("--out", type=place, default=None, help="JSON file for the figures; a plot too")


def run(options: argparse.Namespace) -> None:
    from pipeline import encoders
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.data import labeled
    from pipeline.inspection import retrieval
    from pipeline.presets.tasks import task_file, trained_task
    from pipeline.storage.atomic import write_json
    from pipeline.version import __version__

    plot = None if options.out is None else options.out.with_suffix(".png")
    check_free(options.out, plot)
    task, name = trained_task(options.task), task_file(options.task).stem
    if not task.parallel:
        raise UserError(f"{name} has no translations: retrieval needs a task of translation, as {DEFAULT}.")
    folder = encoder_folder(options.model, options.encoder)
    encoder = encoders.load(folder)
    parts = labeled.read(task, options.data).parts
    training = _sides(parts["train"].examples)
    validation, test = (_sides(parts[part].examples[: options.texts]) for part in ("valid", "test"))
    source, target = (task.columns[role] for role in ("source", "target"))
    found = retrieval.retrieve(encoder, training, validation, test, languages=(source, target))
    print(f"The nearest of {found.texts:,} texts of {name}, by {folder}\n\n{retrieval.table(found)}", end="")
    if found.truncated:
        print(f"\n{found.truncated:,} texts are longer than the encoder reads, and were cut.")
    if options.out is not None and plot is not None:
        about = {"encoder": str(folder), "task": name, "data": options.data, "version": __version__}
        write_json(options.out, about | retrieval.figures(found))
        retrieval.plot(found, plot, title=f"Translations of {name} found by {folder}")
        print(f"\nSaved {options.out} and {plot}")


def _sides(examples: Sequence) -> tuple[list[str], list[str]]:
    """Sources and targets."""
    return [str(example.text) for example in examples], [str(example.label) for example in examples]
