"""What a model can do in a comparison: one that counts has one arm, tasks with labels of whole texts, and no steps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.finetuning.heads import head_class, head_for
from pipeline.models.base import Encoder, Learning
from pipeline.models.folder import FolderConfig
from pipeline.models.registry import encoder_class
from pipeline.presets.files import content_of, named_config
from pipeline.presets.tasks import trained_task
from pipeline.storage.validation import read_json
from pipeline.training.requests import OF_STEPS, Overrides, by_setting, settings_in
from tasks.base import Task
from tasks.discovery import located

TASK, PAIR, REINIT = "data.task", "model.recipe.pair", "model.recipe.reinit_layers"


def encoder_of(file: Path) -> dict[str, Any]:
    """The section `model.encoder` of a pretraining configuration."""
    encoder = content_of(file).get("model", {}).get("encoder")
    return encoder if isinstance(encoder, dict) else {"class_path": encoder}


def model_class(file: Path) -> type[Encoder]:
    """The class that a pretraining configuration names.

    Raises:
        UserError: it names no class, or one that is not an encoder.
    """
    class_path = encoder_of(file).get("class_path")
    kind = located(str(class_path))
    if not (isinstance(kind, type) and issubclass(kind, Encoder)):
        raise UserError(f"{file}: model.encoder must name an encoder, as pipeline.models.bert.Bert, not {class_path}.")
    return kind


def learning_of(model: str, folder: Path | None = None) -> Learning:
    """How a model learns: as the encoder in its folder does, where there is one, else as MODEL of that name; by
    gradient where neither is known."""
    if folder is not None:
        with contextlib.suppress(UserError):
            return encoder_class(read_json(folder / "config.json", FolderConfig)["model_type"]).learning
    file = named_config("pretrain", model)
    return "gradient" if file is None else model_class(file).learning


def is_counting(model: str) -> bool:
    """Whether MODEL learns by counting; not where there is no such model."""
    return learning_of(model) == "counting"


def why_not(model: str, learning: Learning, task: str, arm: str) -> str | None:
    """Why a model cannot do a task with an arm; None: it can."""
    if learning == "gradient":
        return None
    name = trained_task(task).head
    if name is None or head_for(name, learning) is None:
        return f"{model} counts the texts of each label, and {Path(task).stem} does not have one label for each text."
    return None if arm == "full" else f"{model} counts the texts of the task alone: it has the arm 'full' only."


def effective(overrides: Overrides, learning: Learning, task: str, arm: str) -> Overrides:
    """Settings without those that mean nothing: of steps to a model that counts, of pairs to a task without them, or
    that does not read them so, of pretrained layers to an arm that does not train these."""
    useless: tuple[str, ...] = OF_STEPS if learning == "counting" else ()
    readings = readings_of(task) if PAIR in settings_in(overrides) else ()
    if any(name == PAIR and words[-1].rpartition("=")[2] not in readings for name, words in by_setting(overrides)):
        useless = (*useless, PAIR)
    if arm != "full":
        useless = (*useless, REINIT)
    return tuple(word for name, words in by_setting(overrides) if not name.startswith(useless) for word in words)


def task_as_run(task: str, overrides: Overrides) -> Task:
    """A task with the settings of a run, which may give it another metric, other columns or other parts.

    Raises:
        UserError: there is no such task, or a setting of it is not valid.
    """
    own = [words for name, words in by_setting(overrides) if name == TASK or name.startswith(f"{TASK}.")]
    return trained_task(task, [word for words in own for word in words])


def readings_of(task: str) -> tuple[str, ...]:
    """How pairs of texts of a task can be read, `auto` among them; none where it has no pairs."""
    found = trained_task(task)
    if found.head is None or "pair" not in head_class(found.head).takes or len(found.roles) != 2:
        return ()
    return ("auto", *head_class(found.head).readings)
