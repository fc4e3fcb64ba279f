"""FROM= and MODEL= -> an encoder."""

from __future__ import annotations

from pathlib import Path

from pipeline import encoders
from pipeline.errors import UserError
from pipeline.models.base import Encoder, read_config
from pipeline.presets import known, named_config


def encoder_folder(model: str, folder: Path | None) -> Path:
    """FROM=, or where MODEL was pretrained.

    Raises:
        UserError: there is no such model, or the folder holds another one.
    """
    if named_config("pretrain", model) is None:
        raise UserError(f"There is no model '{model}'; there are {known('pretrain')}.")
    folder = folder or Path("runs/pretrain") / model / "encoder"
    wanted = model.split("-")[0]  # elmo-paper is an elmo
    if (model_type := encoders.family(read_config(folder)["model_type"])) != wanted:
        known_types = encoders.names()
        hint = f"set MODEL={model_type}" if model_type in known_types else f"there are {', '.join(known_types)}"
        raise UserError(f"{folder} holds a {model_type} encoder, not {wanted}; {hint}.")
    return folder


def load_for_prompts(folder: Path) -> Encoder:
    """An encoder whose output for one text does not depend on other texts; says so if it would otherwise.

    Raises:
        UserError: it gives no probabilities.
    """
    encoder = encoders.load_with_heads(folder)
    if encoder.carries:
        encoder.forget_between_batches()
        print(f"The encoder in {folder} carries its state from batch to batch; here each text begins without one.")
    return encoder
