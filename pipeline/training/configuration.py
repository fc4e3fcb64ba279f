"""What a run is made of, and how it is recorded: plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc import locate
from typing import Any, cast

import lightning

from pipeline.models.base import Encoder
from pipeline.tokenization.base import Tokenizer
from pipeline.tracking import lineage


@dataclass
class Configuration:
    """What configuration files and settings say of a run.

    Args:
        module: the LightningModule, not yet built.
        data: its data, not yet read.
        resolved: every setting as plain values.
        settings: the same with the objects that they name: settings.trainer.max_steps, ...
        make_trainer: takes arguments of `lightning.Trainer` beside the configured ones.
        given: YAML files among the user's own settings.
        descriptions: dotted name of a setting -> what it does, where that is written.
    """

    module: Any
    data: Any
    resolved: dict[str, Any]
    settings: Any
    make_trainer: Callable[..., lightning.Trainer]
    given: Sequence[Path] = ()
    descriptions: Mapping[str, str] = field(default_factory=dict)

    @property
    def encoder_class(self) -> type[Encoder]:
        return cast(type[Encoder], locate(self.resolved["model"]["encoder"]["class_path"]))

    @property
    def repeatable(self) -> dict[str, Any]:
        """Every setting as `config.yaml` has it: `--config` takes it again, with the precision that this run has."""
        trainer = self.resolved["trainer"]
        return {**self.resolved, "trainer": {**trainer, "precision": None}, "precision": trainer["precision"]}


@dataclass
class Record:
    """How a run is recorded in its folder and in Weights & Biases.

    Args:
        job_type: the stage.
        group: of W&B.
        tags: of W&B.
        seed: of the run.
        stages: where its input comes from (see lineage).
        uses: folders of the models that it begins with or learns from.
        pictures: the files of the plots that its kind of task has.
        command: that makes the same run.
    """

    job_type: str
    group: str
    tags: list[str]
    seed: int
    stages: list[lineage.Stage]
    uses: Sequence[Path] = ()
    pictures: Sequence[str] = ()
    command: str = ""


def group_of(model: str, tokenizer: Tokenizer) -> str:
    """The group of a run in Weights & Biases: an encoder and what grew from it share the tokenizer."""
    return f"{model}-{tokenizer.hash[:12]}"
