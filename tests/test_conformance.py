"""What every registered model must do, at toy size: a new one needs a line in `conformance.TOYS`, and nothing here."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

import pipeline
from pipeline.errors import UserError
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.options import Pair
from pipeline.models import registry
from pipeline.models.base import Encoder
from pipeline.models.inputs import flatten_pairs
from pipeline.models.outputs import Encoded
from pipeline.prompting import log_likelihoods
from tests.conformance import PRETRAINED, TOYS, TRAINED
from tests.test_tuned import options

MODELS = PRETRAINED
WORDS = ["The", "soup", "was", "good", ".", "Anna", "liked", "the", "bread"]
TEXTS = ["The soup was good.", "A robin", "Anna adored the strawberries, and so we were happy again!", "Zürich 日本 🙂"]

trained = pytest.mark.parametrize("model", TRAINED, indirect=True)  # of those that give vectors


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def toy(model: str, toys: Callable[[str], Path]) -> Path:
    """Its run folder."""
    return toys(model)


@pytest.fixture
def encoder(toy: Path) -> Encoder:
    return pipeline.encoders.load(toy / "encoder")


@pytest.fixture
def fresh(encoder: Encoder) -> Encoder:
    """With random weights that are far from 0: small ones may hide that something is computed wrongly."""
    torch.manual_seed(0)
    for parameter in encoder.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return encoder


def test_every_registered_model_has_a_toy() -> None:
    for name in registry.names():
        assert name in TOYS, f"{name} is registered, but has no line in tests/conformance.py: no claim is tested on it"
        assert TOYS[name].counts == (registry.encoder_class(name).learning == "counting")


# ---------------------------------------------------------------------- what it says of itself


def test_fine_tuning_may_set_its_dropout(fresh: Encoder) -> None:
    """Where it records a rate, its vectors are drawn: else a dropout of another kind would stay as it is."""
    fresh.set_dropout(0.5)
    if not [name for name, value in fresh.config.items() if "drop" in name and value == 0.5]:
        pytest.skip("it has no dropout")
    fresh.train()
    batch = fresh.collate(fresh.tokenize(["The soup was good."]))
    one, other = (fresh(batch).layers[-1] for _ in range(2))
    assert not torch.equal(one, other)


def test_it_says_what_it_can_do(encoder: Encoder, model: str) -> None:
    assert registry.encoder_class(encoder.config["model_type"]) is type(encoder)
    assert registry.family(encoder.config["model_type"]) == model
    assert encoder.scoring in ("causal", "masked", "bidirectional", "seq2seq")
    assert encoder.context
    assert set(encoder.context) <= {"left", "right", "full"}
    assert encoder.size % len(encoder.context) == 0


def test_its_special_tokens_are_as_many_as_it_says(encoder: Encoder) -> None:
    [text] = encoder.tokenize(["The soup was good."])
    assert int(encoder.encode(["The soup was good."]).mask.sum()) == len(text) + encoder.special.count()
    [pair] = encoder.tokenize([("The soup", "was good.")])
    batch = encoder.collate_for_head([pair])
    special = encoder.special.count(2) if encoder.joint_pairs else 2 * encoder.special.count()
    assert int(batch["mask"].sum()) == len(pair[0]) + len(pair[1]) + special


# ---------------------------------------------------------------------- what its outputs depend on


def real(encoded: Encoded, row: int) -> list[Tensor]:
    """The layers of one text, without padding."""
    return [layer[row][encoded.mask[row]] for layer in encoded.layers]


@trained
def test_neither_padding_nor_company_nor_order_matters(fresh: Encoder) -> None:
    texts = [*TEXTS, ("One text", "and another one")] if fresh.joint_pairs else TEXTS
    together, turned = fresh.encode(texts), fresh.encode(texts[::-1], batch_size=2)
    for row, text in enumerate(texts):
        alone = fresh.encode([text])
        for here, there, single in zip(real(together, row), real(turned, -1 - row), real(alone, 0), strict=True):
            torch.testing.assert_close(here, single, rtol=0, atol=1e-5)
            torch.testing.assert_close(there, single, rtol=0, atol=1e-5)
        torch.testing.assert_close(fresh.pooled(together)[row], fresh.pooled(alone)[0], rtol=0, atol=1e-5)


@trained
def test_the_top_layer_at_some_positions_is_that_of_all(fresh: Encoder) -> None:
    batch = fresh.collate(fresh.tokenize(TEXTS))
    pooled = fresh.pooled_positions(batch["mask"])
    assert (pooled is None) == ("top_positions" not in fresh.offers)
    if pooled is None:
        assert fresh.asked(batch, torch.tensor([0])) is batch
        return
    asked = torch.cat([pooled, torch.tensor([i for i in (3, 1, 8) if i not in pooled.tolist()])])
    gradients, tops = [], []
    for inputs in (batch, fresh.asked(batch, asked)):
        fresh.zero_grad()
        encoded = fresh(inputs)
        (encoded.layers[-1].flatten(0, 1)[asked].square().sum() + fresh.pooled(encoded).sum()).backward()
        tops.append(encoded.layers[-1].flatten(0, 1))
        gradients.append({name: p.grad.clone() for name, p in fresh.named_parameters() if p.grad is not None})
    torch.testing.assert_close(tops[1][asked], tops[0][asked], rtol=0, atol=1e-5)
    others = torch.ones(len(tops[1]), dtype=torch.bool)
    others[asked] = False
    assert tops[1][others].isnan().all()
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-4, msg=name)


def changed_words(encoder: Encoder) -> tuple[list[str], int]:
    """`WORDS` with another word in the middle that has as many pieces, and its number."""
    middle = len(WORDS) // 2
    sizes = [len(pieces) for pieces in encoder.word_pieces(WORDS)]
    for word in WORDS:
        changed = [*WORDS[:middle], word, *WORDS[middle + 1 :]]
        if word != WORDS[middle] and [len(pieces) for pieces in encoder.word_pieces(changed)] == sizes:
            return changed, middle
    raise AssertionError("no other word has as many pieces")


def sides(out: Encoded, word: int) -> tuple[Tensor, Tensor, Tensor]:
    """(T,) masks of one row: what is before a word, at it, and after it."""
    assert out.words is not None
    at = out.words[0] == word
    place = int(at.nonzero()[0])
    before = torch.arange(len(at)) < place
    return before, at, ~before & ~at


def within(encoder: Encoder, side: Tensor, at: Tensor) -> Tensor:
    """(T,): the positions on one side of a word that are not beyond the encoder's reach."""
    place = torch.arange(len(at))
    low, high = int(place[at].min()), int(place[at].max())
    reach = len(at) if encoder.reach is None else encoder.reach
    return side & (place > low - reach) & (place < high + reach)


