"""BERT equals Hugging Face's BERT, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import normalizers
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertForPreTraining, BertModel

import pipeline
from pipeline.errors import UserError
from pipeline.finetuning.features import cut_texts
from pipeline.models.bert import Bert
from pipeline.models.layers.attention import attention
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.transformer_block import Block
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.wordpiece import WordPiece
from tests.conftest import run

TEXTS = ["A short one.", "A rather longer sentence, with a comma and Zürich.", "Odd: ¿qué? 日本 🙂 !!"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return WordPiece.train([*TEXTS, "the quick brown fox"], vocab_size=120, lowercase=True)


def small(tokenizer: Tokenizer, **options: object) -> Bert:
    settings = {"size": 32, "layers": 2, "heads": 4, "inner_size": 48, "max_length": 40}
    settings |= {"dropout": 0.1, "attention_dropout": 0.1, **options}
    torch.manual_seed(0)
    bert = Bert(tokenizer, **settings)  # type: ignore[arg-type]
    for parameter in bert.parameters():  # biases and norms away from 0 and 1, or nothing would test them
        parameter.data += 0.05 * torch.randn_like(parameter)
    return bert.eval()


def theirs(kind: type, folder: Path) -> transformers.PreTrainedModel:
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def same_outputs(ours: Bert, model: transformers.PreTrainedModel, folder: Path) -> None:
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(**batch, output_hidden_states=True)
    out = ours.encode(TEXTS, logits=True)
    assert (out.input_ids == batch["input_ids"]).all()
    real = out.mask
    for layer, hidden in zip(out.layers, expected.hidden_states, strict=True):
        assert (layer - hidden)[real].abs().max() < 1e-4
    logits = expected.prediction_logits if "prediction_logits" in expected else expected.logits
    assert out.logits is not None
    assert (out.logits - logits)[real].abs().max() < 1e-4
    if "seq_relationship_logits" in expected:
        with torch.no_grad():
            assert (ours.next_sentence_logits(out) - expected.seq_relationship_logits).abs().max() < 1e-4


@pytest.mark.parametrize(("next_sentence", "kind"), [(True, BertForPreTraining), (False, BertForMaskedLM)])
@pytest.mark.parametrize("options", [{"initialization": "local"}, {"activation": "relu2"}], ids=str)
def test_our_folder_opens_in_transformers(
    tokenizer: Tokenizer, tmp_path: Path, next_sentence: bool, kind: type, options: dict[str, Any]
) -> None:
    ours = small(tokenizer, next_sentence=next_sentence, **options)
    ours.save(tmp_path / "encoder")
    same_outputs(ours, theirs(kind, tmp_path / "encoder"), tmp_path / "encoder")
    names = {path.name for path in (tmp_path / "encoder").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM])
def test_their_folder_opens_here(tokenizer: Tokenizer, tmp_path: Path, kind: type) -> None:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=130,  # more rows than tokens: allowed
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
    )
    model = kind(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=40)
    ours, report = pipeline.encoders.load_with_report(tmp_path)
    assert not report.new
    assert not report.unused
    same_outputs(ours, model, tmp_path)


def test_a_bare_bert_model_loads_with_an_honest_load_report(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    BertModel(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=512)
    report = pipeline.encoders.load_with_report(tmp_path)[1]
    assert {name.split(".")[0] for name in report.new} == {"cls"}
    assert not report.unused
    assert all(name.startswith("bert.") for name in report.loaded)


@pytest.mark.parametrize("max_length", [12, 13])
def test_pairs_are_cut_as_by_the_fast_tokenizer(tokenizer: Tokenizer, tmp_path: Path, max_length: int) -> None:
    ours = small(tokenizer, max_length=max_length)
    ours.save(tmp_path)
    oracle, words = AutoTokenizer.from_pretrained(tmp_path), ["the", "quick", "brown", "fox"]
    sizes = np.random.default_rng(0).integers(1, 16, (300, 2))
    pairs = [tuple(" ".join(words[i % 4] for i in range(size)) for size in row) for row in sizes.tolist()]
    expected = [oracle(*pair, truncation="longest_first", max_length=max_length)["input_ids"] for pair in pairs]
    batch = ours.collate(ours.tokenize(pairs))
    found = [row[mask].tolist() for row, mask in zip(batch["input_ids"], batch["mask"], strict=True)]
    assert found == expected
    cut = cut_texts(ours, pairs, max_length=max_length, cut="head")  # as a head reads them
    again = ours.collate([item.ids for item in cut])
    assert torch.equal(again["input_ids"], batch["input_ids"])


@pytest.mark.parametrize("lowercase", [True, False])
def test_tokenizers_agree(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = WordPiece.train(TEXTS * 2, vocab_size=200, lowercase=lowercase)
    bert = small(tokenizer)
    bert.save(tmp_path)
    other = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "", "   many    spaces  ", "UPPER lower ÀÉ", "\u200bzero\u00adwidth"]:
        expected = other(text)
        assert bert.collate(bert.tokenize([text]))["input_ids"][0].tolist() == expected["input_ids"]
    pair = other("one text", "another text")
    batch = bert.collate(bert.tokenize([("one text", "another text")]))
    assert batch["token_type_ids"][0].tolist() == pair["token_type_ids"]
    assert other.model_max_length == bert.max_length
    assert len(other) == len(tokenizer)


def test_long_texts_and_pairs_are_cut(tokenizer: Tokenizer) -> None:
    bert = small(tokenizer)
    long = "fox " * 100
    for text in (long, (long, "fox"), ("fox", long), (long, long)):
        out = bert.encode([text])
        assert out.mask.sum() == bert.max_length
        assert (out.input_ids == tokenizer.id("sep")).sum() == (2 if isinstance(text, tuple) else 1)


def test_attention_equals_torch(tokenizer: Tokenizer) -> None:
    q, k, v = torch.randn(3, 2, 4, 10, 8)
    bias = torch.zeros(2, 1, 1, 10)
    bias[1, ..., 7:] = -1e9
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    assert (attention(q, k, v, bias, Dropout(0.0)) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_equals_torch_encoder_layer(norm: str) -> None:
    block = Block(
        size=16, heads=4, inner_size=32, dropout=0.0, attention_dropout=0.0, eps=1e-5, norm=norm, activation="gelu"
    )
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=norm == "pre")
    layer.self_attn.in_proj_weight.data, layer.self_attn.in_proj_bias.data = block.qkv.weight.data, block.qkv.bias.data
    pairs = [(layer.self_attn.out_proj, block.out), (layer.linear1, block.up), (layer.linear2, block.down)]
    for there, here in pairs:
        there.load_state_dict(here.state_dict())
    x = torch.randn(2, 7, 16)
    assert (layer(x) - block(x, None)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_has_its_rate_and_keeps_the_mean(p: float, dtype: torch.dtype) -> None:
    dropout, x = Dropout(p).train(), torch.ones(1003, 997, dtype=dtype)
    torch.manual_seed(0)
    out = dropout(x)
    torch.manual_seed(0)
    assert (dropout(x) == out).all()  # torch's seed decides
    assert (dropout(x) != out).any()
    dropped = float((out == 0).double().mean())
    assert abs(dropped - p) < 5 * np.sqrt(p * (1 - p) / x.numel())
    # Each of the four lanes of a 64-bit draw is unbiased.
    for lane in range(4):
        share = float((out.flatten()[lane::4] == 0).double().mean())
        assert abs(share - p) < 5 * np.sqrt(p * (1 - p) / (x.numel() / 4))
    assert float(out.max()) == pytest.approx(1 / (1 - p), rel=2**-8 if dtype == torch.bfloat16 else 1e-6)
    assert (dropout.eval()(x) == x).all()


def test_blocks_without_effect_at_the_start(tokenizer: Tokenizer) -> None:
    """Each is its norms alone: the layers of a text are those of its embedding."""
    settings = {"size": 32, "layers": 2, "heads": 4, "inner_size": 48, "max_length": 40, "dropout": 0.0}
    for options in ({}, {"zero_outputs": True}):
        bert = Bert(tokenizer, **settings, **options, attention_dropout=0.0)  # type: ignore[arg-type]
        first, *others = bert.encode(TEXTS).layers
        same = [bool(torch.allclose(first, layer, atol=1e-4)) for layer in others]
        assert same == [bool(options)] * 2
    again = Bert.from_config(bert.config, tokenizer)
    assert not any(parameter.any() for block in again.blocks for parameter in (block.out.weight, block.down.weight))  # type: ignore[union-attr]


def test_local_start_attends_to_neighbors(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    settings = {"size": 128, "layers": 1, "heads": 2, "inner_size": 64, "max_length": 40, "dropout": 0.0}
    bert = Bert(tokenizer, **settings, attention_dropout=0.0, initialization="local").eval()  # type: ignore[arg-type]
    x = bert.encode([" ".join(["fox"] * 38)]).layers[0]
    q, k, _ = bert.blocks[0].qkv(x).view(1, 40, 3, 2, 64).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-1, -2) / 8).softmax(-1)[0]
    for head, offset in enumerate((-1, 1)):
        there = weights[head].diagonal(offset)[3:-3].mean()
        mirrored = weights[head].diagonal(-offset)[3:-3].mean()
        assert there > 5 / 40  # five times what even attention gives
        assert there > 2 * mirrored


def test_a_head_that_is_not_there_is_not_asked(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    for name, kind in (("bare", BertModel), ("masked", BertForMaskedLM)):
        kind(config).save_pretrained(tmp_path / name)
        tokenizer.save(tmp_path / name, max_length=512)
    for verb, flags in (
        ("try", ["--prompt", "a [MASK]"]),
        ("zeroshot", []),
        ("evaluate", ["--data.sample_documents=40"]),
    ):
        with pytest.raises(UserError, match="it gives vectors, but no probabilities"):
            run(verb, "--from", str(tmp_path / "bare"), *flags)
    run("try", "--from", str(tmp_path / "masked"), "--prompt", "a [MASK]")
    (tmp_path / "other.txt").write_text("☃ ♞ ☃\n\n♞ ☃ ♞\n")
    other = ["--model.objective.init_args.next_sentence=off", "--corpus", str(tmp_path / "other.txt")]
    with pytest.raises(UserError, match="knows no token of this text"):
        run("evaluate", "--from", str(tmp_path / "masked"), *other)
    with pytest.raises(UserError, match="no next-sentence head"):
        run("evaluate", "--from", str(tmp_path / "masked"), "--data.sample_documents=40")
    run(
        "evaluate",
        "--from",
        str(tmp_path / "masked"),
        "--data.sample_documents=40",
        "--model.objective.init_args.next_sentence=off",
    )


def test_refusals(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere of an encoder or model\.$"):
        pipeline.encoders.load(tmp_path / "nowhere")
    folder = tmp_path / "encoder"
    small(tokenizer).save(folder)
    config = json.loads((folder / "config.json").read_text())

    def refused(message: str, **changes: object) -> None:
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(UserError, match=message):
            pipeline.encoders.load(folder)

    refused("There is no encoder 'mamba'", model_type="mamba")
    refused("do not belong together", vocab_size=10)
    refused("hidden_act", hidden_act="relu")
    refused("has shape", intermediate_size=100)
    changed = {name: value for name, value in config.items() if name != "hidden_size"}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(UserError, match="has no hidden_size"):
        pipeline.encoders.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        pipeline.encoders.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="damaged"):
        pipeline.encoders.load(folder)


def test_what_we_cannot_be_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    small(tokenizer).save(tmp_path / "encoder")
    file = tmp_path / "encoder/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "tie_word_embeddings": False}))
    with pytest.raises(UserError, match="tie_word_embeddings = False"):
        pipeline.encoders.load(tmp_path / "encoder")


@pytest.mark.parametrize("strip_accents", [None, False, True])
def test_accents_are_kept_as_the_tokenizer_keeps_them(tmp_path: Path, strip_accents: bool | None) -> None:
    tokenizer = WordPiece.train(["schön über schon uber"] * 3, vocab_size=60, lowercase=True)
    tokenizer.backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=strip_accents)
    small(tokenizer).save(tmp_path / "encoder")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "encoder")
    assert theirs("Schön über", add_special_tokens=False)["input_ids"] == tokenizer.encode_batch(["Schön über"])[0]
