"""Published ELMo weights: what is imported computes what the original does, and what is wrong is refused."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from scipy.special import expit

import pipeline
from pipeline.errors import UserError
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.options import HeadOptions
from pipeline.interop.elmo_hdf5 import import_elmo
from tests.conftest import run

SENTENCES = [["The", "soup", "was", "good", "."], ["Zürich", "日本", "🙂"], ["a"], ["x" * 70, "short", "words", "here"]]
OPTIONS = {
    "lstm": {"use_skip_connections": True, "projection_dim": 6, "cell_clip": 0.3, "proj_clip": 0.2, "dim": 10},
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [7, 5]],
        "n_highway": 2,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}
OPTIONS["lstm"]["n_layers"] = 2


# ---------------------------------------------------------------------- the published format


def write_published(folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """Random weights in the layout of the published files."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {"char_embed": rng.normal(size=(261, 4))}
    cnn, lstm = OPTIONS["char_cnn"], OPTIONS["lstm"]
    size = sum(count for _, count in cnn["filters"])  # type: ignore[attr-defined]
    for i, (width, count) in enumerate(cnn["filters"]):  # type: ignore[arg-type]
        weights[f"CNN/W_cnn_{i}"] = rng.normal(size=(1, width, 4, count)) * 0.3
        weights[f"CNN/b_cnn_{i}"] = rng.normal(size=count) * 0.3
    for i in range(2):
        for part in ("transform", "carry"):
            weights[f"CNN_high_{i}/W_{part}"] = rng.normal(size=(size, size)) * 0.3
            weights[f"CNN_high_{i}/b_{part}"] = rng.normal(size=size) * 0.3
    p, h = lstm["projection_dim"], lstm["dim"]
    weights |= {"CNN_proj/W_proj": rng.normal(size=(size, p)), "CNN_proj/b_proj": rng.normal(size=p)}  # type: ignore[call-overload]
    for direction in range(2):
        for layer in range(2):
            group = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            weights[f"{group}/W_0"] = rng.normal(size=(2 * p, 4 * h)) * 0.5  # type: ignore[operator]
            weights[f"{group}/B"] = rng.normal(size=4 * h) * 0.5  # type: ignore[operator]
            weights[f"{group}/W_P_0"] = rng.normal(size=(h, p)) * 0.5  # type: ignore[call-overload]
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    (folder / "options.json").write_text(json.dumps(OPTIONS))
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, value in weights.items():
            file[name] = value
    return folder / "options.json", folder / "weights.hdf5", weights


