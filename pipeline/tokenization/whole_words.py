"""Whole words, split at spaces: the vocabulary of language models before subwords (Bengio et al. 2003, section 4.2).

Rare words are [UNK]. Its probability says nothing about which word it was: bits per byte add the cost of spelling it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Self

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from pipeline.errors import UserError
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import END_OF_TEXT
from pipeline.tokenization.spelling import byte_nats, nats_of

UNKNOWN = "[UNK]"


class WholeWords(Tokenizer):
    """A token is the text between two spaces."""

    scheme = "whole-words"
    default_special = {**dict.fromkeys(("bos", "eos", "pad"), END_OF_TEXT), "unk": UNKNOWN}  # noqa: RUF012
    generative = True
    options = ("min_frequency",)
    longest_piece = 1000
    hugging_face = {  # noqa: RUF012
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
    }

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool, min_frequency: int = 1) -> Self:
        """Takes the most frequent words.

        Args:
            min_frequency: a word that occurs less often is [UNK].

        Raises:
            UserError: no word is left.
        """
        backend = tokenizers.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        if lowercase:
            parts = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
            backend.normalizer = normalizers.Sequence(parts)
        trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, min_frequency=min_frequency, show_progress=False)
        backend.train_from_iterator(texts, trainer=trainer)
        special, ids = [END_OF_TEXT, UNKNOWN], backend.get_vocab()
        words = [word for word in sorted(ids, key=ids.__getitem__) if word not in special]  # which a text may have too
        words = words[: max(0, vocab_size - len(special))]
        if not words:
            raise UserError(
                f"No word is left with data.tokenizer.min_frequency {min_frequency:,} and vocab_size {vocab_size:,}; "
                "lower the one or raise the other."
            )
        vocab = {word: index for index, word in enumerate([*special, *words])}
        backend.model = models.WordLevel(vocab, unk_token=UNKNOWN)
        backend.add_special_tokens(special)
        return cls(backend)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """A word of a corpus that is spelled as a special token is not found in the vocabulary: it is [UNK]."""
        backend, special = super()._plain_backend, set(self.special.values())
        ids = self.backend.get_vocab(with_added_tokens=False)
        # No word has a space, so that none of a text has these names.
        names = {word: f" {word}" if word in special - {self.special["unk"]} else word for word in ids}
        backend.model = models.WordLevel({names[word]: index for word, index in ids.items()}, self.special["unk"])
        return backend

    def decode(self, ids: Iterable[int]) -> str:
        """The words, each after a space, so that the texts of parts join to that of the whole; [UNK] is shown."""
        words = (self.backend.id_to_token(int(index)) for index in ids)
        return "".join(f" {word}" for word in words if word != self.special["eos"])

    @cached_property
    def spelling_nats(self) -> np.ndarray:
        """(257,) nats of each byte, and of the end of a word, by their frequency in the vocabulary."""
        special = self.special.values()
        return byte_nats(word.encode() for word in self.backend.get_vocab() if word not in special)

    def unknown_nats(self, text: str, ids: Sequence[int]) -> float:
        unknown = self.id("unk")
        if unknown not in ids:
            return 0.0
        split = self.backend.pre_tokenizer.pre_tokenize_str
        words = [word for part in self.parts_of(text) for word, _ in split(self.normalize(part))]
        spelled = (word.encode() for word, index in zip(words, ids, strict=True) if index == unknown)
        return nats_of(spelled, self.spelling_nats)
