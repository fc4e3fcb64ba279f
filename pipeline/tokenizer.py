"""Tokenizers: train WordPiece on a corpus, save and load in the Hugging Face layout.

`tokenizer.json` holds the tokenizer itself; `tokenizer_config.json` tells `transformers` which class,
special tokens and length go with it (without it a cased BERT would be lower-cased silently).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipeline import UserError

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


class Tokenizer:
    """A `tokenizers.Tokenizer` with what training needs: ids of special tokens, a hash, which pieces continue a word.

    Args:
        backend: the tokenizer; truncation and padding in it are switched off.
        special: role (`pad`, `unk`, `cls`, `sep`, `mask`, `bos`, `eos`) -> token.
        lowercase: whether text is lower-cased.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, special: dict[str, str], lowercase: bool) -> None:
        # A tokenizer.json made by others may cut at 128 pieces, say: no text may be lost in silence.
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.special, self.lowercase = backend, special, lowercase

    def __len__(self) -> int:
        """V: the number of token ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def id(self, role: str) -> int:
        """The id of a special token by its role, as `tokenizer.id("mask")`."""
        index = self.backend.token_to_id(self.special[role])
        assert index is not None  # load() and the trainer see to it
        return index

    @property
    def special_ids(self) -> list[int]:
        return sorted(self.id(role) for role in self.special)

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """All ids but the special ones: what a random replacement is drawn from."""
        return np.setdiff1d(np.arange(len(self)), self.special_ids)

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    @cached_property
    def continues_word(self) -> np.ndarray:
        """(V,) bool: the pieces that go on with a word (`##ing`)."""
        flags = np.zeros(len(self), dtype=bool)
        for piece, index in self.backend.get_vocab().items():
            flags[index] = piece.startswith("##") and piece not in self.special.values()
        return flags

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without special tokens, each text by itself."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        return self.backend.decode(list(ids))

    def save(self, folder: Path, *, max_length: int) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json` for `transformers.AutoTokenizer`."""
        self.backend.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.lowercase,
            "tokenize_chinese_chars": True,
            "model_max_length": max_length,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            "padding_side": "right",
            **{f"{role}_token": token for role, token in self.special.items()},
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def train_wordpiece(texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Tokenizer:
    """WordPiece with BERT's normalisation (Devlin et al. 2018; Wu et al. 2016), trained on `texts`."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS["unk"], max_input_chars_per_word=100))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        continuing_subword_prefix="##",
        limit_alphabet=1000,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    return _with_template(backend, SPECIAL_TOKENS, lowercase)


def _with_template(backend: tokenizers.Tokenizer, special: dict[str, str], lowercase: bool) -> Tokenizer:
    cls, sep = special["cls"], special["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    return Tokenizer(backend, special=special, lowercase=lowercase)


def load(path: Path) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, or from the encoder folder that holds it.

    Raises:
        UserError: no such file, damaged, or a special token of BERT is missing.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"There is no tokenizer at {file}.")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{file} is not a tokenizer.json that can be read ({error}).") from None
    special = dict(SPECIAL_TOKENS)
    config_file = file.with_name("tokenizer_config.json")
    if config_file.is_file():
        config = json.loads(config_file.read_text())
        for role in special:
            token = config.get(f"{role}_token", special[role])
            special[role] = token["content"] if isinstance(token, dict) else token
    missing = [token for token in special.values() if backend.token_to_id(token) is None]
    if missing:
        raise UserError(f"{file} lacks the special token {missing[0]}, which BERT needs.")
    normalizer = json.loads(backend.to_str()).get("normalizer") or {}
    return _with_template(backend, special, bool(normalizer.get("lowercase", False)))
