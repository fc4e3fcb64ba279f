"""`make report`: one HTML page of a run, of a comparison, or of everything that grew from one encoder."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, place
from pipeline.presets.files import DEFAULT_MODEL, pretrained

HELP = "an HTML page of a run, of a comparison, or of all that grew from an encoder"
DEFAULT = pretrained(DEFAULT_MODEL).parent


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--from",
        dest="folder",
        type=place,
        default=DEFAULT,
        help=f"folder of a run, a comparison or an encoder [{DEFAULT}]",
    )
    parser.add_argument("--out", type=place, default=None, help="folder of the page [that of the run]")
    parser.add_argument(
        "--search",
        type=place,
        nargs="+",
        default=[Path("runs"), Path("results")],
        help="folders with runs that grew from the encoder [runs results]",
    )


def run(options: argparse.Namespace) -> None:
    from pipeline.reporting import report
    from pipeline.training.run_folder import check_place

    folder = report.folder_of(options.folder)
    out = options.out or folder
    check_place(out)
    report.write(report.page_of(folder, [*options.search, folder]), out)
    print(f"Saved {', '.join(report.FILES)} in {out}")
