"""WordPiece with BERT's normalization (Devlin et al. 2018, https://arxiv.org/abs/1810.04805; Wu et al. 2016)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from pipeline.tokenization.base import CONTINUES, Tokenizer

MAX_WORD = 100  # characters; WordPiece reads a longer word as unknown, as the original
COVERAGE = 0.9995  # of the characters of a text (SentencePiece's character coverage)
BERT_CLASSES = (None, "BertTokenizer", "BertTokenizerFast")


class WordPiece(Tokenizer):
    """Subwords of whole words; `##` marks those that continue one. [CLS] text [SEP], [CLS] a [SEP] b [SEP]."""

    scheme = "wordpiece"
    default_special = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}  # noqa: RUF012
    longest_piece = MAX_WORD
    hugging_face = {  # noqa: RUF012
        "tokenizer_class": "BertTokenizer",
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[str, str] | None = None) -> None:
        super().__init__(backend, special)
        cls, sep = self.special["cls"], self.special["sep"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
        )

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Self:
        """Trains on `texts`; the same texts give the same pieces.

        The library's trainer breaks ties by the ids of single characters, and gives those that continue a word theirs
        in the random order of a hash table. So these are added beforehand as special tokens, in order of frequency;
        the tokenizer is then rebuilt from the pieces, where they are ordinary ones.
        """
        special, texts = list(cls.default_special.values()), list(texts)
        backend = backend_of({}, lowercase=lowercase)
        counts, continuing = word_characters(texts, backend)
        characters = frequent_characters(counts, most=vocab_size // 2)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=[*special, *(CONTINUES + character for character in characters if character in continuing)],
            continuing_subword_prefix=CONTINUES,
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=False,
        )
        backend.train_from_iterator(texts, trainer=trainer)
        trained = backend_of(backend.get_vocab(), lowercase=lowercase)
        trained.add_special_tokens(special)
        return cls(trained)

    def configure(self, config: dict[str, Any]) -> None:
        """Lower-casing and accents as `tokenizer_config.json` says, where `tokenizer.json` contradicts it.

        transformers does the same for the classes of BERT's tokenizer. Without an entry for lower case it lower-cases;
        here `tokenizer.json` decides then.
        """
        normalizer, lowercase = self.backend.normalizer, config.get("do_lower_case")
        is_bert = config.get("tokenizer_class") in BERT_CLASSES
        if lowercase is None or not is_bert or not isinstance(normalizer, normalizers.BertNormalizer):
            return
        accents, chinese = config.get("strip_accents"), config.get("tokenize_chinese_chars")
        chinese = True if chinese is None else chinese
        current = (normalizer.lowercase, normalizer.strip_accents, normalizer.handle_chinese_chars)
        if current != (lowercase, accents, chinese):
            self.backend.normalizer = normalizers.BertNormalizer(
                clean_text=normalizer.clean_text,
                handle_chinese_chars=chinese,
                strip_accents=accents,
                lowercase=lowercase,
            )

    def is_standard(self) -> bool:
        normalizer, before, model = self.parts("normalizer", "pre_tokenizer", "model")
        bert = isinstance(self.backend.normalizer, normalizers.BertNormalizer) and normalizer["clean_text"]
        rest = (model["continuing_subword_prefix"], model["max_input_chars_per_word"]) == (CONTINUES, MAX_WORD)
        return bert and rest and before == {"type": "BertPreTokenizer"}

    def normalizer_config(self) -> dict[str, Any]:
        normalizer = self.backend.normalizer
        if not isinstance(normalizer, normalizers.BertNormalizer) or not self.is_standard():
            return {}
        return {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }

    def fits(self, piece: str) -> bool:
        return len(self.normalize(piece)) <= getattr(self.backend.model, "max_input_chars_per_word", MAX_WORD)


def backend_of(vocab: dict[str, int], *, lowercase: bool) -> tokenizers.Tokenizer:
    unknown = WordPiece.default_special["unk"]
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token=unknown, max_input_chars_per_word=MAX_WORD))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def word_characters(texts: Iterable[str], backend: tokenizers.Tokenizer) -> tuple[Counter[str], set[str]]:
    """The frequency of each character within words, as the backend splits them, and those that continue a word."""
    pairs: Counter[tuple[str, str]] = Counter()  # each character with its predecessor: few distinct ones
    for text in texts:
        pairs.update(zip(" " + text, text, strict=False))

    def words(part: str) -> list[str]:
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(part))]

    counts: Counter[str] = Counter()
    continuing: set[str] = set()
    for (before, character), count in pairs.items():
        if alone := words(character):  # not a space
            counts.update(dict.fromkeys("".join(alone), count))
            continuing.update(words(before + character)[-1][1:])
    return counts, continuing


def frequent_characters(counts: Counter[str], *, most: int) -> list[str]:
    """The most frequent characters that cover all but 1 in 2,000 of a text; at least 1,000, else at most `most`."""
    ranked, total = counts.most_common(), COVERAGE * counts.total()
    before = itertools.accumulate((count for _, count in ranked), initial=0)
    needed = sum(covered < total for _, covered in zip(ranked, before, strict=False))
    return [character for character, _ in ranked[: max(1000, min(most, needed))]]
