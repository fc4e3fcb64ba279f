"""FROM= and MODEL= -> an encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import encoders
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.experiments.feasible import encoder_of, is_counting, model_class
from pipeline.models.base import Encoder
from pipeline.models.folder import read_config
from pipeline.presets.arms import FRESH
from pipeline.presets.files import content_of, model_file, named_config, pretrained


def encoder_folder(model: str, folder: Path | None) -> Path:
    """FROM=, or where MODEL was pretrained; of a run folder, what the run has made.

    Raises:
        UserError: there is no such model, or the folder holds another one.
    """
    file = model_file(model)
    named, folder = folder, made_in(folder or pretrained(model))
    if not folder.is_dir():
        makes = (
            "pretrain one, download one from the hub"
            if named
            else f"`{typed.command('pretrain', model=model)}` makes one of the sample corpus"
        )
        raise UserError(f"There is no encoder in {folder}: {makes}, or name another ({typed.flag('from')}).")
    wanted = encoders.register(model_class(file)).variant(encoder_of(file).get("init_args") or {})
    if (variant := encoders.variant(read_config(folder))) != wanted:
        known = named_config("pretrain", variant) is not None
        hint = f"set {typed.flag('model', variant)}" if known else f"there are {', '.join(encoders.names())}"
        raise UserError(f"The encoder in {folder} is {variant}, not {wanted}; {hint}.")
    return folder


def implied_model(folder: Path, default: str) -> str:
    """MODEL of the encoder in FROM=, where that has one of that name; what is wrong with a folder is said later."""
    try:
        variant = encoders.variant(read_config(made_in(folder)))
    except UserError:
        return default
    return default if named_config("pretrain", variant) is None else variant


def made_in(folder: Path) -> Path:
    """The encoder or the fine-tuned model of a run folder; any other folder itself."""
    made = [folder / kind for kind in ("encoder", "model") if (folder / kind / "config.json").is_file()]
    return made[0] if made and not (folder / "config.json").is_file() else folder


def source_folder(model: str, folder: Path | None, arm: str) -> Path | None:
    """As `encoder_folder`; None where the model needs none: it counts, or begins with fresh weights, and none is named
    and, of fresh weights, MODEL has not been pretrained."""
    if folder is None and (is_counting(model) or begins_anew(model, folder, arm)):
        return None
    return encoder_folder(model, folder)


def begins_anew(model: str, folder: Path | None, arm: str) -> bool:
    """Whether a network with fresh weights has its sizes from its file in configs/pretrain, not from a folder."""
    known = named_config("pretrain", model) is not None
    return folder is None and arm in FRESH and known and not pretrained(model).exists()


def encoder_settings(model: str, folder: Path | None) -> dict[str, Any]:
    """Class and settings of MODEL's encoder, dotted name -> value, as its file in configs/pretrain has them.

    Args:
        folder: of an encoder that has others.

    Raises:
        UserError: there is no such model, or the folder holds another one.
    """
    encoder = encoder_of(model_file(model))
    own = {} if folder is None else read_config(encoder_folder(model, folder))
    settings = {name: own.get(name, value) for name, value in encoder["init_args"].items()}
    return {"model.encoder": encoder["class_path"]} | {
        f"model.encoder.init_args.{name}": value for name, value in settings.items()
    }


def tokenizer_settings(model: str) -> dict[str, Any]:
    """How MODEL's tokenizer is made, dotted name -> value, as its file in configs/pretrain has it."""
    options = content_of(model_file(model))["data"]["tokenizer"]
    return {f"model.tokenizer.{name}": value for name, value in options.items()}


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