def features(encoder: Encoder) -> list[tuple[str, slice]]:
    """Which features see which side."""
    width = encoder.size // len(encoder.context)
    return [(side, slice(i * width, (i + 1) * width)) for i, side in enumerate(encoder.context)]


def test_no_output_changes_with_what_it_may_not_see(fresh: Encoder) -> None:
    changed, word = changed_words(fresh)
    one, two = fresh.encode([WORDS]), fresh.encode([changed])
    before, at, after = sides(one, word)
    for side, part in features(fresh):
        moved = (one.layers[-1] - two.layers[-1])[0, :, part].abs().amax(-1)
        near_before, near_after = within(fresh, before, at), within(fresh, after, at)
        assert moved[at].min() > 0
        unseen = "a model that sees only so many tokens defines `reach`"
        assert (moved[near_before] > 0).all() == (side != "left"), unseen
        assert (moved[near_after] > 0).all() == (side != "right"), unseen
        hidden = {"left": before, "right": after, "full": torch.zeros_like(at)}[side]
        assert (moved[hidden | before & ~near_before | after & ~near_after] == 0).all()


@trained
def test_no_gradient_reaches_what_may_not_be_seen(fresh: Encoder) -> None:
    if set(fresh.context) == {"full"}:
        pytest.skip("it may see everything")
    before, at, after = sides(fresh.encode([WORDS]), len(WORDS) // 2)
    batch, embed, inputs = fresh.collate(fresh.tokenize([WORDS])), fresh.embed, []

    def watched(*args: Any) -> Tensor:
        inputs.append(embed(*args).detach().requires_grad_())
        return inputs[-1]

    fresh.embed = watched  # type: ignore[assignment]
    for side, part in features(fresh):
        fresh(batch).layers[-1][0, at, part].square().sum().backward()
        gradient = inputs[-1].grad[0].abs().amax(-1)
        near_before, near_after = within(fresh, before, at), within(fresh, after, at)
        assert gradient[at].min() > 0
        assert (gradient[near_before] > 0).all() == (side != "right")
        assert (gradient[near_after] > 0).all() == (side != "left")
        hidden = {"left": after, "right": before, "full": torch.zeros_like(at)}[side]
        assert (gradient[hidden | before & ~near_before | after & ~near_after] == 0).all()


# ---------------------------------------------------------------------- encode


@trained
def test_encode_gives_layers_mask_and_ids(encoder: Encoder) -> None:
    out = encoder.encode(TEXTS)
    rows, length = out.mask.shape
    assert (rows, out.mask.dtype, out.logits) == (len(TEXTS), torch.bool, None)
    assert out.input_ids.shape == (rows, length)
    assert len(out.layers) > 1
    assert {layer.shape for layer in out.layers} == {(rows, length, encoder.size)}
    assert not any(layer.requires_grad for layer in out.layers)
    assert not encoder.training
    assert all(torch.isfinite(layer).all() for layer in out.layers)


def test_encode_gives_logits_when_asked(encoder: Encoder) -> None:
    if encoder.scoring == "seq2seq":
        with pytest.raises(UserError, match="probabilities of a target, none of the tokens of its source"):
            encoder.encode(TEXTS, logits=True)
        return
    out = encoder.encode(TEXTS, logits=True)
    assert out.logits is not None
    directions = (2,) if encoder.scoring == "bidirectional" else ()
    assert out.logits.shape[:-1] == (*out.mask.shape, *directions)
    torch.testing.assert_close(encoder.logits(out.layers[-1])[out.mask], out.logits[out.mask])


@trained
def test_encode_aligns_words(encoder: Encoder) -> None:
    out = encoder.encode([WORDS, ["One"]])
    assert out.words is not None
    assert sorted(set(out.words[0].tolist())) == [*([-1] if (out.words[0] < 0).any() else []), *range(len(WORDS))]
    assert (out.words[~out.mask] == -1).all()
    for number, pieces in enumerate(encoder.word_pieces(WORDS)):
        inside = out.words[0] == number
        assert int(inside.sum()) == len(encoder.collate([pieces])["mask"][0]) - encoder.special.count()
    first, there = out.by_word(out.layers[-1], how="first")
    mean, _ = out.by_word(out.layers[-1], how="mean")
    assert there.tolist() == [[True] * len(WORDS), [True] + [False] * (len(WORDS) - 1)]
    for number in range(len(WORDS)):
        inside = out.layers[-1][0][out.words[0] == number]
        torch.testing.assert_close(first[0, number], inside[0])
        torch.testing.assert_close(mean[0, number], inside.mean(0))


def test_encode_cuts_what_is_too_long(encoder: Encoder) -> None:
    long = "good soup " * encoder.max_length
    for text in (long, long.split(), *([(long, "soup"), ("soup", long), (long, long)] if encoder.joint_pairs else [])):
        assert int(encoder.encode([text]).mask.sum()) == encoder.max_length


@pytest.mark.parametrize("texts", [[], "a text alone", [3], [None]])
def test_encode_refuses_what_is_no_list_of_texts(encoder: Encoder, texts: Any) -> None:
    with pytest.raises(UserError):
        encoder.encode(texts)


def test_empty_texts_have_their_special_tokens(encoder: Encoder) -> None:
    assert encoder.encode(["", "a"]).mask[0].sum() == max(encoder.special.count(), 1)


# ---------------------------------------------------------------------- its folder


def test_a_saved_folder_gives_the_same_outputs(fresh: Encoder, tmp_path: Path) -> None:
    fresh.save(tmp_path / "one")
    again, report = registry.load_with_report(tmp_path / "one")
    assert not report.new
    assert not report.unused
    for one, two in zip(fresh.encode(TEXTS).layers, again.encode(TEXTS).layers, strict=True):
        assert torch.equal(one, two)
    again.save(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name


def test_a_folder_holds_nothing_that_runs(toy: Path) -> None:
    files = {file.name for file in (toy / "encoder").iterdir()}
    needed = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert needed <= files <= needed | {"SHA256SUMS", "lineage.json", "curves.png"}  # the card shows the curves


@trained
def test_the_saved_encoder_is_the_trained_one(toy: Path, encoder: Encoder) -> None:
    state = torch.load(toy / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for name, value in encoder.state_dict().items():
        assert torch.equal(state[f"encoder.{name}"], value), name


# ---------------------------------------------------------------------- its pairs of texts


@trained
@pytest.mark.parametrize("pair", get_args(Pair))
def test_pairs_are_read_in_each_way(fresh: Encoder, pair: Pair, tmp_path: Path) -> None:
    if pair == "joined" and not (fresh.joint_pairs or fresh.special.between):
        with pytest.raises(UserError, match="has no token to stand between"):
            fresh.join_pairs(True)
        return
    model = FineTunedModel(fresh, labels=["score"], options=options(name="regression", pairs=True, pair=pair)).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    pairs = [("The soup was good.", "A robin"), ("Anna", "good and hot " * 30), ("", "soup")]
    found = [answer["score"] for answer in model.predict(pairs)]
    alone = [model.predict([each])[0]["score"] for each in pairs]
    assert alone == pytest.approx(found, rel=1e-4, abs=1e-4)  # whatever the padding
    batch = fresh.collate_for_head([feature.ids for feature in model.features(pairs)])
    rows = flatten_pairs(batch)
    by_side, at_once = model.head.encoded(fresh, batch).layers[-1], fresh(rows).layers[-1]
    assert torch.allclose(by_side[rows["mask"]], at_once[rows["mask"]], atol=1e-5)
    turned = [answer["score"] for answer in model.predict([(b, a) for a, b in pairs])]
    assert turned != pytest.approx(found, rel=1e-3)
    model.save(tmp_path / "model")
    again = pipeline.load(tmp_path / "model")
    assert again.predict(pairs) == model.predict(pairs)
    assert again.options.pair == pair
    assert (again.layout is not None) == (pair == "joined" and "sentence" in fresh.hf_heads)


# ---------------------------------------------------------------------- its probabilities

PAIRS = [
    ("The soup was", " good."),
    ("The soup was", " good and hot."),
    ("", "A robin is a bird."),
    ("Anna", " adored it"),
]


def test_scores_are_log_likelihoods(encoder: Encoder) -> None:
    found = log_likelihoods(encoder, PAIRS)
    assert all(math.isfinite(nats) and nats < 0 for nats in found)


def test_scores_depend_on_neither_company_nor_order(encoder: Encoder) -> None:
    found = log_likelihoods(encoder, PAIRS)
    assert log_likelihoods(encoder, PAIRS[::-1])[::-1] == pytest.approx(found, abs=1e-4)
    assert [log_likelihoods(encoder, [pair])[0] for pair in PAIRS] == pytest.approx(found, abs=1e-4)


def test_a_score_is_the_sum_of_those_of_its_parts(encoder: Encoder) -> None:
    """Of what reads from the left, and so of one direction of what reads both ways."""
    if encoder.scoring in ("masked", "seq2seq"):
        pytest.skip("a pseudo-log-likelihood has no chain rule, nor have targets of different sources")
    parts = [("The soup was", " good"), ("The soup was good", " and"), ("The soup was good and", " hot")]
    whole = log_likelihoods(encoder, [("The soup was", " good and hot")], both_ways=False)[0]
    assert sum(log_likelihoods(encoder, parts, both_ways=False)) == pytest.approx(whole, abs=1e-4)


def test_it_generates_what_it_finds_likely(encoder: Encoder) -> None:
    if encoder.scoring != "causal":
        pytest.skip("generation needs a left-to-right model")
    [prompt] = encoder.tokenize(["The soup"])
    options: dict[str, Any] = {"tokens": 12, "top_k": 0, "top_p": 1.0}
    greedy = encoder.generate(prompt, temperature=0.0, seed=0, **options)  # type: ignore[operator]
    ids = list(prompt)
    for token in greedy:
        with torch.no_grad():
            batch = {"input_ids": torch.tensor([ids]), "mask": torch.ones(1, len(ids), dtype=torch.bool)}
            logits = encoder.logits(encoder(batch).layers[-1])
        assert int(logits[0, -1].argmax()) == token
        ids.append(token)
    drawn = [encoder.generate(prompt, temperature=1.0, seed=seed, **options) for seed in (1, 1, 2)]  # type: ignore[operator]
    assert drawn[0] == drawn[1] != drawn[2]
    room = encoder.max_length - len(prompt)
    assert len(encoder.generate(prompt, temperature=0.0, seed=0, **{**options, "tokens": 999})) <= room  # type: ignore[operator]
