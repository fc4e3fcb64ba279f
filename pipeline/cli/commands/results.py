"""`make results`: runs what is missing of a comparison, pretraining too, then writes its one table and its page."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.cli.arguments import Parser
from pipeline.cli.commands import compare
from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.errors import UserError
from pipeline.presets.files import named_config
from pipeline.storage.paths import path_of

if TYPE_CHECKING:
    from pipeline.experiments.comparison.grid import Grid

HELP = "pretrain and fine-tune what is missing of a comparison, then write its table and page"


def add_arguments(parser: Parser) -> None:
    compare.add_arguments(parser)
    parser.set_defaults(name="real")
    parser.add_argument("--corpus", default=None, help="that missing encoders are pretrained on; as the file says")
    parser.add_argument("--table-only", action="store_true", help="write the page of the table that is there")


def run(options: argparse.Namespace) -> None:
    from pipeline.experiments.comparison import runs as grid_run
    from pipeline.experiments.comparison.files import show
    from pipeline.reporting import report

    grid, whole, out = compare.requested(options)
    grid = replace(grid, corpus=options.corpus or grid.corpus)
    if options.dry_run:
        print(compare.what_is_missing(grid, out, pretrains=True, overwrite=options.overwrite))
        return
    if options.table_only:
        if not (out / "compare.csv").is_file():
            raise UserError(f"There is no table in {out}: run {typed.command('results')} without --table-only first.")
    else:
        check_corpus(grid)
        if options.corpus:
            note_other_corpora(grid)
        compare.check_places(grid)
        compare.pretrain_missing(grid)
        command = compare.command_of(options, out)
        grid_run.compare(grid, out, compare.finetune, command=command, overwrite=options.overwrite, whole=whole)
        show(out)
    report.write(report.page_of(out, []), out)
    print(f"Saved {', '.join(report.FILES)} in {out}")


def check_corpus(grid: Grid) -> None:
    """Raises: UserError, encoders are missing, and what they would be pretrained on is too."""
    from pipeline.training.corpus_data import OF_TASK

    missing = grid.missing_encoders()
    if not missing:
        return
    model, folder = next(iter(missing.items()))
    if grid.corpus is None:
        raise UserError(
            f"There is no encoder in {folder}, and the comparison names no corpus to pretrain it on: "
            f"name it with {typed.flag('corpus', 'folder')}."
        )
    if folder.name != "encoder":
        raise UserError(
            f"{folder} is missing, and pretraining writes into a folder called encoder: end `encoders` with /encoder."
        )
    text = grid.corpus
    named = text.startswith(OF_TASK) or named_config("corpora", text) is not None or set(text) & set("*?[")
    if not named and not path_of(text).exists():
        raise UserError(
            f"{model} is to be pretrained on {grid.corpus}, and there is no such corpus. Give its folder with "
            f"{typed.flag('corpus', 'folder')}, or build one with {typed.command('wikipedia-sample', out=grid.corpus)}."
        )


def note_other_corpora(grid: Grid) -> None:
    """Says which encoders are there already, of another corpus than the one that is named."""
    from pipeline.experiments.pretraining_run import corpus_name
    from pipeline.tracking import lineage

    wanted, missing = corpus_name(str(grid.corpus)), grid.missing_encoders()
    for model in grid.models:
        folder = grid.encoder(model)
        if folder is not None and model not in missing and (folder / lineage.FILE).is_file():
            found = lineage.last(lineage.read(folder), "corpus").get("name")
            if found not in (None, wanted):
                inform(f"Note: {folder} is there already, pretrained on {found}: {grid.corpus} is for what is missing.")
