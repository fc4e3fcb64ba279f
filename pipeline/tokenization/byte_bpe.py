"""Byte-level BPE (Radford et al. 2019, section 2.2): every text can be encoded, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from pipeline.errors import UserError
from pipeline.tokenization.base import Tokenizer

END_OF_TEXT = "<|endoftext|>"


class ByteBpe(Tokenizer):
    """Merged bytes; the space before a word is a part of its first token."""

    scheme = "bpe"
    default_special = dict.fromkeys(("bos", "eos", "unk", "pad"), END_OF_TEXT)
    keeps_spaces = True
    generative = True
    longest_piece = 1000
    hugging_face = {  # noqa: RUF012
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool = False) -> Self:
        return cls(cls.trained(texts, vocab_size, lowercase, [END_OF_TEXT]))

    @classmethod
    def trained(
        cls, texts: Iterable[str], vocab_size: int, lowercase: bool, special: Sequence[str]
    ) -> tokenizers.Tokenizer:
        """The library's tokenizer, trained; special tokens have its first ids."""
        if lowercase:
            raise UserError(f"data.tokenizer.lowercase does not go with {cls.scheme}, which loses nothing of the text.")
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator((f" {text}" for text in texts), trainer=trainer)  # most sentences follow a space
        return backend

    def is_standard(self) -> bool:
        normalizer, before, model = self.parts("normalizer", "pre_tokenizer", "model")
        plain = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        cut = {name: value for name, value in (before or {}).items() if name in plain}
        return normalizer is None and cut == plain and not (model.get("ignore_merges") or model.get("byte_fallback"))

    @classmethod
    def of_bytes(cls) -> Self:
        """A token for each byte, and the end of text."""
        return cls.train([], vocab_size=257)

    @classmethod
    def special_of(
        cls, backend: tokenizers.Tokenizer, named: dict[str, str], end_id: Callable[[], Any]
    ) -> dict[str, str]:
        """As the base's; the end of text takes each role that the vocabulary lacks."""
        end = named.get("eos", END_OF_TEXT)
        if backend.token_to_id(end) is None and "eos" not in named:  # transformers' models go by its number then
            number = end_id()
            known_end = backend.id_to_token(number) if isinstance(number, int) and number >= 0 else None
            end = known_end or named.get("bos", END_OF_TEXT)
        known = {
            role: token if backend.token_to_id(token) is not None else end
            for role, token in cls.default_special.items()
        }
        return {**known, "eos": end, **named}

    def configure(self, config: dict[str, Any]) -> None:
        """A fine-tuned folder has transformers put ends around texts; without them the tokenizer is its encoder's."""
        if self.backend.encode("").ids == [self.id("bos"), self.id("eos")]:
            self.backend.post_processor = processors.ByteLevel(trim_offsets=False)

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        return self.encode_batch([f" {word}" if number else word or " " for number, word in enumerate(words)])
