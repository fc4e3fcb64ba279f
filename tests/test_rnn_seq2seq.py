"""Recurrent encoder-decoders against the papers' lines in NumPy, one text at a time and token by token."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from scipy.special import expit

from pipeline.errors import UserError
from pipeline.models import registry
from pipeline.models.generation import Search, select
from pipeline.models.inputs import Inputs
from pipeline.models.layers.recurrent_decoder import AttentionKind, Cell
from pipeline.models.rnn_seq2seq import RnnSeq2Seq
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.base import Tokenizer

SOURCES = ["the soup was good", "Anna", "the strawberries were hot and good and Anna adored them"]
TARGETS = ["Suppe gut", "und so weiter und so fort", "Anna"]
KINDS = list(itertools.product(get_args(Cell), get_args(AttentionKind)))
Array = np.ndarray


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tokenizers.train("bpe-seq2seq", [*SOURCES, *TARGETS] * 9, vocab_size=300, lowercase=False)


def model_of(tokenizer: Tokenizer, cell: Any, attention: Any, **changes: Any) -> RnnSeq2Seq:
    """With random weights that are far from 0."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"size": 16, "embedding_size": 12, "layers": 2, "max_length": 40, "dropout": 0.1, **changes}
    model = RnnSeq2Seq(tokenizer, cell=cell, attention=attention, **sizes).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def batch_of(model: RnnSeq2Seq) -> Inputs:
    return model.collate(model.tokenize(SOURCES)) | model.collate_targets(model.tokenize(TARGETS))


# ---------------------------------------------------------------------- the papers in NumPy


def cell_step(w: dict[str, Array], end: str, x: Array, state: list[Array]) -> list[Array]:
    """One step of a GRU, or of an LSTM, as torch orders their gates."""
    h = state[0]
    gates_x = w[f"weight_ih_{end}"] @ x + w[f"bias_ih_{end}"]
    gates_h = w[f"weight_hh_{end}"] @ h + w[f"bias_hh_{end}"]
    if len(state) == 1:
        (rx, zx, nx), (rh, zh, nh) = np.split(gates_x, 3), np.split(gates_h, 3)
        z = expit(zx + zh)
        return [(1 - z) * np.tanh(nx + expit(rx + rh) * nh) + z * h]
    i, f, g, o = np.split(gates_x + gates_h, 4)
    c = expit(f) * state[1] + expit(i) * np.tanh(g)
    return [expit(o) * np.tanh(c), c]


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max())
    return e / e.sum()


