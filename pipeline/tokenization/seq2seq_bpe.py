"""Byte-level BPE with the special tokens of encoder-decoders (Lewis et al. 2020), a code for each language, and the
sentinels of T5 (Raffel et al. 2020).

Begin, padding, end, unknown and mask are five tokens: with one token for padding and end a model would not learn to
end, as padding is not predicted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Self

import tokenizers
from tokenizers import processors

from pipeline.errors import UserError
from pipeline.tokenization.byte_bpe import ByteBpe

SENTINEL = "<extra_id_"
SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


class Seq2SeqBpe(ByteBpe):
    """Merged bytes, as ByteBpe; `cls` is the begin and `sep` the end, where a head asks for them."""

    scheme = "bpe-seq2seq"
    default_special = {**SPECIAL, "cls": SPECIAL["bos"], "sep": SPECIAL["eos"]}  # noqa: RUF012
    options = ("languages", "sentinels")
    hugging_face = {  # noqa: RUF012
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        vocab_size: int,
        lowercase: bool = False,
        languages: Sequence[str] = (),
        sentinels: int = 0,
    ) -> Self:
        """As the base's; `languages` are names as en, each with a token as <en>; sentinels are <extra_id_0>, ..."""
        codes = [code_of(language) for language in languages]
        codes += [f"{SENTINEL}{number}>" for number in range(sentinels)]
        tokenizer = cls(cls.trained(texts, vocab_size, lowercase, [*SPECIAL.values(), *codes]))
        tokenizer._put_ends()
        return tokenizer

    def _put_ends(self) -> None:
        """Around texts where someone asks for them, as BART has them."""
        begin, end = SPECIAL["bos"], SPECIAL["eos"]
        self.backend.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} {end} $B {end}",
            special_tokens=[(token, self.backend.token_to_id(token)) for token in (begin, end)],
        )

    def configure(self, config: dict[str, Any]) -> None:
        """The folder of a T5 has an end behind texts alone; without it the tokenizer is that which was trained."""
        if self.backend.encode("").ids == [self.id("eos")]:
            self._put_ends()

    @classmethod
    def special_of(
        cls, backend: tokenizers.Tokenizer, named: dict[str, str], end_id: Callable[[], Any]
    ) -> dict[str, str]:
        return {**cls.default_special, **named}

    @property
    def languages(self) -> dict[str, int]:
        """The tokens of languages -> their ids: what else is special."""
        added = self.backend.get_added_tokens_decoder()
        return {
            token.content: index
            for index, token in sorted(added.items())
            if token.special and token.content not in self.special.values() and not token.content.startswith(SENTINEL)
        }

    @cached_property
    def sentinels(self) -> list[int]:
        names = (f"{SENTINEL}{number}>" for number in itertools.count())
        ids = itertools.takewhile(lambda index: index is not None, map(self.backend.token_to_id, names))
        return [index for index in ids if index is not None]


def code_of(language: str) -> str:
    """en -> <en>; a code as en_XX stays."""
    if not language.replace("_", "").replace("-", "").isalnum():
        raise UserError(f"data.tokenizer.languages: '{language}' is no name of a language; write it as en or en_XX.")
    return language if "_" in language else f"<{language}>"


def is_seq2seq(backend: tokenizers.Tokenizer) -> bool:
    """Whether a byte-level BPE has the five special tokens."""
    return all(backend.token_to_id(token) is not None for token in SPECIAL.values())
