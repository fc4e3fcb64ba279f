"""`make decoding`: BLEU of a translation run with the right words given, greedy, and by beams of several widths."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import INPUT, OUTPUT, Parser, check_free, number, place, positive
from pipeline.errors import UserError

HELP = "translations of a run by greedy and beam search, and with the right words given"
BEAMS = "1,2,5,10"


def beams(text: str) -> list[int]:
    """Widths with commas between them."""
    return list(dict.fromkeys(positive(width) for width in text.split(",")))


def add_arguments(parser: Parser) -> None:
    group = parser.group(INPUT)
    group.add_argument(
        "--from", dest="folder", metavar="RUN", type=place, required=True, help="run folder of a translation"
    )
    group.add_argument("--beams", type=beams, default=beams(BEAMS), help=f"widths [{BEAMS}]")
    group.add_argument("--length-penalty", type=number, default=1.0, help="of beam search [1]")
    parser.group(OUTPUT).add_argument("--out", type=place, default=None, help="JSON file to write the figures into")


def run(options: argparse.Namespace) -> None:
    from pipeline.console.progress import progress
    from pipeline.finetuning import model as models
    from pipeline.inspection import decoding
    from pipeline.inspection.decoding import Way
    from pipeline.models.generation import Search
    from pipeline.storage.atomic import write_json

    check_free(options.out)
    for beam in options.beams:
        Search(beam=beam, length_penalty=options.length_penalty)  # before minutes of the first way
    sources, references = tested(options.folder)
    model = models.load(options.folder / "model")
    ways = [Way(None), *(Way(beam, options.length_penalty) for beam in options.beams)]
    found = list(
        progress(decoding.compare(model, sources, references, ways), total=len(ways), desc="decoding", unit="way")
    )
    print(f"{len(sources):,} texts of {options.folder}\n\n{decoding.table(found)}", end="")
    if options.out is not None:
        write_json(options.out, decoding.figures(found))
        print(f"\nSaved {options.out}")


def tested(folder: Path) -> tuple[list[str], list[str]]:
    """The sources and references that a run was tested on.

    Raises:
        UserError: it is not a finished run of a translation.
    """
    from pipeline.reporting.run_record import RunRecord

    rows = RunRecord.read(folder).predictions
    if not rows:
        raise UserError(f"{folder} is not the folder of a finished run: it has no predictions.jsonl.")
    if not {"source", "reference"} <= rows[0].keys():
        raise UserError(f"{folder / 'predictions.jsonl'} holds no translations: the run was of another kind of task.")
    return [row["source"] for row in rows], [row["reference"] for row in rows]