def written(model: RnnSeq2Seq, source: list[int], target: list[int]) -> tuple[Array, Array]:
    """Hidden vectors (U, D) and attention (U, T) for one source, and one target behind its start."""
    w = {name: value.double().numpy() for name, value in model.state_dict().items()}
    part = lambda prefix: {n.removeprefix(prefix): v for n, v in w.items() if n.startswith(prefix)}  # noqa: E731
    size, parts, kind = model.size, model.decoder.parts, model.config["attention"]
    embedded = w["word_embedding.weight"] * w["word_embedding.weight"].shape[1] ** 0.5

    xs, ends = [embedded[token] for token in source], []
    for number in range(len(model.layers)):
        weights, sides, last = part(f"layers.{number}."), [], []
        for end, order in (("l0", slice(None)), ("l0_reverse", slice(None, None, -1))):
            state, outs = [np.zeros(size // 2)] * parts, []
            for x in xs[order]:
                state = cell_step(weights, end, x, state)
                outs.append(state[0])
            sides.append(outs[order])
            last.append(outs[-1])
        xs, ends = [np.concatenate(both) for both in zip(*sides, strict=True)], [*ends, np.concatenate(last)]
    memory = np.array(xs)

    def context(s: Array) -> tuple[Array, Array]:
        if kind == "dot":
            a = softmax(memory @ s)
        else:
            keys = memory @ w["decoder.attention.key.weight"].T + w["decoder.attention.key.bias"]
            a = softmax(
                np.tanh(keys + w["decoder.attention.query.weight"] @ s) @ w["decoder.attention.score.weight"][0]
            )
        return a @ memory, a

    states = []
    for number, end in enumerate(ends):
        start = part(f"decoder.starts.{number}.")
        states.append(np.split(np.tanh(start["weight"] @ end + start["bias"]), parts))
    hidden, weights_of = [], []
    for token in target:
        y = embedded[token]
        c, a = (ends[-1], np.zeros(len(source))) if kind == "none" else context(states[-1][0])
        x = y if kind == "dot" else np.concatenate([y, c])
        for number in range(len(states)):
            states[number] = cell_step(part(f"decoder.layers.{number}."), "l0", x, states[number])
            x = states[number][0]
        if kind == "dot":
            c, a = context(x)
        readout = w["decoder.readout.weight"] @ np.concatenate([x, c, y]) + w["decoder.readout.bias"]
        hidden.append(np.tanh(readout))
        weights_of.append(a)
    return np.array(hidden), np.array(weights_of)


@pytest.mark.parametrize(("cell", "attention"), KINDS)
def test_it_is_the_papers(tokenizer: Tokenizer, cell: str, attention: str) -> None:
    """A batch with padding, in one pass, and token by token from a state: as each pair alone in NumPy."""
    model = model_of(tokenizer, cell, attention)
    batch = batch_of(model)
    with torch.no_grad():
        hidden = model.teacher_forced(batch)
        state, steps = model.begin(model.read(batch)), []
        for ids in batch["decoder_input_ids"].split(1, 1):
            steps.append(model.decode(ids, state))
            order = torch.tensor([0, 1, 2])
            state = select(state, order)
    torch.testing.assert_close(torch.cat(steps, 1), hidden, rtol=0, atol=1e-5)
    aligned = model.alignment(batch) if "alignment" in model.offers else None
    assert (aligned is None) == (attention == "none")
    for row in range(len(SOURCES)):
        source = batch["input_ids"][row][batch["mask"][row]].tolist()
        length = int((batch["labels"][row] >= 0).sum())
        expected, weights = written(model, source, batch["decoder_input_ids"][row, :length].tolist())
        np.testing.assert_allclose(hidden[row, :length].numpy(), expected, rtol=0, atol=1e-5)
        if aligned is not None:
            np.testing.assert_allclose(aligned[row, :length, : len(source)].numpy(), weights, rtol=0, atol=1e-5)
            assert aligned[row, :, len(source) :].abs().max() < 1e-6 if len(source) < aligned.shape[2] else True


@pytest.mark.parametrize(("cell", "attention"), KINDS)
def test_its_folder_writes_the_same(tokenizer: Tokenizer, tmp_path: Path, cell: str, attention: str) -> None:
    """Beam search, too, in which hypotheses take each other's places, and company that ends sooner."""
    model = model_of(tokenizer, cell, attention, output="full" if cell == "gru" else "tied")
    model.save(tmp_path)
    again, report = registry.load_with_report(tmp_path)
    assert (report.new, report.unused) == ([], [])
    assert isinstance(again, RnnSeq2Seq)
    batch, how = batch_of(model), Search(tokens=12, beam=3)
    texts = again.write(batch, how)
    assert texts == model.write(batch, how)
    for row, source in enumerate(model.tokenize(SOURCES)):
        assert model.write(model.collate([source]), how) == [texts[row]]


def test_what_it_refuses(tokenizer: Tokenizer) -> None:
    for changes, said in (
        ({"size": 15}, "size is 15; it must be even"),
        ({"embedding_size": 20}, "embedding_size is 20"),
        ({"attention": "cosine"}, "attention must be one of none, dot, additive, not cosine"),
        ({"cell": "rnn"}, "cell must be one of gru, lstm, not rnn"),
    ):
        with pytest.raises(UserError, match=said):
            model_of(tokenizer, **{"cell": "gru", "attention": "dot", **changes})
