"""The beginning of a run: what it is made of, in its folder, and its run in Weights & Biases."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.presets.files import flat
from pipeline.storage.atomic import write_atomically
from pipeline.tracking import lineage
from pipeline.tracking.wandb import ResumableWandb, WandbOptions, wandb_logger
from pipeline.training.configuration import Record

SETTINGS = ("config.yaml", "command.txt")  # what a run was made with


def open_run(
    out: Path, record: Record, config: dict[str, Any], *, public: bool = False, options: WandbOptions | None = None
) -> tuple[ResumableWandb | None, list[lineage.Stage]]:
    """Writes lineage.json, config.yaml and command.txt; returns the logger, if there is one, and the lineage."""
    about: dict[str, Any] = {"seed": record.seed, "config": flat(config), "public": public}
    run_stage = partial(lineage.run_stage, record.job_type, out, pictures=record.pictures, **about)
    lineage.write(out, [*record.stages, run_stage()])  # marks the folder as a run folder
    for name, text in zip(SETTINGS, (yaml.safe_dump(config, sort_keys=False), record.command + "\n"), strict=True):
        write_atomically(out / name, text)
    logger = wandb_logger(
        out,
        job_type=record.job_type,
        group=record.group,
        tags=record.tags,
        corpora=lineage.names_of(record.stages, "corpus"),
        config={**config, "lineage": record.stages},
        seed=record.seed,
        options=options,
    )
    stages = [*record.stages, run_stage()]  # with its id in W&B
    lineage.write(out, stages)
    return logger, stages
