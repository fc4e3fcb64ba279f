"""Resuming a run: what may have changed since its last checkpoint, and whether there is anything left to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.presets import former_names
from pipeline.presets.files import flat
from pipeline.storage.checksums import damage, sha256
from pipeline.storage.validation import read_json, read_yaml
from pipeline.tracking import lineage
from pipeline.training import checkpoints
from pipeline.training.base_module import Training

# Configuration keys that may change on resume; any other change is refused. Files are compared by content.
OPTIMIZATION = "model.optimization."
FREE = (
    *("version", OPTIMIZATION, "model.warmup_share", "model.frozen_learning_rate"),  # the last before 0.10
    *("trainer.", "precision", "compile", "activation_checkpointing", "valid", "patience", "log_text"),
    *("data.workers", "data.verify", "data.epochs", "data.characters", "data.files", "data.hub.", "data.tokenizer."),
    *("data.language", "wandb.", "model.start", "model.distillation.teacher"),
    *("data.task.init_args.valid_rows", "data.task.init_args.test_rows"),  # the content of the task says which rows
)
FIXED = ("trainer.accumulate_grad_batches", "model.optimization.optimizer", "model.distillation.teacher_weight")
BEFORE = {  # of checkpoints that do not say it
    "model.embeddings": "random",
    "model.optimization.optimizer": "adamw",
    "model.optimization.cautious_decay": False,
    "model.encoder.init_args.activation": "gelu",
    "model.encoder.init_args.zero_outputs": False,
    "model.objective.init_args.first_mask_rate": None,
    "model.distillation.temperature": None,  # no teacher
    "save_at_words": None,
    "model.recipe.pair": "auto",
    "model.recipe.reinit_layers": 0,
    "version": "0.7.0 or before",
}


def check_same_run(file: Path, now: dict[str, Any], before: dict[str, Any]) -> None:
    """Compares the configuration and data of a checkpoint with those of the run that would resume it.

    Raises:
        UserError: it is of another run: the difference is named.
    """
    before = former_names.current(before)
    changes = _changes(now, before)
    refused = [name for name in changes if name in FIXED or not name.startswith(FREE)]
    if refused:
        raise UserError(_refusal(file, changes, refused, before))
    for name, (old, new) in changes.items():
        print(f"Note: {name} is {new} now, and was {old}.")


def _changes(now: dict[str, Any], before: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What is another value now: name -> (before, now); hashes of contents last."""
    changes = {}
    for name in sorted({*now, *before}, key=lambda name: (name.startswith("content of"), name)):
        old, new = (values.get(name, BEFORE.get(name, now.get(name))) for values in (before, now))
        if old != new:
            changes[name] = old, new
    return changes


def _refusal(file: Path, changes: dict[str, tuple[Any, Any]], refused: list[str], before: dict[str, Any]) -> str:
    """Which of the `refused` changes it is, and what to do about it."""
    known = [name for name in refused if name in before]  # the others came with a later version
    name = (known or refused)[0]
    old, new = changes[name]
    if name.startswith("content of"):
        old, new = str(old)[:12], str(new)[:12]  # hashes
    over = f"or set {typed.flag('overwrite')} to start over."
    if old is None and name.startswith("model.distillation."):
        return f"{file} is of a run without a teacher: leave {typed.flag('teacher')} out, {over}"
    if known:
        back = "Leave the change out"
    else:  # defaults have changed, those of the optimizer's settings too
        former = {name: changes[name][0] for name in changes if name in refused or name.startswith(OPTIMIZATION)}
        back = f"Set {typed.settings(former)}"
    return (
        f"{file} is of a run with {name} {old}, not {new}: a resumed run keeps its configuration and data. "
        f"{back}, {over}"
    )


def newest_checkpoint(out: Path, module: Training, identity: dict[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint to resume and what it holds; None: the run has not come to its first one.

    Raises:
        UserError: it is damaged, or of another run; or the run was finished and its checkpoint is gone.
    """

    def check(file: Path, state: dict[str, Any]) -> None:
        check_same_run(file, identity, state.get("identity", identity))
        checkpoints.check_fits(file, state, module)

    newest = checkpoints.newest(out / "checkpoints", check)
    if newest is None and (made := [name for name in ("metrics.json", "encoder", "model") if (out / name).exists()]):
        raise UserError(
            f"{out} has {made[0]} and no checkpoint to resume; set {typed.flag('overwrite')} to start over."
        )
    return newest


def is_finished(out: Path, identity: dict[str, Any]) -> bool:
    """Whether a folder holds this run, finished: of runs that write no checkpoints.

    Raises:
        UserError: it is another run: the difference is named.
    """
    if finished_product(out) is None:
        return False
    content = {f"content of the {stage['stage']}": stage["sha256"] for stage in lineage.read(out) if "sha256" in stage}
    before = flat(read_yaml(out / "config.yaml", dict[str, Any])) | content
    check_same_run(out / "config.yaml", identity, {name: before.get(name, value) for name, value in identity.items()})
    return True


def finished_product(out: Path) -> Path | None:
    """The encoder or model that a run has made, if all is there; says what is damaged, and will be written again."""
    made = next((out / name for name in ("encoder", "model") if (out / name).exists()), None)
    if made is None or not (out / "metrics.json").exists():
        return None
    try:
        read_json(out / "metrics.json", dict[str, Any])
        lineage.read(made)
        why = damage(made, sha256)
    except UserError as error:
        why = str(error)
    if why is not None:
        print(f"Warning: {why} It is written again from the checkpoint.")
        return None
    return made
