"""The lineage of a result: corpus, tokenizer, pretraining, encoder, then a fine-tuning or a zero-shot run.

`lineage.json` is in each run folder and in the encoder or model folder that the run made, so that a score can be traced
offline. It holds no paths outside the run: files have their name and the hash of their content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from pipeline.presets import former_names
from pipeline.storage.atomic import write_json
from pipeline.storage.checksums import digest, sha256
from pipeline.storage.validation import read_json
from pipeline.version import __version__

FILE = "lineage.json"
RUNS = ("pretrain", "profile", "finetune", "zeroshot")  # stages that are runs
Stage = dict[str, Any]  # `stage`: its kind; `sha256` of its content, where it has any; and facts


def _named(stage: Stage) -> Stage:
    if not isinstance(stage.get("stage"), str):
        raise ValueError("each stage has a name under the key 'stage'")
    return stage


def read(folder: Path) -> list[Stage]:
    """The stages that led to an encoder or model folder; a folder without lineage is the first stage itself.

    Raises:
        UserError: its lineage.json is damaged.
    """
    file = folder / FILE
    if file.is_file():
        return read_json(file, list[Annotated[Stage, AfterValidator(_named)]])
    return [made("encoder", folder)]


def last(stages: Sequence[Stage], kind: str) -> Stage:
    """The last stage of a kind; empty where there is none."""
    return next((stage for stage in reversed(stages) if stage["stage"] == kind), {})


def run_of(stages: list[Stage]) -> str | None:
    """The kind of the last run among stages, if there is one."""
    return next((stage["stage"] for stage in reversed(stages) if stage["stage"] in RUNS), None)


def names_of(stages: Sequence[Stage], *kinds: str) -> list[str]:
    """The names of the stages of these kinds that have one, in their order."""
    return [str(stage["name"]) for stage in stages if stage["stage"] in kinds and "name" in stage]


def tasks_of(stages: Sequence[Stage]) -> list[str]:
    """The tasks that something among stages was fine-tuned on, in that order."""
    return [str(stage.get("name", "a task")) for stage in stages if stage["stage"] == "task"]


def pictures_of(stages: list[Stage]) -> list[str]:
    """The files of the plots that runs among stages have for their kind of task."""
    named = [name for stage in stages if isinstance(stage.get("pictures"), list) for name in stage["pictures"]]
    return [name for name in named if re.fullmatch(r"[\w-]+\.png", str(name))]


def is_public(stages: list[Stage]) -> bool:
    """Whether the texts of all runs and teachers among stages may be sent to Weights & Biases.

    Of an encoder that somebody else has trained, and of one without lineage, nobody knows: its vocabulary has words.
    """
    kinds = [stage["stage"] for stage in stages]
    if "encoder" in kinds and "pretrain" not in kinds[: kinds.index("encoder")]:
        return False
    return all(stage.get("public", False) for stage in stages if stage["stage"] in (*RUNS, "teacher"))


def weights_of(stages: list[Stage]) -> str:
    """The hash of the last weights among stages; empty if there are none."""
    weights = (stage["sha256"] for stage in reversed(stages) if stage["stage"] in ("encoder", "model"))
    return str(next(weights, ""))


def setting_of(config: Mapping[str, Any]) -> str:
    """A hash of the configuration of a run without its seed: runs that share it differ by chance alone."""
    parts = former_names.current(config)
    return digest(
        {
            name: {key: value for key, value in part.items() if key != "seed"} if isinstance(part, dict) else part
            for name, part in parts.items()
        }
    )


def made(kind: str, folder: Path) -> Stage:
    """The stage of a folder with weights."""
    return {"stage": kind, "sha256": sha256(folder / "model.safetensors")}


def teacher(folder: Path) -> Stage:
    """The stage of a model that another one learns from: its weights, and what they were trained on."""
    stages = read(folder)
    named = ", ".join(names_of(stages, "corpus", "task"))
    stage = {**made("teacher", folder), **({"name": named} if named else {})}
    return {**stage, "public": True} if is_public(stages) else stage


def run_stage(
    kind: str,
    out: Path,
    *,
    seed: int,
    config: dict[str, Any],
    public: bool = False,
    pictures: Sequence[str] = (),
) -> Stage:
    """The stage of a run, with its id in Weights & Biases if it has one.

    Args:
        public: whether the texts of the run may be sent to Weights & Biases.
        pictures: the files of the plots that its kind of task has.
    """
    stage: Stage = {"stage": kind, "name": out.name, "seed": seed, "config": digest(config), "version": __version__}
    stage |= {"public": True} if public else {}
    stage |= {"pictures": list(pictures)} if pictures else {}
    id_file = out / "wandb" / "run-id"
    return {**stage, "wandb": id_file.read_text()} if id_file.is_file() else stage


def write(folder: Path, stages: list[Stage]) -> None:
    write_json(folder / FILE, stages)
