"""Published ELMo weights (bilm-tf, AllenNLP: options.json and weights.hdf5) -> an encoder folder.

The format: character ids without the row for masked words, convolution kernels (1, width, size, count), highway
layers whose carry gate opens the transform, LSTM matrices with the input's rows above the state's and gates in
the order i, j, f, o, where the original adds 1 to the forget gate at run time. There is no output layer in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.models.elmo import Elmo
from pipeline.models.layers.char_cnn import CHARACTERS, CharacterEncoder
from pipeline.models.layers.lstm import Lstm
from pipeline.storage.validation import read_json
from pipeline.tokenization.spelled_words import SpelledWords

LONGEST_TEXT = 512  # words; the original has no limit
Size = Annotated[int, Field(ge=1)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None  # 0: none


class Embedding(TypedDict):
    dim: Size


class Characters(TypedDict):
    filters: Annotated[list[tuple[Size, Size]], Field(min_length=1)]
    n_highway: Size
    embedding: Embedding
    max_characters_per_token: Annotated[int, Field(ge=3)]  # both marks of a word, and a character
    n_characters: NotRequired[Literal[261, 262]]
    activation: NotRequired[Literal["relu", "tanh"]]


class Layers(TypedDict):
    projection_dim: Size
    dim: Size
    n_layers: Size
    use_skip_connections: NotRequired[bool | None]
    cell_clip: NotRequired[Bound]
    proj_clip: NotRequired[Bound]


class Options(TypedDict):
    """What is used of an options.json."""

    char_cnn: Characters
    lstm: Layers


def import_elmo(options_file: Path, weights_file: Path, *, state: Literal["reset", "carry"] = "reset") -> Elmo:
    """The encoder of a published pair of files, with the same activations.

    Args:
        state: `reset` or `carry`, see Elmo; the original carries.

    Raises:
        UserError: no such file, another format, or options that contradict the weights.
    """
    try:
        import h5py
    except ImportError:
        raise UserError("Reading HDF5 needs h5py: install the `elmo` extra (pip install -e '.[elmo]').") from None
    if not options_file.is_file():
        raise UserError(f"There are no options at {options_file}.")
    options = read_json(options_file, Options)
    if not weights_file.is_file():
        raise UserError(f"There are no weights at {weights_file}.")
    try:
        with h5py.File(weights_file, "r") as file:
            _check_sizes(options, file, weights_file)
            encoder = _encoder(options, state)
            _read_characters(encoder.characters, file, weights_file)
            for direction, layers in enumerate((encoder.forwards, encoder.backwards)):
                for number, layer in enumerate(layers):
                    assert isinstance(layer, Lstm)
                    _read_lstm(layer, file, _group(file, direction, number), weights_file)
                if f"RNN_{direction}/RNN/MultiRNNCell/Cell{len(layers)}" in file:
                    raise UserError(f"{weights_file} has more LSTM layers than the {len(layers)} of {options_file}.")
    except OSError as error:
        raise UserError(f"{weights_file} cannot be read as HDF5 ({error}).") from None
    return encoder.eval()


def _group(file: Any, direction: int, layer: int) -> str:
    group = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
    return group if group in file else f"{group}_0"


def _check_sizes(options: Options, file: Any, name: Path) -> None:
    """Compares the options with the weights before anything is built of them."""
    characters, lstm = options["char_cnn"], options["lstm"]
    filters, letters = characters["filters"], characters["embedding"]["dim"]
    width, projection = sum(count for _, count in filters), lstm["projection_dim"]
    shapes = {
        "char_embed": (CHARACTERS, letters),
        **{f"CNN/W_cnn_{number}": (1, size, letters, count) for number, (size, count) in enumerate(filters)},
        f"CNN_high_{characters['n_highway'] - 1}/W_transform": (width, width),
        "CNN_proj/W_proj": (width, projection),
        f"{_group(file, 0, lstm['n_layers'] - 1)}/W_0": (2 * projection, 4 * lstm["dim"]),
    }
    for key, shape in shapes.items():
        if key not in file:
            raise UserError(f"{name} lacks {key}: it is not the weights.hdf5 of an ELMo, or not of these options.")
        if (there := getattr(file[key], "shape", None)) != shape:
            raise UserError(f"{key} in {name} has shape {there}, which contradicts the options: they ask for {shape}.")


def _encoder(options: Options, state: Literal["reset", "carry"]) -> Elmo:
    characters, lstm = options["char_cnn"], options["lstm"]
    return Elmo(
        SpelledWords.from_words([]),
        character_size=characters["embedding"]["dim"],
        filters=[list(pair) for pair in characters["filters"]],
        highways=characters["n_highway"],
        projection=lstm["projection_dim"],
        cell=lstm["dim"],
        layers=lstm["n_layers"],
        max_length=LONGEST_TEXT,
        max_characters=characters["max_characters_per_token"],
        dropout=0.0,
        cutoffs=None,
        activation=characters.get("activation", "relu"),
        cell_clip=lstm.get("cell_clip") or None,
        projection_clip=lstm.get("proj_clip") or None,
        skip_connections=lstm.get("use_skip_connections") or False,
        state=state,
    )


def _read_characters(characters: CharacterEncoder, file: Any, name: Path) -> None:
    _put(characters.embedding.weight[1:], file, "char_embed", name)
    for number, convolution in enumerate(characters.convolutions):
        assert isinstance(convolution, nn.Conv1d)
        assert convolution.bias is not None
        # (1, width, size, count) -> (count, size, width)
        _put(convolution.weight, file, f"CNN/W_cnn_{number}", name, lambda value: value[0].transpose(2, 1, 0))
        _put(convolution.bias, file, f"CNN/b_cnn_{number}", name)
    for number, highway in enumerate(characters.highways):
        size = highway.in_features
        for part, rows in (("transform", slice(0, size)), ("carry", slice(size, None))):
            assert isinstance(highway, nn.Linear)
            _put(highway.weight[rows], file, f"CNN_high_{number}/W_{part}", name, np.transpose)
            _put(highway.bias[rows], file, f"CNN_high_{number}/b_{part}", name)
    _put(characters.project.weight, file, "CNN_proj/W_proj", name, np.transpose)
    _put(characters.project.bias, file, "CNN_proj/b_proj", name)


def _read_lstm(layer: Lstm, file: Any, group: str, name: Path) -> None:
    size, cell = layer.recurrent.in_features, layer.project.in_features
    ours = [gate * cell + unit for gate in (0, 2, 1, 3) for unit in range(cell)]  # i, j, f, o -> i, f, j, o

    def rows(low: int, high: int) -> Any:
        return lambda value: value[low:high, ours].T if value.shape == (2 * size, 4 * cell) else value

    _put(layer.input.weight, file, f"{group}/W_0", name, rows(0, size))
    _put(layer.recurrent.weight, file, f"{group}/W_0", name, rows(size, 2 * size))
    _put(layer.input.bias, file, f"{group}/B", name, lambda value: value[ours] if len(value) == 4 * cell else value)
    with torch.no_grad():
        layer.input.bias[cell : 2 * cell] += 1.0
    _put(layer.project.weight, file, f"{group}/W_P_0", name, np.transpose)


@torch.no_grad()
def _put(target: Tensor, file: Any, key: str, name: Path, turn: Any = None) -> None:
    if key not in file:
        raise UserError(f"{name} lacks {key}: it is not the weights.hdf5 of an ELMo, or not of these options.")
    value = np.asarray(file[key][...])
    if value.dtype.kind != "f" or not np.isfinite(value).all():
        raise UserError(f"{key} in {name} holds something other than finite numbers.")
    turned = value if turn is None else turn(value)
    if turned.shape != tuple(target.shape):
        wanted = f"(turned) {tuple(target.shape)}" if turn is not None else f"{tuple(target.shape)}"
        raise UserError(
            f"{key} in {name} has shape {value.shape}, which contradicts the options: they ask for {wanted}."
        )
    target.copy_(torch.from_numpy(np.ascontiguousarray(turned)))
