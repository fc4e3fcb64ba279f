"""`make sweep` and `make sync`: what needs the server of Weights & Biases."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.storage.validation import read_yaml
from pipeline.tracking.loggers import has_key


def load(file: Path, options: list[str], metric: str) -> dict[str, Any]:
    """A sweep of W&B from its YAML file, named as the verb that it runs, with the flags of that verb.

    Args:
        metric: of the task, in place of {metric} in the name of what is optimised.
    """
    content = read_yaml(file, dict[str, Any])
    goal = {**content["metric"], "name": content["metric"]["name"].replace("{metric}", metric)}
    command = [sys.executable, "-m", "pipeline", file.stem, *options, "${args}"]
    return {**content, "metric": goal, "name": file.stem, "command": command}


def sweep(file: Path, options: list[str], *, count: int, metric: str) -> str:
    """Begins a sweep and runs `count` of its runs here; returns its id, for `wandb agent` on further machines.

    Raises:
        UserError: no key, since it is the server that chooses what to try.
    """
    if not has_key():
        raise UserError(
            "A sweep is led by the server of Weights & Biases: set WANDB_API_KEY. Offline, `make compare` tries all "
            "combinations of the settings under `choose` in its YAML file."
        )
    import wandb

    os.environ.pop("WANDB_MODE", None)
    project = os.environ.get("WANDB_PROJECT", "pretrain-finetune")
    name = wandb.sweep(load(file, options, metric), project=project)
    wandb.agent(name, project=project, count=count or None)
    return name


def sync(folders: Sequence[Path]) -> int:
    """Uploads the offline runs under folders; returns how many. Parts of a resumed run go to the same run.

    Raises:
        UserError: no key, or nothing to upload.
    """
    found = sorted((run for folder in folders for run in folder.rglob("wandb/offline-run-*")), key=lambda run: run.name)
    where = " and ".join(map(str, folders))
    if not found:
        raise UserError(f"There is no offline run of Weights & Biases under {where}.")
    if not has_key():
        raise UserError(f"{len(found)} offline runs under {where} wait for a key: set WANDB_API_KEY.")
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_MODE"}
    done = subprocess.run([sys.executable, "-m", "wandb", "sync", "--yes", *map(str, found)], env=environment)
    if done.returncode:
        raise UserError(f"Not all of the {len(found)} offline runs could be uploaded; W&B says above why.")
    return len(found)
