"""ELMo against the definition in NumPy and torch's own LSTM; import, states, blocks, words."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.data.token_store import TokenStore
from pipeline.finetuning.heads.sentence import SentenceHead
from pipeline.models.elmo import Elmo
from pipeline.models.inputs import flatten_pairs
from pipeline.models.layers.char_cnn import BEGIN, END, spell
from pipeline.models.layers.lstm import Lstm, side_by_side
from pipeline.models.layers.spelled_words import collate_words
from pipeline.objectives.bidirectional_lm import BidirectionalLM
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.spelled_words import SpelledWords, split_words
from tests.test_tuned import options

SENTENCES = [["The", "soup", "was", "good", "."], ["Zürich", "日本", "🙂"], ["a"], ["x" * 70, "short", "words", "here"]]


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


@pytest.mark.parametrize("on_gpu", [False, True])
def test_side_by_side_equals_each_step_by_step(on_gpu: bool) -> None:
    """Both ways to compute a layer, that of processors and that of GPUs, here on a processor."""
    torch.manual_seed(0)
    lstms = [Lstm(size=5, cell=7, cell_clip=None, projection_clip=None) for _ in range(2)]
    xs, mask = [torch.randn(3, 9, 5) for _ in lstms], torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    states = [None, (torch.randn(3, 5), torch.randn(3, 7))]
    parameters = [parameter for lstm in lstms for parameter in lstm.parameters()]

    def outcome(results: list) -> list[torch.Tensor]:
        loss = sum(out[mask].square().sum() + h.sum() + c.sum() for out, (h, c) in results)
        return [
            *(out[mask] for out, _ in results),
            *(h for _, (h, _) in results),
            *torch.autograd.grad(loss, parameters),
        ]

    parts = list(zip(lstms, xs, states, strict=True))
    ours = (
        [lstm.in_one_call(x, state, mask.sum(1)) for lstm, x, state in parts]
        if on_gpu
        else side_by_side(lstms, xs, states, mask)
    )
    for one, two in zip(
        outcome(ours), outcome([lstm.clipped(x, state, mask) for lstm, x, state in parts]), strict=True
    ):
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
        blocks = BidirectionalLM(stateful=False).rows(built, tokenizer, length=20, phase=phase, seed=0)
        rows = blocks(np.arange(len(blocks)))
        assert [word for row in rows for word in row[1:-1]] == expected[1 + phase : 1 + phase + 20 * len(rows)]
        assert all(row[-2:] == other[:2] for row, other in itertools.pairwise(rows))


def test_batches_predict_the_neighbors(world: tuple[TokenStore, Tokenizer]) -> None:
    tokenizer = world[1]
    batch = StepBatches(BidirectionalLM(stateful=False), *world, length=20, batch_size=8, seed=0)(1)
    ids, following = batch.inputs["input_ids"], batch.targets["forward"]
    assert torch.equal(ids[:, 1:], following.labels[:, :-1])
    assert torch.equal(ids[:, :-1], batch.targets["backward"].labels[:, 1:])
    assert len(batch.shared["characters"]) == len(batch.inputs["words"].unique())
    assert int(following.count) == 160
    unknown = (following.labels == 2).sum()
    assert 0 < unknown < 160
    assert float(following.spelling.sum()) > 3 * float(unknown) * tokenizer.spelling_nats.min()


def test_words_are_what_is_between_the_marks(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    assert elmo.encode(["", "\u200b\x00", "a"]).mask.sum(1).tolist() == [2, 2, 3]
    assert elmo.encode([[], ["a"]]).mask.sum(1).tolist() == [2, 3]
    assert elmo.encode([["soup", "soup"]]).words.tolist() == [[-1, 0, 1, -1]]  # type: ignore[union-attr]


def test_pairs_are_read_apart_and_compared(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    head = SentenceHead(elmo, outputs=3, options=options(pairs=True, pair="compared")).eval()
    firsts, seconds = ["The soup was good.", "a b"], ["Anna", "c d e"]
    pairs = list(zip(firsts, seconds, strict=True))
    u, v = (elmo.pooled(elmo.encode(texts)) for texts in (firsts, seconds))
    with torch.no_grad():
        batch = elmo.collate_for_head(elmo.tokenize(pairs))
        logits = head(elmo, batch, elmo(flatten_pairs(batch)))
        expected = head.classifier(torch.cat([u, v, (u - v).abs(), u * v], -1))
    assert (logits - expected).abs().max() < 1e-5


def test_too_long_a_pair_loses_the_end_of_its_longer_text(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    elmo.max_length = 12
    long = "a " * 20
    for pair in ((long, "b c d"), ("b c d", long)):
        [ids] = elmo.encode([pair]).input_ids
        [text] = elmo.texts_of(elmo.collate(elmo.tokenize([pair])))
        assert len(ids) == 12
        assert "b c d" in text
        assert text.count("a") == 12 - 4 - 3


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
    batch = StepBatches(BidirectionalLM(stateful=False), *world, length=20, batch_size=8, seed=0)(1)
    with torch.no_grad():
        losses, logits = BidirectionalLM()(elmo, batch), elmo.logits(elmo(batch.inputs | batch.shared).layers[-1])
    for side, name in enumerate(("forward", "backward")):
        expected = -logits[:, :, side].gather(-1, batch.targets[name].labels[..., None]).sum()
        assert float(losses[name].sum) == pytest.approx(float(expected), rel=1e-5)


def test_carried_blocks_equal_one_long_one(world: tuple[TokenStore, Tokenizer]) -> None:
    elmo = small(world[1])
    steps = StepBatches(BidirectionalLM(stateful=True), *world, length=20, batch_size=4, seed=0)
    batches = [steps(step) for step in range(3)]
    assert [batch.begins for batch in batches] == [True, False, False]
    assert steps(steps.steps).begins  # the next epoch, whose rows continue none
    assert not steps(1).begins
    blocks = steps.rows
    rows = [
        [word for step in range(3) for word in blocks(np.array([row * steps.steps + step]))[0][1:-1]]
        for row in range(4)
    ]
    with torch.no_grad():
        parts, state = [], None
        for batch in batches:
            encoded = elmo(batch.inputs | batch.shared, state)
            parts.append(encoded.layers[-1])
            state = encoded.state
        whole = elmo(collate_words(rows, world[1].outputs, max_characters=50)).layers[-1]
        alone = [elmo(batch.inputs | batch.shared).layers[-1] for batch in batches]
    assert (torch.cat(parts, 1)[..., :12] - whole[..., :12]).abs().max() < 1e-5
    # Backward the text before must not be known: it is what is asked for.
    assert (torch.cat(parts, 1)[..., 12:] - torch.cat(alone, 1)[..., 12:]).abs().max() < 1e-6


def test_bits_per_byte_charge_unknown_words(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Qwxyz was.\n")
    built = store.build(Source(files=[tmp_path / "text.txt"]), world[1], tmp_path / "stores")
    elmo, maker = small(world[1]), BidirectionalLM(stateful=False)
    windows = maker.rows(built, world[1], length=8, phase=0, seed=0)
    assert windows.total == 3 + 2
    batch = maker.batch(windows, np.array([0]), world[1], rng=np.random.default_rng(0))
    nats = world[1].spelling_nats
    assert float(batch.targets["backward"].spelling) == pytest.approx(sum(nats[list(b"Qwxyz")]) + nats[256])
    with torch.no_grad():
        losses = BidirectionalLM()(elmo, batch)
    figures = {f"{name}_loss": float(loss.sum / loss.count) for name, loss in losses.items()}
    figures |= {f"{name}_spelling": float(loss.spelling / loss.count) for name, loss in losses.items()}  # type: ignore[operator]
    report = BidirectionalLM().report(figures, per_byte=windows.predictions_per_byte)
    assert windows.predictions_per_byte == 5 / 11
    expected = (figures["backward_loss"] + figures["backward_spelling"]) * 5 / 11 / np.log(2)
    assert report["backward_bits_per_byte"] == pytest.approx(expected)
    assert report["backward_perplexity"] == pytest.approx(np.exp(figures["backward_loss"]))
