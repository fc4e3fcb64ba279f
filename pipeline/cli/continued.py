"""FROM= and TEACHER= of `make pretrain`: what a run takes over from an encoder folder, and what may not contradict it.

A run that goes on from an encoder has its tokenizer, sizes and weights. A student has the tokenizer of its teacher, and
where both are of one class its sizes and some of its layers.
"""

from __future__ import annotations

from pathlib import Path
from pydoc import locate
from typing import Any

from pipeline.errors import UserError
from pipeline.models import registry
from pipeline.objectives.base import Objective
from pipeline.presets import flat
from pipeline.tokenization import registry as tokenizers
from pipeline.training.requests import Overrides, settings_in
from pipeline.training.run import Configuration

SIZES = "model.encoder.init_args."
LAYERS = f"{SIZES}layers"


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
        "data.tokenizer.languages": list(tokenizer.languages),
    }


def student_settings(folder: Path, configuration: Configuration, overrides: Overrides) -> dict[str, Any]:
    """What a teacher's folder says of its student, dotted name -> value.

    A student of the teacher's class has its sizes and half of its layers, and begins with these, unless the user gives
    it sizes of its own.

    Raises:
        UserError: no encoder folder, or a damaged one.
    """
    kind, kept = registry.class_of(folder), kept_tokenizer(folder)
    own = {name for name in settings_in(overrides) if name.startswith(SIZES) and not name.endswith("dropout")}
    if configuration.encoder_class is not kind or own - {LAYERS}:
        return kept
    found = sizes(folder, configuration.module.objective)
    if LAYERS not in found:
        return kept
    return {**start(folder), **found, LAYERS: max(1, found[LAYERS] // 2), **kept}


def check_class(resolved: dict[str, Any], folder: Path) -> None:
    """Raises: UserError, the run goes on from an encoder of another class."""
    path, kind = resolved["model"]["encoder"]["class_path"], registry.class_of(folder)
    if locate(path) is not kind:
        raise UserError(f"model.encoder is {path}, but the encoder in {folder} is a {kind.__name__}.")


def check_kept(resolved: dict[str, Any], kept: dict[str, Any], overrides: Overrides, folder: Path, run: str) -> None:
    """Raises: UserError, a setting of the user contradicts the encoder of the folder.

    Args:
        run: what keeps it, as `a run that goes on from`.
    """
    settings = flat(resolved)
    for name, value in kept.items():
        if settings.get(name) != value:
            raise UserError(
                f"{name} is {settings.get(name)}, but {run} {folder} keeps its tokenizer and sizes, "
                f"and there it is {value}: leave {name} out."
            )
    if made := sorted(
        name for name in settings_in(overrides) if name.startswith("data.tokenizer.") and name not in kept
    ):
        raise UserError(f"{made[0]} has no effect: the tokenizer is that of {folder}. Leave it out.")
