"""`make wikipedia-sample`: the corpus of the results on real text, built from the hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, place, positive
from pipeline.console import typed
from pipeline.errors import UserError

HELP = "build the sample of English Wikipedia that results on real text are made with"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--out", type=place, default=Path("wikipedia-en"), help="folder of the corpus [wikipedia-en]")
    parser.add_argument("--articles", type=positive, default=None, help="how many, instead of 5,651")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder that is there")


def run(options: argparse.Namespace) -> None:
    from pipeline.console.progress import progress
    from pipeline.data import wikipedia_sample

    if (options.articles or wikipedia_sample.ARTICLES) < wikipedia_sample.VALIDATION:
        least = wikipedia_sample.VALIDATION
        raise UserError(f"--articles is {options.articles}; one in {least} is for validation: take {least} at least.")
    if options.out.exists() and not options.overwrite:
        raise UserError(f"{options.out} is there already; set {typed.flag('overwrite')} to replace it.")
    if options.out.exists() and not (options.out / "valid.jsonl.xz").is_file():
        raise UserError(f"{options.out} holds something else than such a sample; choose another {typed.flag('out')}.")
    count = options.articles or wikipedia_sample.ARTICLES
    with progress(desc="articles", unit="article", total=count) as bar:
        built = wikipedia_sample.build(options.out, count=count, progress=bar.update)
    print(", ".join(f"{number:,} {name}" for name, number in built.items()))
    print(f"Saved {options.out}. Next: {typed.command('pretrain', corpus=options.out)}")
