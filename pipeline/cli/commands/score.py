"""`make score`: scores of a fine-tuned model on labeled texts that it was not tested on, as of another language."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pipeline.cli.arguments import INPUT, OUTPUT, Parser, check_free, place, positive
from pipeline.errors import UserError

HELP = "scores of a fine-tuned model on other labeled texts"


def add_arguments(parser: Parser) -> None:
    group = parser.group(INPUT)
    group.add_argument("--from", dest="folder", type=place, required=True, help="run or model folder of a fine-tune")
    about = "a name in configs/tasks, or a path to a YAML file [the task that the model was fine-tuned on]"
    group.add_argument("--task", default=None, help=about)
    group.add_argument("--data", default=None, help="local folder, file or pattern instead of a hub name")
    group.add_argument("--part", choices=("train", "valid", "test"), default="test", help="of the data")
    group.add_argument("--batch-size", type=positive, default=64, help="texts that are read at once")
    about = "JSON file for the figures; beside it predictions (.jsonl) and plots"
    parser.group(OUTPUT).add_argument("--out", type=place, default=None, help=about)


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.encoder_folders import made_in
    from pipeline.data.labeled import read_part
    from pipeline.finetuning import model as models
    from pipeline.finetuning import scoring
    from pipeline.models.encoder_decoder import set_language
    from pipeline.presets.tasks import task_file, trained_task
    from pipeline.storage.atomic import write_atomically, write_json
    from pipeline.storage.json_lines import json_line
    from pipeline.tracking import lineage, plots
    from pipeline.version import __version__

    folder = made_in(options.folder)
    model = models.load(folder)
    name = options.task or _trained_on(folder)
    task = trained_task(name)
    out: Path | None = options.out
    rows, drawn = _beside(out, task.pictures)
    check_free(out, rows, *drawn.values())
    scoring.check_kind(model, task)
    task.take_outputs(model.labels)
    if task.language is not None:
        set_language(model.encoder, task.language)
    read = read_part(task, options.data, options.part)
    examples = read.parts[options.part].examples
    found = scoring.score(model, task, examples, batch_size=options.batch_size)
    left_out = f" ({count:,} left out, {task.ignores})" if (count := read.left_out[options.part]) else ""
    print(f"{len(examples):,} {options.part} rows of {task_file(name).stem}{left_out}, by {folder}")
    if (columns := read.read_from(task)) is not None:
        print(columns)
    print(task.headline(found.scores.figures).removeprefix("test "))
    if found.cut:
        print(f"{found.cut:,} texts were cut to fit into {model.options.max_length} tokens.")
    if found.degenerate:
        print("Warning: every answer is the same.")
    if trained := _trained_rows(folder.parent / "splits.csv", [place for place, _ in read.parts[options.part].rows]):
        print(f"Warning: the model was trained on {trained:,} of these rows, so this says little of new texts.")
    if out is None or rows is None:
        return
    about = {"model": str(folder), "weights": lineage.made("model", folder)["sha256"][:12], "version": __version__}
    about |= {"task": task_file(name).stem, "data": options.data, "part": options.part, "rows": len(examples)}
    write_json(out, {**about, **found.scores.figures, **found.scores.details})
    write_atomically(rows, "".join(map(json_line, found.rows(task, examples))))
    figures = task.plots(examples, [prediction.label for prediction in found.predictions])
    for picture, figure in figures.items():
        figure.suptitle(f"{folder}\n{len(examples):,} {options.part} rows of {task_file(name).stem}", parse_math=False)
        plots.save_figure(figure, drawn[picture])
    print(f"Saved {', '.join(map(str, [out, rows, *(drawn[picture] for picture in figures)]))}")


def _trained_on(folder: Path) -> str:
    """The task that a model was fine-tuned on last.

    Raises:
        UserError: its lineage names none that is known here.
    """
    from pipeline.console import typed
    from pipeline.presets.files import named_config
    from pipeline.tracking import lineage

    names = lineage.tasks_of(lineage.read(folder))
    if not names or named_config("tasks", names[-1]) is None:
        raise UserError(f"Which task is it? {folder} does not say; name one ({typed.flag('task')}).")
    return names[-1]


def _trained_rows(splits: Path, places: Sequence[str]) -> int:
    """How many of these rows are of the training part of a run, which a file of its run says."""
    if not splits.is_file():
        return 0
    whole = cache(lambda source: Path(source).resolve())
    with splits.open(encoding="utf-8", newline="") as opened:
        trained = {(whole(row["source"]), row["place"]) for row in csv.DictReader(opened) if row["part"] == "train"}
    return sum((whole(source), number) in trained for source, number in (place.rsplit(", ", 1) for place in places))


def _beside(out: Path | None, pictures: tuple[str, ...]) -> tuple[Path | None, dict[str, Path]]:
    """The files of predictions and of plots beside that of the figures."""
    if out is None:
        return None, {}
    return out.with_suffix(".jsonl"), {name: out.with_name(f"{out.stem}-{name}.png") for name in pictures}
