"""GPT equals Hugging Face's GPT-2 and first GPT, in both directions; blocks, cache and chunked loss."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, OpenAIGPTLMHeadModel

import pipeline
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.generation import Search, choose, search
from pipeline.models.gpt import Gpt
from pipeline.models.losses import linear_cross_entropy
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe

DIFFICULT = [
    "A short one.",
    "café Ünïcödé",
    "🙂👩‍👩‍👧",
    "日本語のテキスト",
    "many     spaces \t and\n\nlines ",
    "",
    "don't we'll 3.14",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStore, Tokenizer]:
    folder = tmp_path_factory.mktemp("world")
    sample.write_corpus(folder, documents_count=100, seed=0)
    tokenizer = ByteBpe.train((folder / "train.txt").open(), vocab_size=400)
    return store.build(Source(files=[folder / "train.txt"]), tokenizer, folder / "stores"), tokenizer


def small(tokenizer: Tokenizer, **options: object) -> Gpt:
    settings = {"size": 32, "layers": 2, "heads": 4, "inner_size": 128, "max_length": 40}
    settings |= {"dropout": 0.1, "attention_dropout": 0.1, **options}
    torch.manual_seed(0)
    gpt = Gpt(tokenizer, **settings)  # type: ignore[arg-type]
    for parameter in gpt.parameters():  # biases and norms away from 0 and 1, or nothing would test them
        parameter.data += 0.05 * torch.randn_like(parameter)
    return gpt.eval()


def same_outputs(ours: Gpt, model: transformers.PreTrainedModel) -> None:
    ids = torch.randint(0, len(ours.tokenizer), (3, 20))
    with torch.no_grad():
        expected = model(input_ids=ids, output_hidden_states=True)
        out = ours({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)})
        for layer, hidden in zip(out.layers, expected.hidden_states, strict=True):
            assert (layer - hidden).abs().max() < 1e-4
        assert (ours.logits(out.layers[-1]) - expected.logits).abs().max() < 1e-4


@pytest.mark.parametrize(("norm", "activation"), [("pre", "gelu"), ("pre", "relu2"), ("post", "gelu")])
def test_our_folder_opens_in_transformers(
    world: tuple[TokenStore, Tokenizer], tmp_path: Path, norm: str, activation: str
) -> None:
    ours = small(world[1], norm=norm, activation=activation)
    ours.save(tmp_path)
    kind = GPT2LMHeadModel if norm == "pre" else OpenAIGPTLMHeadModel
    model, info = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    same_outputs(ours, model.eval())
    again = pipeline.encoders.load(tmp_path)
    assert isinstance(again, Gpt)
    same_outputs(again, model)


@pytest.mark.parametrize("kind", [GPT2LMHeadModel, transformers.GPT2Model])
def test_their_folder_opens_here(world: tuple[TokenStore, Tokenizer], tmp_path: Path, kind: type) -> None:
    tokenizer = world[1]
    config = GPT2Config(vocab_size=len(tokenizer) + 5, n_positions=40, n_embd=32, n_layer=2, n_head=4)
    torch.manual_seed(1)
    model = kind(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=40)
    ours, report = pipeline.encoders.load_with_report(tmp_path)
    assert not report.new
    assert not report.unused
    assert isinstance(ours, Gpt)
    if kind is GPT2LMHeadModel:
        same_outputs(ours, model)


def test_tokenizers_agree_and_lose_nothing(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    tokenizer = world[1]
    small(tokenizer).save(tmp_path)
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert len(other) == len(tokenizer)
    assert other.model_max_length == 40
    for text, ids in zip(DIFFICULT, tokenizer.encode_batch(DIFFICULT), strict=True):
        assert other(text)["input_ids"] == ids
        assert tokenizer.decode(ids) == other.decode(ids) == text


def test_the_store_gives_back_the_text(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("One here. Two there.\nA new line 日本.\n\nAnother document.\n")
    built = store.build(Source(files=[tmp_path / "text.txt"]), world[1], tmp_path / "stores")
    starts = built.document_starts
    texts = [world[1].decode(built.tokens[a:b].tolist()) for a, b in itertools.pairwise(starts)]
    assert texts == ["One here. Two there. A new line 日本.", "Another document."]


def test_blocks_hold_every_token_once(world: tuple[TokenStore, Tokenizer]) -> None:
    built, tokenizer = world
    end = tokenizer.id("eos")
    maker = CausalLM(packing="concat")
    expected: list[int] = []
    for a, b in zip(built.document_starts[:-1], built.document_starts[1:], strict=True):
        expected += [end, *built.tokens[a:b].tolist()]
    for phase in (0, 37):
        blocks = maker.rows(built, tokenizer, length=24, phase=phase, seed=0)
        ids, documents = blocks(np.arange(len(blocks)))
        assert ids[:, :-1].flatten().tolist() == expected[phase % 24 :][: ids[:, :-1].size]
        assert (ids[:-1, -1] == ids[1:, 0]).all()
        assert (np.diff(documents[:, :-1].flatten()) >= 0).all()
        assert (documents[:, :-1] >= 0).all()
    assert len(expected) - ids[:, :-1].size < 48


def test_a_corpus_smaller_than_a_block(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("One here.\n\nTwo.\n")
    built = store.build(Source(files=[tmp_path / "text.txt"]), world[1], tmp_path / "stores")
    batch = StepBatches(CausalLM("concat"), built, world[1], length=64, batch_size=4, seed=0)(3)
    assert int(batch.mask.sum()) == len(built.tokens) + 2
    assert int(batch.targets["lm"].count) == len(built.tokens) + 1


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_documents_equal_one_per_row(world: tuple[TokenStore, Tokenizer], norm: str) -> None:
    gpt = small(world[1], norm=norm)
    batch = StepBatches(CausalLM("document"), *world, length=40, batch_size=16, seed=0)(0)
    several = 0
    with torch.no_grad():
        packed = gpt(batch.inputs).layers[-1]
        for row in range(16):
            documents = batch.inputs["documents"][row]
            for document in documents.unique():
                inside = documents == document
                ids = batch.inputs["input_ids"][row, inside][None]
                alone = gpt({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1]
                assert (packed[row, inside] - alone[0]).abs().max() < 1e-5
                several += not bool(inside.all())
    assert several > 4


def test_a_text_is_represented_by_its_last_token(world: tuple[TokenStore, Tokenizer]) -> None:
    gpt = small(world[1])
    alone = gpt.encode(["The soup was good."])
    assert torch.equal(gpt.pooled(alone)[0], alone.layers[-1][0, -1])


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_cache_changes_nothing(world: tuple[TokenStore, Tokenizer], norm: str) -> None:
    gpt = small(world[1], norm=norm)
    ids = torch.randint(1, 300, (2, 30))
    mask = torch.ones_like(ids, dtype=torch.bool)
    past = gpt.new_state()
    with torch.no_grad():
        full = gpt({"input_ids": ids, "mask": mask}).layers[-1]
        parts = [
            gpt({"input_ids": part, "mask": mask[:, : part.shape[1]]}, past) for part in ids.split([7, 1, 1, 21], 1)
        ]
    assert (torch.cat([part.layers[-1] for part in parts], 1) - full).abs().max() < 1e-5


def test_generation_equals_transformers(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    gpt = small(world[1])
    gpt.save(tmp_path)
    model = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    prompt = world[1].encode_batch(["The soup"])[0]
    options = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    ours = gpt.generate(prompt, tokens=20, **options)  # type: ignore[arg-type]
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :].tolist()
    assert ours == [token for token in theirs if token != world[1].id("eos")]
    drawn = [gpt.generate(prompt, tokens=20, **{**options, "temperature": 1.0, "seed": seed}) for seed in (1, 1, 2)]  # type: ignore[arg-type]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(gpt.generate(prompt, tokens=99, **options)) <= 40 - len(prompt)  # type: ignore[arg-type]


def test_generation_stops_at_the_end_of_text(world: tuple[TokenStore, Tokenizer]) -> None:
    gpt = small(world[1])
    end = world[1].id("eos")
    gpt.logits = lambda hidden: F.one_hot(torch.tensor(end), 400).float().expand(*hidden.shape[:-1], 400)  # type: ignore[method-assign]
    assert gpt.generate([5], tokens=9, temperature=0, top_k=0, top_p=1.0, seed=0) == []


def test_sampling_keeps_to_its_limits() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()

    def drawn(**options: float) -> set[int]:
        settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **options}
        generator = torch.Generator().manual_seed(0)
        return {choose(logits[None], Search(**settings), [generator])[0] for _ in range(300)}  # type: ignore[arg-type]

    assert drawn() == {0, 1, 2, 3}
    assert drawn(top_k=2) == {0, 1}
    assert drawn(top_p=0.7) == {0, 1}
    assert drawn(top_p=0.4) == drawn(temperature=0) == {0}


def test_without_limits_every_token_can_be_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[torch.Tensor] = []
    monkeypatch.setattr(torch, "multinomial", lambda p, *_, **__: shares.append(p) or torch.zeros(1, dtype=torch.long))
    logits = 3 * torch.randn(1, 250_000, generator=torch.Generator().manual_seed(0))
    choose(logits, Search(tokens=1, temperature=1.0), [torch.Generator()])
    assert (shares[0] > 0).all()


@pytest.mark.parametrize("penalty", [0.0, 1.0, 40.0, 50.0])
def test_a_larger_penalty_writes_longer_texts(penalty: float) -> None:
    """Of a model that may end after each token: the text with the best nats by its length to the penalty."""
    p_end, most = 0.4, 12

    def read(ids: torch.Tensor, new: int, state: Any) -> tuple[torch.Tensor, Any]:
        return torch.tensor([p_end, 1 - p_end]).log().expand(len(ids), 2), ids

    [text] = search(
        read, None, torch.tensor([[1]]), Search(tokens=most, beam=2, length_penalty=penalty), end=0, most=[most]
    )
    nats = [math.log(1 - p_end) * length + math.log(p_end) * (length < most) for length in range(most + 1)]
    scores = [nats[length] / min(most, length + 1) ** penalty for length in range(most + 1)]
    assert len(text) == int(np.argmax(scores))


@pytest.mark.parametrize("biased", [True, False])
def test_chunked_cross_entropy_equals_torch(biased: bool) -> None:
    torch.manual_seed(0)
    bias = torch.randn(50, dtype=torch.float64, requires_grad=True)
    hidden = torch.randn(2500, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(50, (2500,))
    ours = linear_cross_entropy(hidden, weight, labels, bias if biased else None)
    logits = hidden @ weight.t() + bias * biased
    theirs = F.cross_entropy(logits, labels, reduction="sum")
    assert float(ours.sum.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    assert int(ours.correct) == int((logits.argmax(-1) == labels).sum())
    wanted = (hidden, weight, bias) if biased else (hidden, weight)
    ours_grads = torch.autograd.grad(ours.sum * 0.3, wanted)
    for one, two in zip(ours_grads, torch.autograd.grad(theirs * 0.3, wanted), strict=True):
        assert (one - two).abs().max() < 1e-5 * two.abs().max()


def test_gradients_of_bf16_weights_are_added_up_in_float32() -> None:
    """Sharded weights are bf16 within a step; 32 chunks of rows add up to the gradient of each."""
    torch.manual_seed(0)
    hidden, labels = torch.randn(32768, 16), torch.randint(50, (32768,))
    weight = torch.randn(50, 16).bfloat16().requires_grad_()
    exact = weight.detach().float().requires_grad_()
    F.cross_entropy(hidden.bfloat16().float() @ exact.t(), labels, reduction="sum").backward()
    linear_cross_entropy(hidden.bfloat16(), weight, labels).sum.backward()
    assert exact.grad is not None
    assert weight.grad is not None
    assert (weight.grad - exact.grad).norm() < 0.004 * exact.grad.norm()


@pytest.mark.parametrize("gap", [-120.0, 0.0, 8.0, 13.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cross_entropy_of_sure_and_of_hopeless_predictions(gap: float, dtype: torch.dtype) -> None:
    """What autograd makes of the same logits in float32, though the softmax is kept in bf16."""
    torch.manual_seed(0)
    hidden = torch.randn(60, 16).to(dtype).float()
    weight, labels = torch.zeros(300, 16), torch.full((60,), 7)
    bias = (torch.randn(300).to(dtype).float() + gap * (torch.arange(300) == 7)).requires_grad_()
    logits = F.linear(hidden.to(dtype), weight.to(dtype), bias.to(dtype)).float().detach().requires_grad_()
    expected = F.cross_entropy(logits, labels, reduction="sum")
    (slope,) = torch.autograd.grad(expected, logits)
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        ours = linear_cross_entropy(hidden, weight, labels, bias)
    (ours_slope,) = torch.autograd.grad(ours.sum, bias)
    close = {"rel": 1e-4 if dtype == torch.float32 else 1e-2, "abs": 3e-5}
    assert float(ours.sum.detach()) == pytest.approx(float(expected.detach()), **close)
    assert float(ours_slope[7]) == pytest.approx(float(slope.sum(0)[7]), **close)
    assert int(ours.correct) == (60 if gap > 5 else 0)


def test_cross_entropy_in_bfloat16_is_close_and_finite() -> None:
    torch.manual_seed(0)
    hidden, weight, labels = torch.randn(700, 64), torch.randn(3000, 64), torch.randint(3000, (700,))
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, labels)
        hopeless = linear_cross_entropy(hidden * 1e3, weight, labels)
    theirs = F.cross_entropy(hidden @ weight.t(), labels, reduction="sum")
    assert float(ours.sum) == pytest.approx(float(theirs), rel=2e-3)
    assert bool(torch.isfinite(hopeless.sum))


def test_log_probs_are_those_of_transformers(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    gpt = small(world[1])
    gpt.save(tmp_path)
    batch = gpt.collate(gpt.tokenize(["The soup was good.", "A robin"]))
    with torch.no_grad():
        ours = gpt.log_probs(batch)
        logits = GPT2LMHeadModel.from_pretrained(tmp_path).eval()(input_ids=batch["input_ids"]).logits
    expected = logits[:, :-1].log_softmax(-1).gather(-1, batch["input_ids"][:, 1:, None])[..., 0]
    assert ((ours[:, 1:] - expected) * batch["mask"][:, 1:]).abs().max() < 1e-4
    assert (ours[~batch["mask"]] == 0).all()


def test_words_are_aligned_with_their_pieces(world: tuple[TokenStore, Tokenizer]) -> None:
    words = ["Anna", "adored", "strawberries", "!"]
    out = small(world[1]).encode([words, ["One"]])
    assert out.words is not None
    for i in range(4):
        pieces = out.input_ids[0][out.words[0] == i].tolist()
        assert world[1].decode(pieces).strip() == words[i]
    assert (out.words[0] == 2).sum() > 1  # a word of several pieces is among them
    assert (out.words[1] >= 0).sum() == len(world[1].encode_batch(["One"])[0])


def test_refusals(world: tuple[TokenStore, Tokenizer], tmp_path: Path) -> None:
    small(world[1]).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, message in (
        ({"activation_function": "relu"}, "activation_function"),
        ({"n_inner": 99}, "has shape"),
        ({"vocab_size": 10}, "do not belong together"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(UserError, match=message):
            pipeline.encoders.load(tmp_path)


def test_the_first_gpt_has_its_own_activation(world: tuple[TokenStore, Tokenizer]) -> None:
    with pytest.raises(UserError, match="the first GPT, whose activation is gelu, not relu2"):
        small(world[1], norm="post", activation="relu2")


@pytest.mark.parametrize("prompt", [[], "a text", [10**6], [-1], [5.0], None])
def test_a_prompt_is_tokens_of_the_model(world: tuple[TokenStore, Tokenizer], prompt: object) -> None:
    with pytest.raises(UserError, match="A prompt is a list of token ids, at least one, below"):
        small(world[1]).generate(prompt)  # type: ignore[arg-type]
