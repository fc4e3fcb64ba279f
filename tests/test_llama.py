"""Llama equals Hugging Face's in both directions: rotations, shared keys, the output matrix, the cache."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, LlamaModel

import pipeline
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.errors import UserError
from pipeline.models.gpt import Gpt
from pipeline.models.llama import Llama, rotate
from pipeline.models.ngram import Ngram
from pipeline.objectives.causal_lm import CausalLM
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.training.blocks import CompiledBlocks, RecomputedBlocks

KINDS: dict[str, dict[str, Any]] = {
    "default": {},
    "grouped": {"key_value_heads": 2},
    "one key": {"key_value_heads": 1, "rope_theta": 500_000.0},
    "untied": {"tied": False, "norm_eps": 1e-6, "vocab_size": 420},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("text")
    sample.write_corpus(folder, documents_count=100, seed=0)
    return ByteBpe.train((folder / "train.txt").open(), vocab_size=400)


def small(tokenizer: Tokenizer, **options: Any) -> Llama:
    settings = {"size": 32, "layers": 2, "heads": 4, "inner_size": 88, "max_length": 40}
    torch.manual_seed(0)
    llama = Llama(tokenizer, **{**settings, "dropout": 0.1, "attention_dropout": 0.1, **options})
    for parameter in llama.parameters():  # norms away from 1, and attention away from even
        parameter.data += 0.2 * torch.randn_like(parameter)
    return llama.eval()


def batch_of(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}


def same_outputs(ours: Llama, model: transformers.PreTrainedModel) -> None:
    ids = torch.randint(0, len(ours.tokenizer), (3, 20))
    with torch.no_grad():
        expected = model(input_ids=ids, output_hidden_states=True)
        out = ours(batch_of(ids))
        for layer, hidden in zip(out.layers, expected.hidden_states, strict=True):
            assert (layer - hidden).abs().max() < 1e-4
        assert (ours.logits(out.layers[-1]) - expected.logits).abs().max() < 1e-4
        assert out.layers[-1].std() > 0.3  # not all alike


@pytest.mark.parametrize("kind", KINDS)
def test_our_folder_opens_in_transformers(tokenizer: Tokenizer, tmp_path: Path, kind: str) -> None:
    ours = small(tokenizer, **KINDS[kind])
    ours.save(tmp_path)
    model, info = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    same_outputs(ours, model.eval())
    again = pipeline.encoders.load(tmp_path)
    assert isinstance(again, Llama)
    assert again.config == ours.config
    same_outputs(again, model)
    other = AutoTokenizer.from_pretrained(tmp_path)
    assert other("The soup was good.")["input_ids"] == tokenizer.encode_batch(["The soup was good."])[0]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [LlamaForCausalLM, LlamaModel])
def test_their_folder_opens_here(tokenizer: Tokenizer, tmp_path: Path, kind: type, tied: bool) -> None:
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 5,
        hidden_size=32,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=40,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5_000.0},
        bos_token_id=1,
        eos_token_id=0,
    )
    torch.manual_seed(1)
    model = kind(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=40)
    ours, report = pipeline.encoders.load_with_report(tmp_path)
    assert isinstance(ours, Llama)
    assert report.new == ([] if tied or kind is LlamaForCausalLM else ["lm_head.weight"])
    assert not report.unused
    if kind is LlamaForCausalLM:
        same_outputs(ours, model)


def test_configurations_of_transformers_4_open(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ours = small(tokenizer, rope_theta=300.0)
    ours.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"rope_scaling": None}
    del config["rope_parameters"], config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert pipeline.encoders.load(tmp_path).rope_theta == 300.0
    same_outputs(ours, LlamaForCausalLM.from_pretrained(tmp_path).eval())


def test_rotations_are_those_of_complex_numbers(tokenizer: Tokenizer) -> None:
    """Su et al. 2021, equation 12: feature pairs as complex numbers, times exp(i m theta_j)."""
    llama = small(tokenizer)
    x, positions = torch.randn(2, 4, 7, 8), torch.arange(3, 10)
    numbers = torch.complex(x[..., :4], x[..., 4:])
    thetas = 10_000.0 ** (-torch.arange(4) / 4)
    turned = numbers * torch.exp(1j * positions[:, None] * thetas)
    expected = torch.cat([turned.real, turned.imag], -1)
    assert (rotate(x, llama.rotation(positions)) - expected).abs().max() < 1e-5


def test_only_distances_count(tokenizer: Tokenizer) -> None:
    llama = small(tokenizer)
    ids = torch.randint(1, 300, (2, 12))
    with torch.no_grad():
        here = llama(batch_of(ids)).layers[-1]
        there = llama({**batch_of(ids), "positions": torch.arange(17, 29).expand(2, -1)}).layers[-1]
        apart = llama({**batch_of(ids), "positions": 2 * torch.arange(12).expand(2, -1)}).layers[-1]
    assert (here - there).abs().max() < 1e-4
    assert (here - apart).abs().max() > 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_the_cache_changes_nothing(tokenizer: Tokenizer, kind: str) -> None:
    llama = small(tokenizer, **KINDS[kind])
    ids = torch.randint(1, 300, (2, 30))
    past = llama.new_state()
    with torch.no_grad():
        full = llama(batch_of(ids)).layers[-1]
        parts = [llama(batch_of(part), past).layers[-1] for part in ids.split([7, 1, 1, 21], 1)]
    assert (torch.cat(parts, 1) - full).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["default", "grouped"])
@pytest.mark.parametrize("beam", [1, 3])
def test_generation_equals_transformers(tokenizer: Tokenizer, tmp_path: Path, kind: str, beam: int) -> None:
    llama = small(tokenizer, **KINDS[kind])
    llama.save(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    prompt = tokenizer.encode_batch(["The soup"])[0]
    ours = llama.generate(prompt, tokens=20, temperature=0.0, top_k=0, top_p=1.0, seed=0, beam=beam)
    mask = torch.ones(1, len(prompt), dtype=torch.long)
    theirs = model.generate(
        torch.tensor([prompt]), attention_mask=mask, max_new_tokens=20, do_sample=False, num_beams=beam, pad_token_id=0
    )
    assert ours == [token for token in theirs[0, len(prompt) :].tolist() if token != tokenizer.id("eos")]
    assert len(ours) > 5


@pytest.mark.parametrize(
    ("callback", "dropout"),
    [(RecomputedBlocks(), 0.3), (CompiledBlocks(backend="aot_eager"), 0.0)],
    ids=["recomputed", "compiled"],
)
def test_blocks_computed_otherwise_have_the_same_gradients(tokenizer: Tokenizer, callback: Any, dropout: float) -> None:
    llama = small(tokenizer, key_value_heads=2, dropout=dropout, attention_dropout=dropout).train()
    ids = torch.randint(1, 300, (2, 12))
    asked = {**batch_of(ids), "top_positions": torch.tensor([3, 17, 23])}
    results = []
    for changed in (False, True):
        if changed:
            callback.on_train_start(None, SimpleNamespace(trained=llama))
            callback.on_train_batch_end(None, SimpleNamespace(trained=llama), None, None, 0)
        torch.manual_seed(1)
        top = llama(asked).layers[-1].flatten(0, 1)[asked["top_positions"]]
        loss = llama.token_loss(top, ids.flatten()[asked["top_positions"]]).sum
        results.append([loss.detach(), *torch.autograd.grad(loss, list(llama.parameters()))])
    callback.on_train_end(None, SimpleNamespace(trained=llama))
    for plain, other in zip(*results, strict=True):
        torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-4)


def test_a_classifier_opens_in_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    layout = small(tokenizer, tied=False).hf_heads["sentence"]
    assert layout.architecture == "LlamaForSequenceClassification"
    ours = small(tokenizer)
    ours.save(tmp_path)
    model, info = LlamaForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {f"{layout.name}.weight"}
    text = ours.encode(["The soup was good."])
    with torch.no_grad():
        expected = model.eval()(input_ids=text.input_ids).logits
        assert (model.score(ours.pooled(text)) - expected).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "must be a multiple of the number of heads"),
        ({"heads": 32}, "heads of an even size"),
        ({"key_value_heads": 3}, "must be a multiple of key_value_heads"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tokenizer: Tokenizer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(tokenizer, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"head_dim": 16}, "head_dim = 16"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_type = 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
        ({"rope_parameters": {"rope_theta": 0.0}}, "rope_theta is 0.0"),
        ({"rms_norm_eps": -1.0}, "norm_eps is -1.0"),
        ({"intermediate_size": 99}, "has shape"),
        ({"num_key_value_heads": 2}, "has shape"),
        ({"vocab_size": 10}, "do not belong together"),
    ],
)
def test_folders_that_are_not_supported_are_refused(
    tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    small(tokenizer).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=message):
        pipeline.encoders.load(tmp_path)


def test_a_text_begins_with_the_token_that_the_folder_names(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As in Llama 3: another token than the end of text, which the tokenizer itself puts in front."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<|begin|>"])
    begin = backend.token_to_id("<|begin|>")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", begin)]
    )
    llama = small(ByteBpe(backend, {**tokenizer.special, "bos": "<|begin|>"}))
    llama.save(tmp_path)
    opened = pipeline.encoders.load(tmp_path)
    text = "The soup was good."
    [ids] = opened.tokenize([text])
    batch = opened.collate([ids])
    theirs = AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"]
    assert batch["input_ids"][0].tolist() == [*theirs, tokenizer.id("eos")]
    assert theirs[0] == begin == json.loads((tmp_path / "config.json").read_text())["bos_token_id"]
    [nats] = pipeline.prompting.log_likelihoods(opened, [("", text)])
    with torch.no_grad():
        logits = LlamaForCausalLM.from_pretrained(tmp_path).eval()(torch.tensor([theirs])).logits[0]
    expected = logits[:-1].log_softmax(-1).gather(-1, torch.tensor(theirs[1:])[:, None]).sum()
    assert nats == pytest.approx(float(expected), abs=1e-3)


def test_pretraining_shows_both_ends_of_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("One here.\n\nTwo.\n\nThree and four.\n")
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<|begin|>"])
    other = ByteBpe(backend, {**tokenizer.special, "bos": "<|begin|>"})
    built = store.build(Source(files=[tmp_path / "text.txt"]), other, tmp_path / "stores")
    ends = [other.id("eos"), other.id("bos")]
    texts = other.encode_batch(["One here.", "Two.", "Three and four."])
    expected = [token for text in texts for token in [*ends, *text]]
    rows = CausalLM().rows(built, other, length=7, phase=0, seed=0)
    ids, documents = rows(np.arange(len(rows)))
    assert ids[:, :-1].flatten().tolist() == expected[: ids[:, :-1].size]
    assert len(expected) - ids[:, :-1].size < 7
    numbers = documents[:, :-1].flatten().tolist()
    assert numbers == sorted(numbers)
    assert set(numbers) == {0, 1, 2}
    assert rows.predictions_per_byte == len(expected) / built.raw_bytes


def test_every_causal_model_begins_a_text_as_in_pretraining(tokenizer: Tokenizer) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["<|begin|>"])
    other = ByteBpe(backend, {**tokenizer.special, "bos": "<|begin|>"})
    sizes = {"size": 16, "layers": 1, "max_length": 24, "dropout": 0.0}
    gpt = Gpt(other, **sizes, heads=2, inner_size=32, attention_dropout=0.0)  # type: ignore[arg-type]
    assert gpt.config["bos_token_id"] == other.id("bos")
    [ids] = gpt.tokenize(["The soup."])
    assert gpt.collate([ids])["input_ids"][0].tolist() == [other.id("bos"), *ids, other.id("eos")]
    with pytest.raises(UserError, match="one token for the beginning and the end"):
        Ngram(other, order=2, smoothing="add-k", k=1.0, discount=None, max_length=24)


def test_tokenizers_of_sentencepiece_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    small(tokenizer).save(tmp_path)
    characters = {"<unk>": 0, "\u2581": 1, "a": 2}
    for model in (
        tokenizers.models.BPE(characters, [], unk_token="<unk>", byte_fallback=True),
        tokenizers.models.BPE(characters, [], unk_token="<unk>"),
        tokenizers.models.Unigram([("<unk>", 0.0), ("\u2581a", -1.0)], unk_id=0),
    ):
        tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(UserError, match=r"tokenizer\.json is a tokenizer of sentencepiece"):
            pipeline.encoders.load(tmp_path)
