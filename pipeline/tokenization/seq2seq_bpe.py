"""Byte-level BPE with the special tokens of encoder-decoders (Lewis et al. 2020), and a code for each language.

Begin, padding, end, unknown and mask are five tokens: with one token for padding and end a model would not learn to
end, as padding is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import tokenizers
from tokenizers import processors

from pipeline.errors import UserError
from pipeline.tokenization.byte_bpe import ByteBpe

SPECIAL = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}


class Seq2SeqBpe(ByteBpe):
    """Merged bytes, as ByteBpe; `cls` is the begin and `sep` the end, where a head asks for them."""

    scheme = "bpe-seq2seq"
    default_special = {**SPECIAL, "cls": SPECIAL["bos"], "sep": SPECIAL["eos"]}  # noqa: RUF012
    hugging_face = {  # noqa: RUF012
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool = False, languages: Sequence[str] = ()
    ) -> Self:
        """As the base's; `languages` are names as en, each with a token as <en>."""
        codes = [code_of(language) for language in languages]
        tokenizer = cls(cls.trained(texts, vocab_size, lowercase, [*SPECIAL.values(), *codes]))
        backend, begin, end = tokenizer.backend, SPECIAL["bos"], SPECIAL["eos"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            pair=f"{begin} $A {end} {end} $B {end}",
            special_tokens=[(token, backend.token_to_id(token)) for token in (begin, end)],
        )
        return tokenizer

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
            if token.special and token.content not in self.special.values()
        }


def code_of(language: str) -> str:
    """en -> <en>; a code as en_XX stays."""
    if not language.replace("_", "").replace("-", "").isalnum():
        raise UserError(f"data.tokenizer.languages: '{language}' is no name of a language; write it as en or en_XX.")
    return language if "_" in language else f"<{language}>"


def is_seq2seq(backend: tokenizers.Tokenizer) -> bool:
    """Whether a byte-level BPE has the five special tokens."""
    return all(backend.token_to_id(token) is not None for token in SPECIAL.values())
