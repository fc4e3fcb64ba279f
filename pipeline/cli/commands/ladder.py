"""`make ladder`: language models from counting to Llama on one text, and one report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.arguments import Parser, add_overrides, natural, place, positive
from pipeline.console import typed
from pipeline.presets.files import preset_file

if TYPE_CHECKING:
    from pipeline.experiments.ladder.run import LadderRun

HELP = "a history of language models on one text: train, measure, one report"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", default="sample", help="a name in configs/ladder or a path to a YAML file")
    parser.add_argument("--corpus", default=None, help="a name in configs/corpora, or a path; as the file says")
    parser.add_argument("--data", default=None, help="folder that holds the data of the tasks: BLiMP is asked")
    parser.add_argument("--models", default=None, help="some of its rungs, separated by spaces")
    parser.add_argument("--tokens", type=positive, default=None, help="that each model is trained on; as the file says")
    parser.add_argument("--seeds", type=natural, default=0, help="seeds of each whole run; 0: the number in the file")
    parser.add_argument("--out", type=place, default=None, help="folder of the report and its runs [runs/ladder/NAME]")
    parser.add_argument("--overwrite", action="store_true", help="run what is finished too")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, and run nothing")
    add_overrides(parser)


def run(options: argparse.Namespace) -> None:
    wanted = requested(options)
    if options.dry_run:
        from pipeline.experiments.ladder.plan import what_is_missing

        print(what_is_missing(wanted.asked, overwrite=options.overwrite))
        return
    from pipeline.experiments.ladder import table as ladder_table
    from pipeline.reporting import ladder_page

    def publish(results: dict[str, Any]) -> None:
        ladder_table.write(results, wanted.out)
        ladder_page.write_page(results, wanted.out / "ladder.html")

    print(ladder_table.main_table(wanted.run(publish)))
    print(f"Saved {', '.join(path.name for path in sorted(wanted.out.glob('ladder.*')))} in {wanted.out}")


def requested(options: argparse.Namespace) -> LadderRun:
    """Raises: UserError, there is no such ladder, or it cannot be run."""
    from pipeline.cli.config import pretraining
    from pipeline.experiments.ladder.run import LadderRun
    from pipeline.experiments.ladder.rungs import load

    file = preset_file("ladder", options.name, "ladder")
    ladder = load(file, corpus=options.corpus, tokens=options.tokens, seeds=options.seeds or None)
    given = {name: getattr(options, name) for name in ("name", "corpus", "data", "models", "tokens", "seeds", "out")}
    return LadderRun(
        ladder,
        out=options.out or Path("runs/ladder") / file.stem,
        configure=pretraining,
        overrides=options.overrides,
        data=options.data,
        command=lambda models: typed.line("ladder", *options.overrides, **{**given, "models": models}),
        overwrite=options.overwrite,
        chosen=(options.models or "").split(),
    )
