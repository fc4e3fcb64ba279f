"""Where a result comes from: corpus, tokenizer, pretraining, encoder, then a fine-tune or prompts.

`lineage.json` lies in each run folder and in the folder of what it made, so that any score can be traced, offline too.
It holds no path outside the run: files are named, and known by the hash of their content.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline import __version__
from pipeline.folders import digest, sha256, write_atomically

FILE = "lineage.json"
Stage = dict[str, Any]  # `stage`, its kind; `sha256` of what it is, where it is content; and facts


def read(folder: Path) -> list[Stage]:
    """The stages that led to an encoder or model folder; one that others made begins with itself."""
    file = folder / FILE
    if file.is_file():
        return json.loads(file.read_text())
    return [made("encoder", folder)]


def made(kind: str, folder: Path) -> Stage:
    """The stage of a folder of weights."""
    return {"stage": kind, "sha256": sha256(folder / "model.safetensors")}


def run_stage(kind: str, out: Path, *, seed: int, config: dict[str, Any]) -> Stage:
    """The stage of a run; its id in Weights & Biases, if it has one."""
    stage = {"stage": kind, "name": out.name, "seed": seed, "config": digest(config), "version": __version__}
    id_file = out / "wandb" / "run-id"
    return {**stage, "wandb": id_file.read_text()} if id_file.is_file() else stage


def write(folder: Path, stages: list[Stage]) -> None:
    write_atomically(folder / FILE, json.dumps(stages, indent=2) + "\n")
