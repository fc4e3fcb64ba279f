"""Encoder-decoders: the Transformer against transformers' Marian, beam search against its `generate`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import pipeline
from pipeline.errors import UserError
from pipeline.inspection.show import write
from pipeline.models import registry
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import Search
from pipeline.models.inputs import Inputs
from pipeline.models.transformer import Transformer
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe

SOURCES = ["the soup was good", "Anna", "the strawberries were hot and good and Anna adored them"]
TARGETS = ["Suppe gut", "Anna", "und so weiter und so fort"]
SIZES = {"size": 32, "heads": 4, "inner_size": 64, "max_length": 40, "dropout": 0.1, "attention_dropout": 0.0}


@pytest.fixture(scope="module")
def tokenizer() -> Seq2SeqBpe:
    trained = tokenizers.train(
        "bpe-seq2seq", [*SOURCES, *TARGETS] * 9, vocab_size=300, lowercase=False, languages=["en", "de_DE"]
    )
    assert isinstance(trained, Seq2SeqBpe)
    return trained


def transformer(tokenizer: Tokenizer, **changes: object) -> Transformer:
    """With random weights that are far from 0, and ends of text that are likely enough to come."""
    torch.manual_seed(0)
    model = Transformer(tokenizer, layers=2, **{**SIZES, **changes}).eval()  # type: ignore[arg-type]
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return model


def batch_of(model: EncoderDecoder) -> Inputs:
    return model.collate(model.tokenize(SOURCES)) | model.collate_targets(model.tokenize(TARGETS))


def theirs(batch: Inputs) -> dict[str, torch.Tensor]:
    return {"input_ids": batch["input_ids"], "attention_mask": batch["mask"].long()}


def test_the_tokenizer_has_five_special_tokens_and_languages(tokenizer: Seq2SeqBpe, tmp_path: Path) -> None:
    tokenizer.save(tmp_path, max_length=40)
    again = tokenizers.load(tmp_path)
    assert isinstance(again, Seq2SeqBpe)
    assert again.languages == {"<en>": 5, "de_DE": 6}
    assert (again.language_id("en"), again.language_id("de")) == (5, 6)
    with pytest.raises(UserError, match=r"no token for the language 'fr'; it has <en>, de_DE"):
        again.language_id("fr")
    assert len({again.id(role) for role in ("bos", "pad", "eos", "unk", "mask")}) == 5
    auto = transformers.AutoTokenizer.from_pretrained(tmp_path)
    [ids] = again.encode_batch([SOURCES[0]])
    assert auto(SOURCES[0])["input_ids"] == [again.id("bos"), *ids, again.id("eos")]
    assert auto.decode(ids) == again.decode(ids) == SOURCES[0]


def test_an_empty_target_is_said(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(tokenizer)
    monkeypatch.setattr(model, "generate", lambda ids, **how: [])
    assert write(model, SOURCES[0], Search()) == "\n(The target is empty.)"


def test_a_cut_target_is_said(toys: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of eight tokens of BART is the mark of the beginning, which is not shown."""
    bart = pipeline.encoders.load(toys("bart") / "encoder")
    logits, begin, end = bart.logits, bart.tokenizer.id("bos"), bart.tokenizer.id("eos")
    asked = []

    def endless(hidden: torch.Tensor) -> torch.Tensor:
        scores = logits(hidden)
        scores[..., end] = -100.0
        scores[..., begin] = -100.0 if asked else 100.0
        asked.append(len(scores))
        return scores

    monkeypatch.setattr(bart, "logits", endless)
    assert write(bart, SOURCES[0], Search(tokens=8)).endswith("(Stopped after 7 tokens.)")


def test_matrices_begin_as_those_of_xavier(tokenizer: Tokenizer) -> None:
    """Glorot and Bengio 2010, as in fairseq: each of queries, keys and values is a matrix of its own."""
    fresh = type(model := transformer(tokenizer)).from_config(model.config, tokenizer)
    for name, matrix in fresh.named_parameters():
        if matrix.ndim == 2 and "embedding" not in name:
            rows = matrix.shape[1] if name.endswith(("qkv.weight", "cross_kv.weight")) else matrix.shape[0]
            bound = math.sqrt(6 / (rows + matrix.shape[1]))
            assert 0.95 * bound < float(matrix.abs().max()) <= bound, name


@pytest.mark.parametrize(
    "settings", [{}, {"activation_function": "swish", "decoder_layers": 1}], ids=["ours", "theirs"]
)
def test_it_is_marian(tokenizer: Tokenizer, tmp_path: Path, settings: dict[str, object]) -> None:
    """Our folder in transformers, or theirs here: no missing tensor, the same logits, the same text."""
    if settings:
        roles = {f"{role}_token_id": tokenizer.id(role) for role in ("pad", "eos")}
        config = transformers.MarianConfig(
            vocab_size=len(tokenizer),
            d_model=32,
            encoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=40,
            scale_embedding=True,
            decoder_start_token_id=tokenizer.id("pad"),
            forced_eos_token_id=None,
            init_std=0.3,
            **roles,
            **settings,
        )
        marian = transformers.MarianMTModel(config).eval()
        marian.final_logits_bias.normal_()
        marian.save_pretrained(tmp_path)
        tokenizer.save(tmp_path, max_length=40)
        model, report = registry.load_with_report(tmp_path)
        assert (report.new, report.unused) == ([], [])
    else:
        model = transformer(tokenizer)
        model.save(tmp_path)
        marian, info = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        marian.eval()
    assert isinstance(model, EncoderDecoder)
    batch = batch_of(model)
    with torch.no_grad():
        ours = model.logits(model.teacher_forced(batch))
        logits = marian(**theirs(batch), decoder_input_ids=batch["decoder_input_ids"]).logits
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-4)
    special = set(model.tokenizer.special_ids)
    for beam in (1, 5):
        rows = marian.generate(**theirs(batch), num_beams=beam, max_new_tokens=20, do_sample=False).tolist()
        texts = [[token for token in row if token not in special] for row in rows]
        assert model.write(batch, Search(tokens=20, beam=beam)) == texts
