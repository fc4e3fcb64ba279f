"""The registry of models by their `model_type`, and `load`, which opens any encoder folder, ours or Hugging Face's.

A file in this package that defines an Encoder with a `model_type` is found; a class from elsewhere is registered by
`register`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.folder import check_sizes, read_config, read_state
from pipeline.models.outputs import LoadReport
from pipeline.storage.validation import checked
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.base import Tokenizer
from tasks.dataset import listed
from tasks.discovery import modules_of


class PretrainingConfig(TypedDict, total=False):
    """What `config.json` says beside the architecture: the tokens of a row that the encoder was pretrained on."""

    training_length: Annotated[int, Field(ge=1)]


Kind = TypeVar("Kind", bound=type[Encoder])
_REGISTERED: dict[str, type[Encoder]] = {}


def register(kind: Kind) -> Kind:
    """Makes folders of a model known by its `model_type`; also as a decorator of the class.

    Raises:
        ValueError: another class has this `model_type`.
    """
    other = known().get(kind.model_type, kind)
    if other is not kind:
        raise ValueError(f"model_type '{kind.model_type}' is taken by {other.__module__}.{other.__name__}")
    _REGISTERED[kind.model_type] = kind
    return kind


@functools.cache
def _in_package() -> dict[str, type[Encoder]]:
    """The models that are defined in a file of this package."""
    classes = [(module, value) for module in modules_of("pipeline.models") for value in vars(module).values()]
    found: dict[str, type[Encoder]] = {}
    for kind in (value for module, value in classes if _is_model(value, module.__name__)):
        other = found.setdefault(kind.model_type, kind)
        if other is not kind:  # as of a copied file
            both = f"{other.__module__} and {kind.__module__}"
            raise UserError(f"{both} define the same model_type '{kind.model_type}': give one of them another.")
    return found


def _is_model(value: Any, module: str) -> bool:
    return (
        isinstance(value, type)
        and issubclass(value, Encoder)
        and value.__module__ == module
        and hasattr(value, "model_type")
    )


def known() -> dict[str, type[Encoder]]:
    """Each model by its `model_type`."""
    return {**_in_package(), **_REGISTERED}


def names() -> list[str]:
    """All model types."""
    return sorted(known())


def family(model_type: str) -> str:
    """`model_type` of a config.json -> ours, where Hugging Face names the same model otherwise."""
    return next((name for name, kind in known().items() if model_type in kind.hf_model_types), model_type)


def variant(config: Mapping[str, Any]) -> str:
    """What the model of a `config.json` is called: as MODEL= where it has a preset, `lstm` for instance."""
    name = family(str(config.get("model_type", "model")))
    return known()[name].variant(config) if name in known() else name


def encoder_class(model_type: str) -> type[Encoder]:
    """`model_type` of a config.json -> our class.

    Raises:
        UserError: there is none.
    """
    if (name := family(model_type)) not in known():
        raise UserError(f"There is no encoder '{model_type}'; there are {', '.join(names())}.")
    return known()[name]


def load(folder: str | Path) -> Encoder:
    """The encoder of a folder, in eval mode, with `.tokenizer` and `.config`.

    Raises:
        UserError: no encoder folder, a damaged one, or a tokenizer that does not fit the embedding.
    """
    with torch.random.fork_rng(devices=[]):  # weights that the folder then replaces
        return load_with_report(Path(folder))[0]


def load_with_heads(folder: Path) -> Encoder:
    """As `load`, of an encoder whose probabilities are needed.

    Raises:
        UserError: a tensor is missing, so that they would be random.
    """
    encoder, report = load_with_report(folder)
    if report.new:
        if "head" in read_config(folder):
            raise UserError(f"{folder} is a fine-tuned model without a language model; name its pretrained encoder.")
        names = listed(report.new, most=3)
        raise UserError(f"{folder} has no {names}: it gives vectors, but no probabilities.")
    return encoder


def load_with_report(folder: Path, *, weights: bool = True) -> tuple[Encoder, LoadReport]:
    """As `load`, with the report of what was loaded; `weights=False` gives the same architecture with fresh weights.

    Raises:
        UserError: as `load`, or no tensor of the folder belongs to its encoder.
    """
    encoder, state = fresh(folder)
    report = copy_tensors(encoder, state if weights else {}, folder)
    return encoder.eval(), report if weights else replace(report, unused=sorted(state))


def class_of(folder: Path) -> type[Encoder]:
    """The class of the encoder in a folder.

    Raises:
        UserError: no encoder folder, or there is no such class.
    """
    return encoder_class(read_config(folder)["model_type"])


def arguments(folder: Path) -> dict[str, Any]:
    """What `from_config` hands to the class of the encoder in a folder beside the tokenizer, by name; nothing is built.

    Raises:
        UserError: no encoder folder, or a damaged one.
    """
    config, found = read_config(folder), dict[str, Any]()
    kind = encoder_class(config["model_type"])
    checked(kind.schema, config, folder / "config.json")

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __init__(self, tokenizer: Tokenizer, **given: Any) -> None:
            found.update(given)
            raise _NotBuilt

    with contextlib.suppress(_NotBuilt):
        Noted.from_config(config, tokenizers.load(folder))
    return found


class _NotBuilt(Exception):
    """Ends the constructor of an encoder that only its arguments are wanted of."""


def copy_tensors(encoder: Encoder, state: dict[str, Tensor], folder: Path) -> LoadReport:
    """As `Encoder.import_state`; an error names the folder's file."""
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
    state = read_state(folder, whole_numbers=kind.whole_numbers)
    check_sizes(kind, config, state, folder)
    try:
        names = {known for name in state if (known := kind.folder_name(name)) is not None}
        encoder = kind.from_config(kind.completed(config, names), tokenizer)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    encoder.config |= checked(PretrainingConfig, config, file)
    return encoder, state
