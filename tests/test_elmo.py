"""ELMo against the definition in NumPy and torch's own LSTM; import, states, blocks, words."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch import nn

import pipeline
from pipeline.data import token_store as store
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.finetuning.heads.sentence import SentenceHead
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.options import HeadOptions
from pipeline.interop.elmo_hdf5 import import_elmo
from pipeline.models.elmo import Elmo, collate_words
from pipeline.models.inputs import flatten_pairs
from pipeline.models.layers.char_cnn import BEGIN, END, spell
from pipeline.models.layers.lstm import Lstm, side_by_side
from pipeline.objectives.base import BidirectionalLM
from pipeline.objectives.batches import Steps, WordRows
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import SpelledWords, split_words

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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStore, Tokenizer]:
    folder = tmp_path_factory.mktemp("world")
    sample.write_corpus(folder, documents_count=100, seed=0)
    tokenizer = SpelledWords.train((folder / "train.txt").open(), vocab_size=300, lowercase=False)
    return store.build(Source(files=[folder / "train.txt"]), tokenizer, folder / "stores"), tokenizer


def small(tokenizer: Tokenizer, **options: object) -> Elmo:
    settings = {"character_size": 4, "filters": [[1, 8], [2, 8], [3, 8]], "highways": 1, "projection": 12, "cell": 20}
    settings |= {"layers": 2, "max_length": 60, "dropout": 0.0, "cutoffs": [50, 150], **options}
    torch.manual_seed(0)
    return Elmo(tokenizer, **settings).eval()  # type: ignore[arg-type]


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


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


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
            gate = sigmoid(y @ weights[f"CNN_high_{i}/W_carry"] + weights[f"CNN_high_{i}/b_carry"])
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
                    c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.3, 0.3)
                    h = np.clip((sigmoid(o) * np.tanh(c)) @ p, -0.2, 0.2)
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
    elmo, states = import_elmo(options, hdf5, state="carry"), {}
    for _ in range(3):
        batch = elmo.collate(elmo.tokenize(SENTENCES))
        with torch.no_grad():
            out = elmo(batch)
        for row, expected in enumerate(original(weights, SENTENCES, states)):
            for layer in range(3):
                assert np.abs(out.layers[layer][row, : expected.shape[1]].numpy() - expected[layer]).max() < 1e-5
    with torch.no_grad():
        elmo.reset()
        first, second = elmo(batch).layers[2], elmo(batch).layers[2]
    assert (first - second).abs().max() > 1e-3


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
    elmo, states = import_elmo(options, hdf5, state="carry"), {}
    texts = [*SENTENCES, ["So", "was", "the", "bread", ",", "and", "the", "tea"]]
    for _ in range(2):
        out = elmo.encode(texts, batch_size=2)
        expected = [row for i in range(0, len(texts), 2) for row in original(weights, texts[i : i + 2], states)]
        for row, layers in enumerate(expected):
            for layer in range(3):
                assert np.abs(out.layers[layer][row, : layers.shape[1]].numpy() - layers[layer]).max() < 1e-5
    elmo.reset()
    elmo.encode(texts[:1])
    wider = elmo.encode(texts[:2])  # a row that was in no batch begins from zero
    elmo.reset()
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
    with pytest.raises(UserError, match=r"CNN_proj/b_proj in .* holds something else than finite numbers"):
        import_elmo(options, hdf5)


# ---------------------------------------------------------------------- LSTM


def test_lstm_equals_torch() -> None:
    torch.manual_seed(0)
    ours = Lstm(size=5, cell=7, cell_clip=None, projection_clip=None).double()
    theirs = nn.LSTM(5, 7, proj_size=5, batch_first=True).double()
    with torch.no_grad():
        for name, value in (
            ("weight_ih_l0", ours.input.weight),
            ("bias_ih_l0", ours.input.bias),
            ("weight_hh_l0", ours.recurrent.weight),
            ("weight_hr_l0", ours.project.weight),
        ):
            getattr(theirs, name).copy_(value)
        theirs.bias_hh_l0.zero_()
    x = torch.randn(3, 9, 5, dtype=torch.float64, requires_grad=True)
    h, c = torch.randn(3, 5, dtype=torch.float64), torch.randn(3, 7, dtype=torch.float64)
    out, (last_h, last_c) = ours(x, (h, c), torch.ones(3, 9, dtype=torch.bool))
    expected, (their_h, their_c) = theirs(x, (h[None], c[None]))
    for one, two in ((out, expected), (last_h, their_h[0]), (last_c, their_c[0])):
        assert (one - two).abs().max() < 1e-5  # the recurrence runs in float32
    ours_grads = torch.autograd.grad(out.square().sum() + last_c.sum(), [x, *ours.parameters()])
    theirs_grads = torch.autograd.grad(
        expected.square().sum() + their_c.sum(),
        [x, theirs.weight_ih_l0, theirs.bias_ih_l0, theirs.weight_hh_l0, theirs.weight_hr_l0],
    )
    for one, two in zip(ours_grads, theirs_grads, strict=True):
        assert (one - two).abs().max() < 1e-4


def test_fast_and_clipped_agree_without_a_bound_that_matters() -> None:
    torch.manual_seed(0)
    fast = Lstm(size=5, cell=7, cell_clip=None, projection_clip=None)
    loop = Lstm(size=5, cell=7, cell_clip=1e6, projection_clip=1e6)
    loop.load_state_dict(fast.state_dict())
    x, mask = torch.randn(2, 9, 5), torch.ones(2, 9, dtype=torch.bool)
    mask[1, 4:] = False
    one, two = fast(x, None, mask), loop(x, None, mask)
    assert (one[0] - two[0])[mask].abs().max() < 1e-6
    for a, b in zip(one[1], two[1], strict=True):
        assert (a - b).abs().max() < 1e-6


def test_side_by_side_equals_each_alone() -> None:
    torch.manual_seed(0)
    lstms = [Lstm(size=5, cell=7, cell_clip=None, projection_clip=None) for _ in range(2)]
    xs, mask = [torch.randn(3, 9, 5) for _ in lstms], torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    states = [None, (torch.randn(3, 5), torch.randn(3, 7))]
    parameters = [parameter for lstm in lstms for parameter in lstm.parameters()]

    def outcome(results: list) -> list[torch.Tensor]:
        loss = sum(out[mask].square().sum() + c.sum() for out, (_, c) in results)
        return [*(out[mask] for out, _ in results), *torch.autograd.grad(loss, parameters)]

    together = outcome(side_by_side(lstms, xs, states, mask))
    alone = outcome([lstm(x, state, mask) for lstm, x, state in zip(lstms, xs, states, strict=True)])
    for one, two in zip(together, alone, strict=True):
        assert (one - two).abs().max() < 1e-5


# ---------------------------------------------------------------------- words, batches, state


def test_any_word_is_spelled_and_only_frequent_ones_are_outputs(world: tuple[TokenStore, Tokenizer]) -> None:
    tokenizer = world[1]
    text = "The soup, don't Zürich 日本 🙂 x" + "y" * 60
    [ids] = tokenizer.encode_batch([text])
    words = split_words(np.asarray(ids))
    expected = ["The", "soup", ",", "don", "'", "t", "Zürich", "日", "本", "🙂", "x" + "y" * 60]
    assert [word.decode() for word in words] == expected
    assert tokenizer.outputs[b"."] == 3  # the most frequent word stands first, after the two marks and [UNK]
    assert sorted(tokenizer.outputs.values()) == list(range(3, 303))
    assert np.exp(-tokenizer.spelling_nats).sum() == pytest.approx(1)
    [again] = [[i for word in tokenizer.encode_words(expected) for i in word]]
    assert again == ids


def test_characters_are_those_of_the_published_models() -> None:
    ids = spell([BEGIN, b"ab", END, b"z" * 60], 50)
    assert ids.shape == (4, 50)
    assert ids[0, :4].tolist() == [259, 257, 260, 261]
    assert ids[1, :5].tolist() == [259, 98, 99, 260, 261]
    assert ids[2, :4].tolist() == [259, 258, 260, 261]
    assert (ids[3, 1:49] == ord("z") + 1).all()
    assert ids[3, 49] == 260
    assert spell([b"ab"], 50).shape == (1, 11)


def test_the_stream_holds_every_word_once(world: tuple[TokenStore, Tokenizer]) -> None:
    built, tokenizer = world
    expected: list[bytes] = []
    for a, b in zip(built.sentences[:-1], built.sentences[1:], strict=True):
        expected += [BEGIN, *split_words(built.tokens[a:b]), END]
    for phase in (0, 7):
        blocks = WordRows(carry=False).windows(built, tokenizer, 20, phase)
        rows = blocks(np.arange(len(blocks)))
        assert [word for row in rows for word in row[1:-1]] == expected[1 + phase : 1 + phase + 20 * len(rows)]
        assert all(row[-2:] == other[:2] for row, other in itertools.pairwise(rows))


def test_batches_ask_for_the_neighbours(world: tuple[TokenStore, Tokenizer]) -> None:
    tokenizer = world[1]
    batch = Steps(WordRows(carry=False), *world, length=20, batch_size=8, seed=0)(1)
    assert torch.equal(batch["input_ids"][:, 1:], batch["next"][:, :-1])
    assert torch.equal(batch["input_ids"][:, :-1], batch["previous"][:, 1:])
    assert len(batch["characters"]) == len(batch["words"].unique())
    assert int(batch["total/forward"]) == 160
    unknown = (batch["next"] == 2).sum()
    assert 0 < unknown < 160
    assert float(batch["spelling/next"].sum()) > 3 * float(unknown) * tokenizer.spelling_nats.min()


def test_words_are_what_is_between_the_marks(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    assert elmo.encode(["", "\u200b\x00", "a"]).mask.sum(1).tolist() == [2, 2, 3]
    assert elmo.encode([[], ["a"]]).mask.sum(1).tolist() == [2, 3]
    assert elmo.encode([["soup", "soup"]]).words.tolist() == [[-1, 0, 1, -1]]  # type: ignore[union-attr]


def test_pairs_are_read_apart_and_compared(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    head = SentenceHead(elmo, classes=3, dropout=0.0, mix=False, mix_dropout=0.0, lstm=0, times=4).eval()
    firsts, seconds = ["The soup was good.", "a b"], ["Anna", "c d e"]
    pairs = list(zip(firsts, seconds, strict=True))
    u, v = (elmo.pooled(elmo.encode(texts)) for texts in (firsts, seconds))
    with torch.no_grad():
        batch = elmo.collate_for_head(elmo.tokenize(pairs))
        logits = head(elmo, batch, elmo(flatten_pairs(batch)))
        expected = head.classifier(torch.cat([u, v, (u - v).abs(), u * v], -1))
    assert (logits - expected).abs().max() < 1e-5


def test_log_probs_and_losses_are_of_the_full_distribution(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    out = elmo.encode(SENTENCES, logits=True)
    assert out.logits is not None
    assert out.logits.shape == (4, 7, 2, 303)
    assert (out.logits.exp().sum(-1) - 1).abs().max() < 1e-5
    with torch.no_grad():
        scores = elmo.log_probs(elmo.collate(elmo.tokenize(SENTENCES)))
    ids = out.input_ids
    for row in range(4):
        length = int(out.mask[row].sum())
        for t in range(length):
            ahead = out.logits[row, t - 1, 0, ids[row, t]] if t else 0
            back = out.logits[row, t + 1, 1, ids[row, t]] if t < length - 1 else 0
            assert scores[row, t].tolist() == pytest.approx([float(ahead), float(back)], abs=1e-4)
    batch = Steps(WordRows(carry=False), *world, length=20, batch_size=8, seed=0)(1)
    with torch.no_grad():
        losses, logits = BidirectionalLM()(elmo, batch), elmo.logits(elmo(batch).layers[-1])
    for side, (name, of) in enumerate((("forward", "next"), ("backward", "previous"))):
        expected = -logits[:, :, side].gather(-1, batch[of][..., None]).sum()
        assert float(losses[name].sum) == pytest.approx(float(expected), rel=1e-5)


def test_carried_blocks_equal_one_long_one(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    steps = Steps(WordRows(carry=True), *world, length=20, batch_size=4, seed=0)
    batches = [steps(step) for step in range(3)]
    blocks = steps.windows
    rows = [
        [word for step in range(3) for word in blocks(np.array([row * steps.steps + step]))[0][1:-1]]
        for row in range(4)
    ]
    with torch.no_grad():
        parts = [elmo(batch).layers[-1] for batch in batches]
        elmo.reset()
        whole = elmo(collate_words(rows, world[1].outputs, max_characters=50)).layers[-1]
        elmo.reset()
        alone = [
            elmo({name: value for name, value in batch.items() if name != "carry"}).layers[-1] for batch in batches
        ]
    assert (torch.cat(parts, 1)[..., :12] - whole[..., :12]).abs().max() < 1e-5
    # Backward the text before must not be known: it is what is asked for.
    assert (torch.cat(parts, 1)[..., 12:] - torch.cat(alone, 1)[..., 12:]).abs().max() < 1e-6


def test_bits_per_byte_charge_unknown_words(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Qwxyz was.\n")
    built = store.build(Source(files=[tmp_path / "text.txt"]), world[1], tmp_path / "stores")
    elmo, maker = small(world[1]), WordRows(carry=False)
    windows = maker.windows(built, world[1], 8, 0)
    assert windows.total == 3 + 2
    batch = maker.make(windows, np.array([0]), world[1], seed=0, rng=np.random.default_rng(0))
    nats = world[1].spelling_nats
    assert float(batch["spelling/previous"]) == pytest.approx(sum(nats[list(b"Qwxyz")]) + nats[256])
    with torch.no_grad():
        losses = BidirectionalLM()(elmo, batch)
    figures = {f"{name}_loss": float(loss.sum / loss.count) for name, loss in losses.items()}
    figures |= {f"{name}_spelling": float(loss.spelling / loss.count) for name, loss in losses.items()}  # type: ignore[operator]
    report = BidirectionalLM().report(figures, per_byte=maker.predictions_per_byte(windows))
    assert maker.predictions_per_byte(windows) == 5 / 11
    expected = (figures["backward_loss"] + figures["backward_spelling"]) * 5 / 11 / np.log(2)
    assert report["backward_bits_per_byte"] == pytest.approx(expected)
    assert report["backward_perplexity"] == pytest.approx(np.exp(figures["backward_loss"]))
