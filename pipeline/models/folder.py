"""Encoder folders, in Hugging Face's layout: read, checked and written; nothing in them is ever run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.storage.checksums import check_seal
from pipeline.storage.validation import checked, read_json

if TYPE_CHECKING:
    from pipeline.models.base import Encoder

Size = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]

FILES = ("config.json", "tokenizer.json", "model.safetensors")  # that an encoder is made of
BUFFER = re.compile(r"(.*\.)?(position_ids|attn\.(bias|masked_bias))")  # constants that some folders contain
LARGEST = torch.finfo(torch.float32).max
INTEGERS = (torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass
class HeadLayout:
    """How transformers keeps a linear head on an encoder.

    Attributes:
        architecture: its class.
        name: of the linear layer.
        bias: whether that has one.
        without: prefixes of tensors of the encoder that this class does not have.
        config: what else `config.json` must say.
    """

    architecture: str
    name: str
    bias: bool = True
    without: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


class FolderConfig(TypedDict):
    """What every `config.json` has; an encoder's own `schema` is beside it."""

    model_type: str
    architectures: NotRequired[list[str] | None]


def read_config(folder: Path) -> dict[str, Any]:
    """`config.json` of an encoder folder. Nothing in it is ever run: it names sizes and one of our own encoders.

    Raises:
        UserError: no folder, no or damaged config, no weights.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} of an encoder or model.")
    for name in FILES:
        if not (folder / name).is_file():
            inside = next((folder / part for part in ("encoder", "model") if (folder / part).is_dir()), None)
            hint = f"; did you mean {inside}?" if inside else "."
            raise UserError(f"{folder} is not a folder of an encoder or model: {name} is missing{hint}")
    check_seal(folder)
    config = read_json(folder / "config.json")
    checked(FolderConfig, config, folder / "config.json")
    return config


def check_supported(config: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> None:
    """Raises UserError for a `config.json` that asks for what this family lacks.

    Args:
        allowed: key -> values; the first one is the default.
    """
    for key, values in allowed.items():
        if (value := config.get(key, values[0])) not in values:
            wanted = " or ".join(repr(one) for one in values if one is not None)
            raise UserError(
                f"This {config['model_type']} has {key} = {value!r} in its config.json; only {wanted} is supported."
            )


def read_state(folder: Path, *, whole_numbers: bool) -> dict[str, Tensor]:
    """The weights of a folder.

    Args:
        whole_numbers: whether tensors may be of a type for these.

    Raises:
        UserError: the file is damaged, or a tensor holds something other than finite numbers.
    """
    file = folder / "model.safetensors"
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}).") from None
    for name, value in state.items():
        if BUFFER.fullmatch(name) or not value.numel() or (whole_numbers and value.dtype in INTEGERS):
            continue
        if value.dtype not in FLOATS:
            kind = str(value.dtype).removeprefix("torch.")
            raise UserError(f"{file}: {name} is of type {kind}; weights are float32, float64, float16 or bfloat16.")
        low, high = (float(bound) for bound in value.aminmax())  # of a NaN anywhere both are NaN
        if not -LARGEST <= low <= high <= LARGEST:
            raise UserError(f"{file}: {name} holds numbers that are not finite; make the folder again.")
    return state


def check_sizes(kind: type[Encoder], config: dict[str, Any], state: Mapping[str, Tensor], folder: Path) -> None:
    """Compares what a config asks for with what its folder holds, before anything is built.

    Raises:
        UserError: the tensors have other sizes, or are missing.
    """
    shapes = {kind.folder_name(name): tuple(value.shape) for name, value in state.items()}
    wanted = kind.sizes(config)
    file = folder / "model.safetensors"
    if wanted and not shapes.keys() & wanted.keys():
        raise UserError(f"No tensor in {file} belongs to a {config['model_type']} encoder.")
    for name, shape in wanted.items():
        if name not in shapes and name.startswith(kind.pretraining_tensors):  # not saved where they were never trained
            continue
        if name not in shapes:
            raise UserError(f"{file} has no {name}, which {folder / 'config.json'} asks for.")
        if shapes[name] != shape:
            raise UserError(f"{file}: {name} has shape {shapes[name]}, but config.json asks for {shape}.")


def write_weights(folder: Path, config: dict[str, Any], state: Mapping[str, Tensor]) -> None:
    """Writes `config.json` and `model.safetensors`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
