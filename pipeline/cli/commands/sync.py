"""`make sync`: uploads offline runs to Weights & Biases."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.cli.arguments import Parser, place
from pipeline.errors import UserError

HELP = "upload offline runs to Weights & Biases"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--folder", type=place, default=None, help="where runs are; runs and results otherwise")


def run(options: argparse.Namespace) -> None:
    folders = [Path("runs"), Path("results")] if options.folder is None else [options.folder]
    count = sync(folders)
    print(f"Uploaded {count:,} run{'s' * (count != 1)}.")


def sync(folders: Sequence[Path]) -> int:
    """Uploads the offline runs under folders that have not been; returns how many. Parts of a resumed run are one.

    Raises:
        UserError: no key, or nothing to upload.
    """
    from pipeline.tracking.wandb_environment import has_key

    parts = sorted((run for folder in folders for run in folder.rglob("wandb/offline-run-*")), key=lambda run: run.name)
    where = " and ".join(map(str, folders))
    if not parts:
        raise UserError(f"There is no offline run of Weights & Biases under {where}.")
    parts = [part for part in parts if not any(part.glob("*.synced"))]
    count = len({part.name.split("-", 3)[-1] for part in parts})
    if not parts:
        return 0
    if not has_key():
        raise UserError(f"{count} offline runs under {where} wait for a key: set WANDB_API_KEY.")
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    done = subprocess.run([sys.executable, "-m", "wandb", "sync", "--yes", *map(str, parts)], env=environment)
    if done.returncode:
        raise UserError(f"Not all of the {count} offline runs could be uploaded; W&B says above why.")
    return count
