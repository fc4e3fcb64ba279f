"""Tokenizers of other folders: what is saved of them cuts texts in transformers as here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from pipeline.tokenization import registry

TRAINED_ON = [f"The BERT of {number}, and Others: {number * 37} plus {number * 91}." for number in range(200)]
TEXTS = ["In 12345 and 1998, it's 3.14", "DON'T   do\n\nthat", "Ａ ﬁne Café", "BERT, GPT and Others"]
LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
BPES = {
    "as GPT-2": (None, BYTES),
    "as Llama 3": (
        None,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA_3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "as SmolLM": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES])),
    "normalized": (normalizers.NFKC(), BYTES),
    "not cut": (None, None),
    "with a space in front": (None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
}
WORD_PIECES = {
    "as BERT": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "cased": (None, pre_tokenizers.Whitespace()),
    "normalized otherwise": (
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
        pre_tokenizers.BertPreTokenizer(),
    ),
    "cut at spaces": (normalizers.BertNormalizer(lowercase=False), pre_tokenizers.WhitespaceSplit()),
}


def bpe(name: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    return trained(backend, BPES[name], trainer)


def word_piece(name: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return trained(backend, WORD_PIECES[name], trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))


def trained(backend: tokenizers.Tokenizer, parts: tuple, trainer: object) -> tokenizers.Tokenizer:
    if parts[0] is not None:
        backend.normalizer = parts[0]
    if parts[1] is not None:
        backend.pre_tokenizer = parts[1]
    backend.train_from_iterator(TRAINED_ON, trainer=trainer)
    return backend


@pytest.mark.parametrize(("kind", "name"), [*(("bpe", n) for n in BPES), *(("wordpiece", n) for n in WORD_PIECES)])
def test_saved_again_they_cut_as_before(kind: str, name: str, tmp_path: Path) -> None:
    backend = (bpe if kind == "bpe" else word_piece)(name)
    backend.save(str(tmp_path / "tokenizer.json"))
    ends = {"bos_token": "<|end|>", "eos_token": "<|end|>"} if kind == "bpe" else {}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **ends}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = registry.load(tmp_path)
    ids = ours.encode_batch(TEXTS)
    assert ids == [encoding.ids for encoding in backend.encode_batch(TEXTS, add_special_tokens=False)]
    again = tmp_path / "again"
    again.mkdir()
    ours.save(again, max_length=64)
    theirs = AutoTokenizer.from_pretrained(again)
    assert theirs(TEXTS, add_special_tokens=False)["input_ids"] == ids
    assert registry.load(again).encode_batch(TEXTS) == ids
    saved = json.loads((again / "tokenizer_config.json").read_text())["tokenizer_class"]
    assert saved == ("PreTrainedTokenizerFast" if not name.startswith(("as GPT", "as BERT")) else config_class(kind))


def config_class(kind: str) -> str:
    return {"bpe": "GPT2Tokenizer", "wordpiece": "BertTokenizer"}[kind]
