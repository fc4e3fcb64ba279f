"""`make recipes`: what each ingredient of a recipe of pretraining buys, alone and together, with several seeds."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import Parser, add_overrides, natural, place, positive
from pipeline.presets.files import preset_file

HELP = "what each ingredient of a pretraining recipe buys: runs with and without it, paired tests, one table"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--name", default="bert", help="a name in configs/recipes or a path to a YAML file")
    parser.add_argument("--corpus", default=None, help="a name in configs/corpora, or a path; as the file says")
    parser.add_argument(
        "--recipes", default=None, help="some of them, separated by spaces; base is what the others are compared with"
    )
    parser.add_argument("--tokens", type=positive, default=None, help="that each run is trained on; as the file says")
    parser.add_argument("--seeds", type=natural, default=0, help="runs of each recipe; 0: the number in the file")
    parser.add_argument(
        "--out", type=place, default=None, help="folder of the results and runs [runs/recipes/NAME-CORPUS]"
    )
    parser.add_argument("--overwrite", action="store_true", help="run what is finished too")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, and run nothing")
    add_overrides(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline.cli.config import pretraining
    from pipeline.experiments.recipes.ingredients import load
    from pipeline.experiments.recipes.report import table
    from pipeline.experiments.recipes.run import RecipesRun

    file = preset_file("recipes", options.name, "file of recipes")
    recipes = load(file, corpus=options.corpus, tokens=options.tokens, seeds=options.seeds or None)
    wanted = RecipesRun(
        recipes,
        out=options.out or Path("runs/recipes") / f"{file.stem}-{Path(recipes.corpus).stem}",
        configure=pretraining,
        overrides=options.overrides,
        overwrite=options.overwrite,
        chosen=(options.recipes or "").split(),
    )
    if options.dry_run:
        print(wanted.missing(), end="")
        return
    print(table(wanted.run()))
    print(f"Saved {', '.join(path.name for path in sorted(wanted.out.glob('recipes.*')))} in {wanted.out}")
