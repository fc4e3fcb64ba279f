"""Folders that say one thing and hold another are refused, and what opens them changes nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pipeline
from pipeline import encoders, prompting
from pipeline.errors import UserError
from pipeline.models.bart import Bart
from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.encoding import eval_mode
from pipeline.models.gpt import Gpt
from pipeline.models.llama import Llama
from pipeline.models.t5 import T5
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe
from pipeline.tokenization.wordpiece import WordPiece

TEXTS = ["The soup was cold and the garden was lovely.", "A robin sang."] * 3
SIZES: dict[str, Any] = {"size": 32, "layers": 1, "heads": 2, "inner_size": 64, "max_length": 48}
DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
COPIES = {
    "bert": ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    "gpt": ("lm_head.weight", "transformer.wte.weight"),
    "llama": ("lm_head.weight", "model.embed_tokens.weight"),
    "bart": ("model.encoder.embed_tokens.weight", "model.shared.weight"),
    "t5": ("lm_head.weight", "shared.weight"),
}


def small(model: str) -> Encoder:
    torch.manual_seed(0)
    if model == "bert":
        return Bert(WordPiece.train(TEXTS, vocab_size=200, lowercase=False), **SIZES, **DROPOUT)
    if model in ("gpt", "llama"):
        tokenizer = ByteBpe.train(TEXTS, vocab_size=300)
        return Gpt(tokenizer, **SIZES, **DROPOUT) if model == "gpt" else Llama(tokenizer, **SIZES, **DROPOUT)
    tokenizer = Seq2SeqBpe.train(TEXTS, vocab_size=300, sentinels=4 if model == "t5" else 0)
    return Bart(tokenizer, **SIZES, **DROPOUT) if model == "bart" else T5(tokenizer, **SIZES, dropout=0.0)


def changed(folder: Path, **entries: Any) -> Path:
    """The folder with other entries in its config.json."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    return folder


@pytest.mark.parametrize("model", COPIES)
def test_a_copy_of_the_embedding_is_one(model: str, tmp_path: Path) -> None:
    """transformers takes the separate matrix where it differs, whatever config.json says of ties."""
    small(model).save(tmp_path)
    copy, table = COPIES[model]
    state = load_file(tmp_path / "model.safetensors")
    for name, value in {"same": state[table].clone(), "other": state[table] + 1}.items():
        save_file({**state, copy: value}, tmp_path / "model.safetensors", metadata={"format": "pt"})
        if name == "same":
            encoders.load(tmp_path)
        else:
            with pytest.raises(UserError, match=f"{copy} differs from the embedding"):
                encoders.load(tmp_path)


def test_a_t5_whose_outputs_are_not_scaled_is_refused(tmp_path: Path) -> None:
    """As transformers saves one whose embeddings are not tied."""
    small("t5").save(tmp_path)
    with pytest.raises(UserError, match="scale_decoder_outputs = False"):
        encoders.load(changed(tmp_path, scale_decoder_outputs=False))


def test_the_base_of_rotations_in_its_scaling(tmp_path: Path) -> None:
    llama = small("llama")
    llama.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("rope_theta", "rope_parameters"):
        config.pop(key, None)
    config["rope_scaling"] = {"rope_type": "default", "rope_theta": 500.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = torch.tensor([list(range(5, 45))])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ours = encoders.load(tmp_path)
    with torch.no_grad():
        hidden = ours({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1]
        assert (ours.logits(hidden) - theirs(ids).logits).abs().max() < 1e-4


@pytest.mark.parametrize(("model", "head"), [("llama", "lm_head."), ("t5", "decoder.")])
def test_nothing_is_written_with_weights_that_are_not_there(model: str, head: str, tmp_path: Path) -> None:
    encoder = small(model) if model == "t5" else Llama(small("gpt").tokenizer, **SIZES, **DROPOUT, tied=False)
    encoder.save(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    kept = {name: value for name, value in state.items() if not name.startswith(head)}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="no probabilities"):
        encoders.load(tmp_path).generate([5, 6])


@pytest.mark.parametrize("prompt", [[99_999], [-1], "abc", [], [1.5]])
def test_prompts_of_an_encoder_decoder_are_its_ids(prompt: Any) -> None:
    with pytest.raises(UserError, match="A prompt is a list of token ids"):
        small("bart").generate(prompt)


def test_a_folder_that_went_through_transformers_has_the_same_tokenizer(tmp_path: Path) -> None:
    gpt = small("gpt")
    gpt.save(tmp_path / "ours")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    gpt.save(tmp_path / "again")
    (tmp_path / "again/tokenizer.json").write_text((tmp_path / "theirs/tokenizer.json").read_text())
    assert encoders.load(tmp_path / "again").tokenizer.reads_as(gpt.tokenizer)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"add_prefix_space": True}, "has add_prefix_space"),
        ({"added_tokens_decoder": {"300": {"content": "<new>"}}}, "adds <new>"),
    ],
)
def test_a_tokenizer_that_transformers_would_read_otherwise(entry: dict[str, Any], said: str, tmp_path: Path) -> None:
    small("gpt").save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entry))
    with pytest.raises(UserError, match=said):
        encoders.load(tmp_path)


def test_pairs_may_come_from_an_iterator() -> None:
    gpt, contexts, targets = small("gpt"), ["The soup was"] * 2, [" cold.", " lovely."]
    expected = prompting.log_likelihoods(gpt, list(zip(contexts, targets, strict=True)))
    assert prompting.log_likelihoods(gpt, zip(contexts, targets, strict=True)) == expected
    assert len(expected) == 2
    for wrong in (None, 5, [("a", 5)]):
        with pytest.raises(UserError, match="Pairs come in a list"):
            prompting.log_likelihoods(gpt, wrong)  # type: ignore[arg-type]


def test_modes_random_numbers_and_precision_are_left_as_they_were(tmp_path: Path) -> None:
    gpt = small("gpt")
    gpt.save(tmp_path)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    encoders.load(tmp_path)
    assert torch.equal(torch.rand(1), expected)
    gpt.train()
    part = next(iter(gpt.children())).eval()
    pairs = [("The soup", " was")] * 40
    gpt.encode(TEXTS)
    prompting.log_likelihoods(gpt, pairs)
    assert gpt.training
    assert not part.training
    with eval_mode(gpt):
        assert not gpt.training
    before = torch.get_float32_matmul_precision()
    others = [threading.Thread(target=prompting.log_likelihoods, args=(small("gpt"), pairs)) for _ in range(6)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    assert torch.get_float32_matmul_precision() == before


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    small("gpt").save(str(tmp_path / "gpt"))  # type: ignore[arg-type]
    assert pipeline.encoders.load(str(tmp_path / "gpt")).num_layers == 2