def original(
    weights: dict[str, np.ndarray], sentences: list[list[str]], states: dict | None = None, *, skip: bool = True
) -> list[np.ndarray]:
    """The definition, word by word and step by step: per sentence (3, T, 2P), marks included."""

    def characters(word: str) -> list[int]:
        inner = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode()[:48])
        return [258, *inner, 259] + [260] * (48 - len(inner))

    def vector(word: str) -> np.ndarray:
        x = weights["char_embed"][characters(word)]
        pooled = []
        for i, (width, _) in enumerate(OPTIONS["char_cnn"]["filters"]):  # type: ignore[arg-type]
            kernel = weights[f"CNN/W_cnn_{i}"][0]
            places = [np.einsum("wd,wdc->c", x[j : j + width], kernel) for j in range(50 - width + 1)]
            pooled.append(np.maximum(np.max(places, axis=0) + weights[f"CNN/b_cnn_{i}"], 0))
        y = np.concatenate(pooled)
        for i in range(2):
            gate = expit(y @ weights[f"CNN_high_{i}/W_carry"] + weights[f"CNN_high_{i}/b_carry"])
            new = np.maximum(y @ weights[f"CNN_high_{i}/W_transform"] + weights[f"CNN_high_{i}/b_transform"], 0)
            y = gate * new + (1 - gate) * y
        return y @ weights["CNN_proj/W_proj"] + weights["CNN_proj/b_proj"]

    results = []
    for number, sentence in enumerate(sentences):
        x = np.stack([vector(word) for word in ["<S>", *sentence, "</S>"]])
        sides = []
        for direction in range(2):
            layers, current = [x], x[::-1] if direction else x
            for layer in range(2):
                w, b, p = (
                    weights[f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{n}"] for n in ("W_0", "B", "W_P_0")
                )
                key = (number, direction, layer)
                h, c = (states or {}).get(key, (np.zeros(6), np.zeros(10)))
                outputs = []
                for step in current:
                    i, j, f, o = np.split(np.concatenate([step, h]) @ w + b, 4)
                    c = np.clip(expit(f + 1) * c + expit(i) * np.tanh(j), -0.3, 0.3)
                    h = np.clip((expit(o) * np.tanh(c)) @ p, -0.2, 0.2)
                    outputs.append(h)
                if states is not None:
                    states[key] = (h, c)
                current = np.stack(outputs) + (current if layer and skip else 0)
                layers.append(current[::-1] if direction else current)
            sides.append(layers)
        results.append(np.stack([np.concatenate(pair, -1) for pair in zip(*sides, strict=True)]))
    return results


@pytest.mark.parametrize("skip", [True, False, None])
def test_imported_weights_give_the_original_activations(tmp_path: Path, skip: bool | None) -> None:
    options, hdf5, weights = write_published(tmp_path)
    named = {} if skip is None else {"use_skip_connections": skip}
    lstm = {name: value for name, value in OPTIONS["lstm"].items() if name != "use_skip_connections"}
    options.write_text(json.dumps({**OPTIONS, "lstm": {**lstm, **named}}))
    elmo = import_elmo(options, hdf5)
    out = elmo.encode(SENTENCES)
    for row, expected in enumerate(original(weights, SENTENCES, skip=bool(skip))):
        length = expected.shape[1]
        assert int(out.mask[row].sum()) == length
        for layer in range(3):
            assert np.abs(out.layers[layer][row, :length].numpy() - expected[layer]).max() < 1e-5
    elmo.save(tmp_path / "encoder")
    again = pipeline.encoders.load(tmp_path / "encoder").encode(SENTENCES)
    assert torch.equal(again.layers[2], out.layers[2])


def test_imported_weights_carry_their_state_as_the_original(tmp_path: Path) -> None:
    options, hdf5, weights = write_published(tmp_path)
    elmo, states, state = import_elmo(options, hdf5, state="carry"), {}, None
    for _ in range(3):
        batch = elmo.collate(elmo.tokenize(SENTENCES))
        with torch.no_grad():
            out = elmo(batch, state)
        state = out.state
        for row, expected in enumerate(original(weights, SENTENCES, states)):
            for layer in range(3):
                assert np.abs(out.layers[layer][row, : expected.shape[1]].numpy() - expected[layer]).max() < 1e-5
    with torch.no_grad():
        first = elmo(batch)
        second = elmo(batch, first.state)
    assert (first.layers[2] - second.layers[2]).abs().max() > 1e-3


@pytest.mark.parametrize(("flags", "state"), [([], "reset"), (["--state", "carry"], "carry")])
def test_the_command_imports_weights(tmp_path: Path, flags: list[str], state: str) -> None:
    options, hdf5, _ = write_published(tmp_path)
    run("import-elmo", "--options", str(options), "--weights", str(hdf5), "--out", str(tmp_path / "encoder"), *flags)
    encoder = pipeline.encoders.load(tmp_path / "encoder")
    assert encoder.config["state"] == state
    expected = import_elmo(options, hdf5).encode(SENTENCES).layers[2]
    torch.testing.assert_close(encoder.encode(SENTENCES).layers[2], expected)


def test_a_folder_that_does_not_name_skip_connections_has_them(tmp_path: Path) -> None:
    options, hdf5, _ = write_published(tmp_path)
    import_elmo(options, hdf5).save(tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder/config.json").read_text())
    assert config.pop("skip_connections") is True
    (tmp_path / "encoder/config.json").write_text(json.dumps(config))
    again = pipeline.encoders.load(tmp_path / "encoder")
    assert again.config["skip_connections"] is True


def test_encode_carries_the_state_in_the_order_of_the_texts(tmp_path: Path) -> None:
    """Batches of two, the last one of a single row, as the original takes them: the other row keeps its state."""
    options, hdf5, weights = write_published(tmp_path)
    elmo, states, state = import_elmo(options, hdf5, state="carry"), {}, None
    texts = [*SENTENCES, ["So", "was", "the", "bread", ",", "and", "the", "tea"]]
    for _ in range(2):
        out = elmo.encode(texts, batch_size=2, state=state)
        state = out.state
        expected = [row for i in range(0, len(texts), 2) for row in original(weights, texts[i : i + 2], states)]
        for row, layers in enumerate(expected):
            for layer in range(3):
                assert np.abs(out.layers[layer][row, : layers.shape[1]].numpy() - layers[layer]).max() < 1e-5
    wider = elmo.encode(texts[:2], state=elmo.encode(texts[:1]).state)  # a row that was in no batch begins from zero
    assert torch.equal(wider.layers[2][1], elmo.encode(texts[:2]).layers[2][1])


def test_what_takes_texts_in_another_order_carries_no_state(tmp_path: Path) -> None:
    options, hdf5, _ = write_published(tmp_path)
    elmo = import_elmo(options, hdf5, state="carry")
    with pytest.raises(UserError, match="carries its state"):
        pipeline.prompting.score(elmo, [])
    craft = {"mix": False, "mix_dropout": 0.0, "lstm": 0, "dropout": 0.0, "words": "first", "crf": False, "cut": "head"}
    told = HeadOptions(name="sentence", pairs=False, columns={}, max_length=20, **craft)
    model = FineTunedModel(elmo, labels=["a", "b"], options=told)
    texts = ["one two three", "a", "this is longer than the others"]
    together = [row["probability"] for row in model.predict(texts, batch_size=1)]
    assert together == pytest.approx([model.predict([text])[0]["probability"] for text in texts], abs=1e-6)
    assert model.encoder.config["state"] == "reset"


def test_import_refuses(tmp_path: Path) -> None:
    options, hdf5, _ = write_published(tmp_path)

    def refused(message: str, **changes: object) -> None:
        other = json.loads(json.dumps(OPTIONS))
        for key, value in changes.items():
            section, _, name = key.partition("__")
            other[section][name] = value
        (tmp_path / "other.json").write_text(json.dumps(other))
        with pytest.raises(UserError, match=message) as caught:
            import_elmo(tmp_path / "other.json", hdf5)
        assert "\n" not in str(caught.value)

    refused("contradicts the options", lstm__dim=12)
    refused("contradicts the options", lstm__projection_dim=5)
    refused("contradicts the options", char_cnn__filters=[[1, 3], [2, 4], [6, 5]])
    refused("lacks CNN/W_cnn_3", char_cnn__filters=[[1, 3], [2, 4], [7, 5], [3, 2]])
    refused("more LSTM layers", lstm__n_layers=1)
    refused("lacks RNN_0", lstm__n_layers=3)
    refused("n_characters is 100", char_cnn__n_characters=100)
    refused("activation is 'gelu'", char_cnn__activation="gelu")
    refused("has no char_cnn.filters.0.1", char_cnn__filters=[[1]])
    refused("max_characters is 6; with these filters it must be at least 7", char_cnn__max_characters_per_token=6)
    refused("cell_clip is '3'", lstm__cell_clip="3")
    for size in ("2", -3):
        refused(f"lstm.dim is {size!r}", lstm__dim=size)
    (tmp_path / "no.json").write_text("{}")
    for file, message in ((tmp_path / "no.json", "has no char_cnn"), (tmp_path / "nowhere", "no options")):
        with pytest.raises(UserError, match=message):
            import_elmo(file, hdf5)
    with h5py.File(tmp_path / "empty.hdf5", "w"):
        pass
    (tmp_path / "broken.hdf5").write_text("not HDF5")
    for file, message in (("empty", "lacks char_embed"), ("broken", "cannot be read as HDF5"), ("none", "no weights")):
        with pytest.raises(UserError, match=message):
            import_elmo(options, tmp_path / f"{file}.hdf5")


def test_published_weights_are_checked_before_anything_is_built(tmp_path: Path) -> None:
    options, hdf5, _ = write_published(tmp_path)
    for section, key in (("lstm", "dim"), ("lstm", "projection_dim"), ("char_cnn", "n_highway")):
        huge = {**OPTIONS, section: {**OPTIONS[section], key: 10**12}}
        (tmp_path / "huge.json").write_text(json.dumps(huge))
        with pytest.raises(UserError, match=r"contradicts the options|lacks CNN_high"):
            import_elmo(tmp_path / "huge.json", hdf5)
    with h5py.File(hdf5, "a") as file:
        file["CNN_proj/b_proj"][...] = np.nan
    with pytest.raises(UserError, match=r"CNN_proj/b_proj in .* holds something other than finite numbers"):
        import_elmo(options, hdf5)
