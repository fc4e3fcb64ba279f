"""Encoders: one file each. `load` opens any encoder folder, ours or Hugging Face's."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.base import Encoded, Encoder, Receipt, check_sizes, read_config, read_state
from pipeline.storage.validation import checked
from pipeline.tokenization import registry as tokenizers

__all__ = [
    "Encoded",
    "Encoder",
    "Receipt",
    "encoder_class",
    "family",
    "fresh",
    "load",
    "load_with_heads",
    "load_with_receipt",
    "names",
    "take_over",
]


class OfPretraining(TypedDict, total=False):
    """What `config.json` says beside the architecture: the tokens of a row that the encoder was pretrained on."""

    training_length: Annotated[int, Field(ge=1)]


# Model types of Hugging Face that have another name here.
ALIASES = {"gpt2": "gpt", "openai-gpt": "gpt"}


def names() -> list[str]:
    """The encoders there are: the file name is the registry."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _NOT_ENCODERS)


_NOT_ENCODERS = ("__init__", "base", "losses", "registry")


def family(model_type: str) -> str:
    """`model_type` of a config.json -> the name of our encoder, as MODEL= takes it."""
    return ALIASES.get(model_type, model_type)


def encoder_class(model_type: str) -> type[Encoder]:
    """`model_type` of a config.json -> our class.

    Raises:
        UserError: there is none.
    """
    name = family(model_type)
    if name not in names():
        raise UserError(f"There is no encoder '{model_type}'; there are {', '.join(names())}.")
    return getattr(importlib.import_module(f"pipeline.models.{name}"), name.capitalize())


def load(folder: str | Path) -> Encoder:
    """The encoder of a folder, in eval mode, with `.tokenizer` and `.config`.

    Raises:
        UserError: no encoder folder, a damaged one, or a tokenizer that does not fit the embedding.
    """
    return load_with_receipt(Path(folder))[0]


def load_with_heads(folder: Path) -> Encoder:
    """As `load`, of an encoder that will be asked for probabilities.

    Raises:
        UserError: a tensor is not there, so that its answers would be random.
    """
    encoder, receipt = load_with_receipt(folder)
    if receipt.new:
        if "head" in read_config(folder):
            raise UserError(f"{folder} is a fine-tuned model without a language model; take the encoder it came from.")
        names = ", ".join(receipt.new[:3]) + (", ..." if len(receipt.new) > 3 else "")
        raise UserError(f"{folder} has no {names}: it gives vectors, but no probabilities.")
    return encoder


def load_with_receipt(folder: Path, *, weights: bool = True) -> tuple[Encoder, Receipt]:
    """As `load`, with the list of what was loaded; `weights=False` gives the same architecture, fresh weights.

    Raises:
        UserError: as `load`, or no tensor of the folder belongs to its encoder.
    """
    encoder, state = fresh(folder)
    receipt = take_over(encoder, state if weights else {}, folder)
    return encoder.eval(), receipt if weights else replace(receipt, unused=sorted(state))


def take_over(encoder: Encoder, state: dict[str, Tensor], folder: Path) -> Receipt:
    """As `Encoder.import_state`; what does not fit is said of the folder."""
    try:
        return encoder.import_state(state)
    except UserError as error:
        raise UserError(f"{folder / 'model.safetensors'}: {error}") from None


def fresh(folder: Path) -> tuple[Encoder, dict[str, Tensor]]:
    """An encoder as a folder's config describes it, with fresh weights, and the tensors of the folder.

    Raises:
        UserError: no encoder folder, a damaged one, or parts that do not belong together.
    """
    config, file = read_config(folder), folder / "config.json"
    try:
        kind = encoder_class(config["model_type"])
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    checked(kind.schema, config, file)
    tokenizer = tokenizers.load(folder)
    if len(tokenizer) > config["vocab_size"]:
        raise UserError(
            f"The tokenizer in {folder} has {len(tokenizer):,} tokens, the encoder's embedding only "
            f"{config['vocab_size']:,}: they do not belong together."
        )
    state = read_state(folder)
    check_sizes(kind, config, state, folder)
    try:
        encoder = kind.from_config(config, tokenizer)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    encoder.config |= checked(OfPretraining, config, file)
    return encoder, state
