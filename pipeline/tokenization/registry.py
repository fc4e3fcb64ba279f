"""Tokenizers by scheme: training one, and loading one from a `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.storage.validation import read_json
from pipeline.tokenization.base import Tokenizer, no_panic
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe, is_seq2seq
from pipeline.tokenization.spelled_words import SpelledWords
from pipeline.tokenization.whole_words import WholeWords
from pipeline.tokenization.wordpiece import WordPiece
from tasks.dataset import listed

KINDS: tuple[type[Tokenizer], ...] = (WordPiece, ByteBpe, Seq2SeqBpe, SpelledWords, WholeWords)
SCHEMES = {kind.scheme: kind for kind in KINDS}


def train(
    scheme: str,
    texts: Iterable[str],
    *,
    vocab_size: int,
    lowercase: bool,
    min_frequency: int = 1,
    languages: Sequence[str] = (),
    sentinels: int = 0,
) -> Tokenizer:
    """Trains a tokenizer of a scheme on `texts`, with overlong words in pieces.

    Args:
        min_frequency: a word that occurs less often is unknown.
        languages: each gets a token, <en> for en.
        sentinels: how many tokens stand for hidden spans.

    Raises:
        UserError: the scheme does not have an option (`Tokenizer.options`).
    """
    kind = SCHEMES[scheme]
    if sentinels and not 0 < sentinels < vocab_size:
        raise UserError(f"data.tokenizer.sentinels is {sentinels}; it must be at least 0, and below vocab_size.")
    if min_frequency < 1:
        raise UserError(f"data.tokenizer.min_frequency is {min_frequency}; it must be at least 1.")
    given = {"min_frequency": min_frequency > 1, "languages": bool(languages), "sentinels": bool(sentinels)}
    for name in [name for name, is_set in given.items() if is_set and name not in kind.options]:
        owner = next(other.scheme for other in KINDS if name in other.options)
        raise UserError(f"data.tokenizer.{name} is for scheme {owner}; a {scheme} tokenizer has none.")
    options = {"min_frequency": min_frequency, "languages": languages, "sentinels": sentinels}
    parts = (part for text in texts for part in kind.parts_of(text))
    own = {name: options[name] for name in kind.options}
    return kind.train(parts, vocab_size=vocab_size, lowercase=lowercase, **own)


class _Named(TypedDict):
    content: str


class _Special(TypedDict, total=False):
    """Special tokens as `tokenizer_config.json` and `special_tokens_map.json` name them."""

    pad_token: str | _Named | None
    unk_token: str | _Named | None
    cls_token: str | _Named | None
    sep_token: str | _Named | None
    mask_token: str | _Named | None
    bos_token: str | _Named | None
    eos_token: str | _Named | None


class _Config(_Special, total=False):
    """The entries of `tokenizer_config.json` that are read."""

    tokenizer_class: str | None
    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None
    add_prefix_space: bool | None
    added_tokens_decoder: dict[str, _Named] | None


class _Ends(TypedDict, total=False):
    """The entry of an encoder's `config.json` that is read."""

    eos_token_id: int | list[int] | None


def load(path: Path) -> Tokenizer:
    """Loads a `tokenizer.json`, or the one of an encoder folder.

    Raises:
        UserError: there is no such file, it is damaged, or it lacks a special token of its scheme.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"There is no tokenizer at {file}.")
    try:
        with no_panic(file):
            backend = tokenizers.Tokenizer.from_file(str(file))
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{file} is not a tokenizer.json that can be read ({error}).") from None
    if _is_sentencepiece(backend):
        raise UserError(
            f"{file} is a tokenizer of sentencepiece, which cannot be read: choose a model with WordPiece or with BPE "
            "over bytes, as GPT-2, SmolLM2 and Llama 3 have it."
        )
    kind = _kind_of(backend)
    config = _beside(file, "tokenizer_config.json", _Config)
    special = _special_tokens(file, backend, kind, config)
    if missing := [token for token in special.values() if backend.token_to_id(token) is None]:
        raise UserError(f"{file} lacks the special token {missing[0]}, which a {kind.scheme} tokenizer needs.")
    _check_agreement(file, backend, config)
    tokenizer = kind(backend, special)
    tokenizer.configure(config)
    tokenizer.file = file
    return tokenizer


def _check_agreement(file: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Raises: UserError, transformers reads texts by `tokenizer_config.json` in another way than `tokenizer.json`."""
    pre = backend.pre_tokenizer
    if config.get("add_prefix_space") and isinstance(pre, pre_tokenizers.ByteLevel) and not pre.add_prefix_space:
        raise UserError(f"{file.with_name('tokenizer_config.json')} has add_prefix_space, which {file.name} lacks.")
    added = [token["content"] for token in (config.get("added_tokens_decoder") or {}).values()]
    if missing := [token for token in added if backend.token_to_id(token) is None]:
        raise UserError(f"{file.with_name('tokenizer_config.json')} adds {listed(missing)}, which {file.name} lacks.")


def _is_sentencepiece(backend: tokenizers.Tokenizer) -> bool:
    """Whether pieces begin with U+2581 for a space, and bytes are no tokens of their own."""
    model, known = backend.model, backend.get_vocab()
    if not isinstance(model, models.BPE):
        return isinstance(model, models.Unigram)
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    over_bytes = all(letter in known for letter in pre_tokenizers.ByteLevel.alphabet())
    return not over_bytes and any(piece.startswith("\u2581") for piece in known)


def _kind_of(backend: tokenizers.Tokenizer) -> type[Tokenizer]:
    model = backend.model
    if isinstance(model, models.BPE):
        if model.continuing_subword_prefix:
            return SpelledWords
        return Seq2SeqBpe if is_seq2seq(backend) else ByteBpe
    if isinstance(model, models.WordLevel):
        return WholeWords
    return WordPiece


def _beside(file: Path, name: str, schema: Any) -> dict[str, Any]:
    """The content of another file of the tokenizer's folder; empty if there is none."""
    other = file.with_name(name)
    return read_json(other, schema) if other.is_file() else {}


def _special_tokens(
    file: Path, backend: tokenizers.Tokenizer, kind: type[Tokenizer], config: dict[str, Any]
) -> dict[str, str]:
    """Role -> special token: as the folder names it, else the scheme's."""
    named = {}
    for source in (_beside(file, "special_tokens_map.json", _Special), config):  # the latter takes precedence
        for role in kind.default_special:
            if token := source.get(f"{role}_token"):
                named[role] = token["content"] if isinstance(token, dict) else token
    return kind.special_of(backend, named, lambda: _beside(file, "config.json", _Ends).get("eos_token_id"))
