"""Words spelled in bytes, with a list of words to predict (Peters et al. 2018, https://arxiv.org/abs/1802.05365).

Any word can be read; only the most frequent ones are classes of the softmax.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from pipeline.storage.json_lines import repair_surrogates
from pipeline.tokenization.base import CONTINUES, Tokenizer
from pipeline.tokenization.spelling import byte_nats

LONGEST_WORD = 48  # bytes; character encoders cut longer words, and the token store counts them
MAX_CHARACTERS = LONGEST_WORD + 2  # with the marks of begin and end, as in the published models
OUTPUT_WORD = "\u2581"  # prefix of output words: entries of the vocabulary that no text is tokenized into
FIRST_OUTPUT = 513  # 256 bytes that begin a word, 256 that continue one, padding; then <S>, </S>, [UNK], words by rank


class SpelledWords(Tokenizer):
    """A word is the ids of its bytes; all but the first have 256 added."""

    scheme = "words"
    default_special = {"pad": "[PAD]", "bos": "<S>", "eos": "</S>", "unk": "[UNK]"}  # noqa: RUF012
    spells = True
    longest_piece = LONGEST_WORD
    hugging_face = {"tokenizer_class": "PreTrainedTokenizerFast"}  # noqa: RUF012

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Self:
        """Takes the `vocab_size` most frequent words for output words."""
        normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
        counter = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
        counter.normalizer, counter.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False)
        counter.train_from_iterator(texts, trainer=trainer)
        ranked = sorted(counter.get_vocab(), key=counter.get_vocab().__getitem__)
        return cls.from_words([word for word in ranked if len(word.encode()) <= LONGEST_WORD], normalizer)

    @classmethod
    def from_words(cls, words: Sequence[str], normalizer: Any = None) -> Self:
        """A tokenizer with these output words, the most frequent first."""
        characters = _byte_characters()
        pieces = [*characters, *(CONTINUES + character for character in characters)]
        pieces += cls.default_special.values()
        pieces += [OUTPUT_WORD + word for word in words]
        vocab = {piece: index for index, piece in enumerate(pieces)}
        # BPE without merges: single characters, with the prefix on all but the first of a word.
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], continuing_subword_prefix=CONTINUES))
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        return cls(backend)

    @cached_property
    def outputs(self) -> dict[bytes, int]:
        """Word in UTF-8 -> its class in the softmax; 0, 1 and 2 are <S>, </S> and [UNK]."""
        return {
            piece[1:].encode(): index - FIRST_OUTPUT
            for piece, index in self.backend.get_vocab().items()
            if piece.startswith(OUTPUT_WORD) and index > FIRST_OUTPUT
        }

    @cached_property
    def spelling_nats(self) -> np.ndarray:
        """(257,) nats of each byte, and of the end of a word, by their frequency in the list of output words.

        An unknown word costs these on top of the probability of [UNK], so that a small vocabulary has no advantage.
        """
        return byte_nats(self.outputs)

    def fits(self, piece: str) -> bool:
        return len(self.normalize(piece).encode()) <= LONGEST_WORD

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """As the base's, without any further split: a word is what the caller says."""
        plain = [repair_surrogates(word) for word in words]
        if self.backend.normalizer is not None:
            plain = [self.normalize(word).replace(" ", "") for word in plain]
        return [_spell(word.encode()) for word in plain]


def _spell(word: bytes) -> list[int]:
    return [byte + 256 * (position > 0) for position, byte in enumerate(word or b"?")]


def split_words(ids: np.ndarray) -> list[bytes]:
    """Spelled tokens (N,) -> words in UTF-8."""
    ids = np.asarray(ids)
    text = (ids & 255).astype(np.uint8).tobytes()
    return [text[low:high] for low, high in word_ranges(ids)]


def word_ranges(ids: np.ndarray) -> list[tuple[int, int]]:
    """The first token of each word among spelled tokens (N,), and the one behind its last."""
    begins = np.flatnonzero(np.asarray(ids) < 256).tolist()
    return list(itertools.pairwise([*begins, len(ids)])) if begins else []


def _byte_characters() -> list[str]:
    """The printable character for each byte in byte-level tokenizers (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
