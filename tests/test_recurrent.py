"""Recurrent models against the equations of their papers, and their state against one pass over all tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit

from pipeline.errors import UserError
from pipeline.models.recurrent import Recurrent
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe

SIZES: dict[str, Any] = {"size": 12, "embedding_size": 8, "layers": 2, "max_length": 32, "dropout": 0.0}
CELLS = ["rnn", "gru", "lstm"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return ByteBpe.train(["the soup was good and the bread was better"] * 10, vocab_size=280)


def one_step(cell: str, x: np.ndarray, h: np.ndarray, c: np.ndarray, layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """The equations of torch's documentation in NumPy: x (E,), h and c (D,) -> h and c."""
    w, u, b, d = (part.detach().double().numpy() for part in layer.parameters())
    if cell == "rnn":
        return np.tanh(w @ x + b + u @ h + d), c
    if cell == "lstm":
        i, f, g, o = np.split(w @ x + b + u @ h + d, 4)
        c = expit(f) * c + expit(i) * np.tanh(g)
        return expit(o) * np.tanh(c), c
    (xr, xz, xn), (hr, hz, hn) = np.split(w @ x + b, 3), np.split(u @ h + d, 3)
    r, z = expit(xr + hr), expit(xz + hz)
    return (1 - z) * np.tanh(xn + r * hn) + z * h, c


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_its_equations(cell: str, tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    model = Recurrent(tokenizer, cell=cell, **SIZES).eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    ids = torch.randint(0, len(tokenizer), (3, 9))
    layers = model({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers
    below = model.word_embedding(ids).detach().double().numpy() * 8**0.5
    np.testing.assert_allclose(layers[0][..., :8].detach(), below, atol=1e-5)
    for layer, found in zip(model.layers, layers[1:], strict=True):
        states = np.zeros((3, 9, 12))
        for row in range(3):
            h = c = np.zeros(12)
            for t in range(9):
                h, c = one_step(cell, below[row, t], h, c, layer)
                states[row, t] = h
        np.testing.assert_allclose(found.detach(), states, atol=1e-5)
        below = states


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("output", ["tied", "full", "adaptive"])
def test_two_pieces_with_the_state_are_one(cell: str, output: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Recurrent(tokenizer, cell=cell, output=output, **{**SIZES, "size": 20}).eval()  # type: ignore[arg-type]
    ids = torch.randint(0, len(tokenizer), (3, 12))
    mask = torch.ones_like(ids, dtype=torch.bool)
    whole = model({"input_ids": ids, "mask": mask})
    first = model({"input_ids": ids[:, :5], "mask": mask[:, :5]})
    second = model({"input_ids": ids[:, 5:], "mask": mask[:, 5:]}, first.state)
    for layer, *parts in zip(whole.layers, first.layers, second.layers, strict=True):
        torch.testing.assert_close(torch.cat(parts, 1), layer, rtol=0, atol=1e-6)
    for part, same in zip(second.state, whole.state, strict=True):
        torch.testing.assert_close(part, same, rtol=0, atol=1e-6)
        assert not any(tensor.requires_grad for tensor in part)
    alone = model({"input_ids": ids[:1, 5:], "mask": mask[:1, 5:]}, first.state)  # fewer rows: the first ones
    torch.testing.assert_close(alone.layers[-1], whole.layers[-1][:1, 5:], rtol=0, atol=1e-6)
    model.save(tmp_path)
    again = Recurrent.from_config(model.config, tokenizer)
    again.import_state(model.export_state())
    assert torch.equal(again.eval().logits(whole.layers[-1]), model.logits(whole.layers[-1]))


def test_padding_ends_the_state(tokenizer: Tokenizer) -> None:
    model = Recurrent(tokenizer, cell="gru", **SIZES).eval()
    assert model(model.collate([[5, 6], [7]])).state is None


@pytest.mark.parametrize(
    ("change", "named"), [({"embedding_size": 13}, "at most|from 1 to"), ({"cutoffs": [9]}, "cutoffs")]
)
def test_settings_that_do_not_fit_are_named(change: dict[str, Any], named: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=named):
        Recurrent(tokenizer, cell="lstm", **(SIZES | change))
