"""FROM= of `make pretrain`: a run that goes on from an encoder has its tokenizer, its sizes and its weights."""

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


def kept_settings(folder: Path, objective: Objective) -> dict[str, Any]:
    """What an encoder folder says of a run that goes on from it, dotted name -> value.

    Rates of dropout are not among it: they are settings of training.

    Args:
        objective: some arguments of the encoder follow from it, and are not the folder's.

    Raises:
        UserError: no encoder folder, or a damaged one.
    """
    tokenizer = tokenizers.load(folder)
    sizes = {
        name: value
        for name, value in registry.arguments(folder).items()
        if not name.endswith("dropout") and name not in objective.model_options
    }
    return {
        "model.start": str(folder),
        "model.embeddings": "random",
        **{f"model.encoder.init_args.{name}": value for name, value in sizes.items()},
        "data.tokenizer.file": str(folder),
        "data.tokenizer.scheme": tokenizer.scheme,
        "data.tokenizer.vocab_size": len(tokenizer),
        "data.tokenizer.languages": list(tokenizer.languages),
    }


def check_kept(resolved: dict[str, Any], kept: dict[str, Any], overrides: Overrides, folder: Path) -> None:
    """Raises: UserError, a setting of the user contradicts the encoder that the run goes on from."""
    settings = flat(resolved)
    path, kind = settings["model.encoder.class_path"], registry.class_of(folder)
    if locate(path) is not kind:
        raise UserError(f"model.encoder is {path}, but the encoder in {folder} is a {kind.__name__}.")
    for name, value in kept.items():
        if settings.get(name) != value:
            raise UserError(
                f"{name} is {settings.get(name)}, but a run that goes on from {folder} keeps its tokenizer and sizes, "
                f"and there it is {value}: leave {name} out."
            )
    if made := sorted(
        name for name in settings_in(overrides) if name.startswith("data.tokenizer.") and name not in kept
    ):
        raise UserError(f"{made[0]} has no effect: the tokenizer is that of {folder}. Leave it out.")
