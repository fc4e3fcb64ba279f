"""FROM= and TEACHER= of `make pretrain`: what a run takes over from an encoder folder, and what may not contradict it.

A run that goes on from an encoder has its tokenizer, sizes and weights. A student has the tokenizer of its teacher, and
where both are of one class its sizes and some of its layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import encoders
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models import registry
from pipeline.objectives.base import Objective
from pipeline.objectives.distillation import about_teacher, check_positions, check_student, teacher_config
from pipeline.presets.files import flat
from pipeline.tokenization import registry as tokenizers
from pipeline.training.configuration import Configuration
from pipeline.training.requests import Overrides, settings_in

SIZES = "model.encoder.init_args."
LAYERS = f"{SIZES}layers"
MAX_LENGTH = f"{SIZES}max_length"
TEACHER = "model.distillation.teacher"


def kept_settings(folder: Path, objective: Objective) -> dict[str, Any]:
    """What an encoder folder says of a run that goes on from it, dotted name -> value.

    Rates of dropout are not among it: they are settings of training.

    Args:
        objective: some arguments of the encoder follow from it, and are not the folder's.

    Raises:
        UserError: no encoder folder, or a damaged one.
    """
    return {**start(folder), **sizes(folder, objective), **kept_tokenizer(folder)}


def start(folder: Path) -> dict[str, Any]:
    return {"model.start": str(folder), "model.embeddings": "random"}


def sizes(folder: Path, objective: Objective) -> dict[str, Any]:
    """The arguments of the encoder in a folder, without rates of dropout and what follows from the objective."""
    return {
        f"{SIZES}{name}": value
        for name, value in registry.arguments(folder).items()
        if not name.endswith("dropout") and name not in objective.model_options
    }


def kept_tokenizer(folder: Path) -> dict[str, Any]:
    tokenizer = tokenizers.load(folder)
    return {
        "data.tokenizer.file": str(folder),
        "data.tokenizer.scheme": tokenizer.scheme,
        "data.tokenizer.vocab_size": len(tokenizer),
        "data.tokenizer.languages": tokenizer.language_names,
    }


def student_settings(folder: Path, configuration: Configuration, overrides: Overrides) -> dict[str, Any]:
    """What a teacher's folder says of its student, dotted name -> value.

    A student of the same model has the teacher's sizes and half of its layers. It begins with these, unless the user
    gives it another size.

    Raises:
        UserError: no encoder folder, or a damaged one; a model that cannot teach this student; or there is no half of
            its layers.
    """
    objective = configuration.module.objective
    check_student(configuration.encoder_class, objective)
    with about_teacher():
        theirs, kept = encoders.variant(teacher_config(folder)), kept_tokenizer(folder)
        found = sizes(folder, objective)
    if MAX_LENGTH in found:
        check_positions(configuration.data.length, found[MAX_LENGTH], folder)
    options = configuration.resolved["model"]["encoder"]["init_args"]
    if configuration.encoder_class.variant(options) != theirs or LAYERS not in found:
        return kept
    own = {name for name in settings_in(overrides) if name.startswith(SIZES) and not name.endswith("dropout")}
    if not own and found[LAYERS] == 1:
        raise UserError(
            f"The teacher in {folder} has one layer, of which there is no half: give the student another size "
            f"({typed.setting(f'{SIZES}size', found[f'{SIZES}size'] // 2)})."
        )
    begins = {} if own - {LAYERS} else start(folder)
    return {**begins, **found, LAYERS: max(1, found[LAYERS] // 2), **kept}


def check_class(configuration: Configuration, folder: Path) -> None:
    """Raises: UserError, the run goes on from an encoder of another class."""
    kind = registry.class_of(folder)
    if configuration.encoder_class is not kind:
        path = configuration.resolved["model"]["encoder"]["class_path"]
        raise UserError(f"model.encoder is {path}, but the encoder in {folder} is a {kind.__name__}.")


def check_kept(
    configuration: Configuration, kept: dict[str, Any], overrides: Overrides, folder: Path, why: str
) -> None:
    """Raises: UserError, a setting of the user contradicts the encoder of the folder.

    Args:
        why: what keeps it.
    """
    settings = flat(configuration.resolved)
    for name, value in kept.items():
        if settings.get(name) != value:
            raise UserError(f"{name} is {settings.get(name)}, but {why}, and there it is {value}: leave {name} out.")
    if made := sorted(
        name for name in settings_in(overrides) if name.startswith("data.tokenizer.") and name not in kept
    ):
        raise UserError(f"{made[0]} has no effect: the tokenizer is that of {folder}. Leave it out.")
