"""Tokenizers: train on a corpus, save and load in the Hugging Face layout.

Three schemes, one for each family of encoders: WordPiece (BERT), byte-level BPE (GPT), and words spelled in
bytes (ELMo). `tokenizer.json` holds the tokenizer itself; `tokenizer_config.json` tells `transformers` which
class, special tokens and length go with it (without it a cased BERT would be lower-cased silently).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from typing_extensions import TypedDict

from pipeline.errors import UserError
from pipeline.storage.json_lines import repair_surrogates
from pipeline.storage.validation import read_json


@dataclass(frozen=True)
class Scheme:
    """What goes with a way of tokenising.

    Attributes:
        special: role -> special token. Roles: `pad`, `unk`, `cls`, `sep`, `mask`, `bos`, `eos`.
        keeps_spaces: whether the space before a sentence is part of its tokens.
        piece: characters at most into which an endless word is cut (see `parts_of`).
        hugging_face: entries of `tokenizer_config.json`.
    """

    special: dict[str, str]
    keeps_spaces: bool
    piece: int
    hugging_face: dict[str, Any]


LONGEST_WORD = 48  # bytes: longer ones are cut by character encoders, and counted
MAX_CHARACTERS = LONGEST_WORD + 2  # both marks included, as in the published models
LONGEST_PIECED = 100  # characters: WordPiece takes a longer word for unknown, as the original
END_OF_TEXT = "<|endoftext|>"
SCHEMES = {
    "wordpiece": Scheme(
        special={"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        keeps_spaces=False,
        piece=LONGEST_PIECED,
        hugging_face={
            "tokenizer_class": "BertTokenizer",
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
    ),
    "bpe": Scheme(
        special=dict.fromkeys(("bos", "eos", "unk", "pad"), END_OF_TEXT),
        keeps_spaces=True,
        piece=1000,
        hugging_face={
            "tokenizer_class": "GPT2Tokenizer",
            "add_prefix_space": False,
            "model_input_names": ["input_ids", "attention_mask"],
        },
    ),
    "words": Scheme(
        special={"pad": "[PAD]", "bos": "<S>", "eos": "</S>", "unk": "[UNK]"},
        keeps_spaces=False,
        piece=LONGEST_WORD,
        hugging_face={"tokenizer_class": "PreTrainedTokenizerFast"},
    ),
}
CONTINUES = "##"  # marks a piece that goes on with a word, in WordPiece and in spelled words
OUTPUT_WORD = "\u2581"  # marks the output words of the scheme `words`: entries that no text is tokenised into
FIRST_OUTPUT = 513  # 256 bytes that begin a word, 256 that go on, padding; then <S>, </S>, [UNK], words by rank


ENDLESS = 4_000  # characters: no word of a language is longer, but DNA, dashes or base64 in one line are
_WORD, _MARKS, _SPACES = (  # looked for where they begin alone, else time is by the square of those just shorter
    rf"(?<!{kind}){kind}{{{ENDLESS + 1},}}" for kind in (r"\w", r"[^\w\s]", r"\s")
)
_ENDLESS, _ENDLESS_SPACED = re.compile(f"{_WORD}|{_MARKS}"), re.compile(f"{_WORD}|{_MARKS}|{_SPACES}")


def _endless(text: str, scheme: str) -> Iterator[re.Match[str]]:
    """The endless words of a text; to byte-level BPE many spaces are one too, and `_` is a mark."""
    return _ENDLESS_SPACED.finditer(text.replace("_", "-")) if scheme == "bpe" else _ENDLESS.finditer(text)


def endless_words(text: str, scheme: str) -> int:
    """How many words of a text are cut into pieces before they are tokenised."""
    return sum(1 for _ in _endless(text, scheme)) if len(text) > ENDLESS else 0


def parts_of(text: str, scheme: str, fits: Callable[[str], bool] = lambda piece: True) -> list[str]:
    """A text in parts that are tokenised one by one: only endless words are cut, into pieces, and nothing is lost.

    Training takes time by the square of the longest word, and WordPiece and character encoders read only the
    beginning of a long one.

    Args:
        fits: whether a piece can be read whole; else it is halved.
    """
    if len(text) <= ENDLESS:
        return [text]

    def ends(low: int, high: int) -> Iterator[int]:
        if high - low == 1 or fits(text[low:high]):
            yield high
        else:
            middle = (low + high) // 2
            yield from ends(low, middle)
            yield from ends(middle, high)

    cuts, size = [0], SCHEMES[scheme].piece
    for word in _endless(text, scheme):
        for low in range(word.start(), word.end(), size):
            cuts += ends(low, min(low + size, word.end()))
        cuts.pop()  # the end of the word is no cut
    return [text[low:high] for low, high in itertools.pairwise([*cuts, len(text)])]


class Tokenizer:
    """A `tokenizers.Tokenizer` with what training needs: ids of special tokens, a hash, which pieces continue a word.

    Args:
        backend: the tokenizer; truncation and padding in it are switched off.
        scheme: `wordpiece`, `bpe` or `words`.
        special: role -> token, where they differ from the scheme's.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, scheme: str, special: dict[str, str] | None = None) -> None:
        # A tokenizer.json made by others may cut at 128 pieces, say: no text may be lost in silence.
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.scheme = backend, scheme
        self.special = special or SCHEMES[scheme].special
        self.file: Path | None = None  # where it is from, for messages

    def __len__(self) -> int:
        """V: one more than the largest token id, added tokens included."""
        return self._length

    @cached_property
    def _length(self) -> int:
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id(self, role: str) -> int:
        """The id of a special token by its role, as `tokenizer.id("mask")`."""
        index = self.backend.token_to_id(self.special[role])
        assert index is not None  # load() and the trainer see to it
        return index

    @property
    def keeps_spaces(self) -> bool:
        return SCHEMES[self.scheme].keeps_spaces

    @property
    def spells(self) -> bool:
        """Whether tokens are the bytes of words: id mod 256 is the byte, below 256 it begins a word."""
        return self.scheme == "words"

    @property
    def special_ids(self) -> list[int]:
        return sorted({self.id(role) for role in self.special})

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
            flags[index] = piece.startswith(CONTINUES) and piece not in self.special.values()
        return flags

    @cached_property
    def outputs(self) -> dict[bytes, int]:
        """Scheme `words`: word in UTF-8 -> its class in the softmax; 0, 1 and 2 are <S>, </S> and [UNK]."""
        return {
            piece[1:].encode(): index - FIRST_OUTPUT
            for piece, index in self.backend.get_vocab().items()
            if piece.startswith(OUTPUT_WORD) and index > FIRST_OUTPUT
        }

    @cached_property
    def spelling_nats(self) -> np.ndarray:
        """(257,) nats of each byte, and of the end of a word, by their frequency in the list of output words.

        What an unknown word costs on top of the probability of [UNK], so that a small vocabulary does not pay.
        """
        counts = np.bincount(np.frombuffer(b"".join(self.outputs), dtype=np.uint8), minlength=257) + 1
        counts[256] += len(self.outputs)
        return -np.log(counts / counts.sum())

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without special tokens, each text by itself; half a character alone is read as U+FFFD.

        Raises:
            UserError: an expression in someone's tokenizer.json takes too long.
        """
        try:
            return self._encode(texts)
        except TypeError:  # the library takes no half of a character
            return self._encode([repair_surrogates(text) for text in texts])

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [parts_of(text, self.scheme, self._fits) for text in texts]
        with no_panic(self.file):
            found = self.backend.encode_batch_fast(list(itertools.chain(*parts)), add_special_tokens=False)
        ids = (encoding.ids for encoding in found)
        return [next(ids) if len(one) == 1 else [index for _ in one for index in next(ids)] for one in parts]

    def _fits(self, piece: str) -> bool:
        """Whether a piece of a word is no longer than what the scheme reads of one, once it is normalised."""
        if self.scheme == "bpe":
            return True
        normal = self.backend.normalizer
        plain = piece if normal is None else normal.normalize_str(piece)
        if self.spells:
            return len(plain.encode()) <= LONGEST_WORD
        return len(plain) <= getattr(self.backend.model, "max_input_chars_per_word", LONGEST_PIECED)

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_batch`, of texts that are no one's prompts: a `[MASK]` in them is six characters, not a mask."""
        self.backend.encode_special_tokens = True
        try:
            return self.encode_batch(texts)
        finally:
            self.backend.encode_special_tokens = False

    def decode(self, ids: Iterable[int]) -> str:
        return self.backend.decode(list(ids))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of each word of a sentence that is split into words already; every word has at least one."""
        if self.spells:  # no further split: a word is what the caller says
            words, normal = [repair_surrogates(word) for word in words], self.backend.normalizer
            plain = words if normal is None else [normal.normalize_str(word).replace(" ", "") for word in words]
            return [_spell(word.encode()) for word in plain]
        if self.keeps_spaces:
            words = [f" {word}" if number else word or " " for number, word in enumerate(words)]
        unknown = [] if self.keeps_spaces else [self.id("unk")]  # a word of marks that the tokenizer drops
        return [ids or unknown for ids in self.encode_batch(words)]

    def save(self, folder: Path, *, max_length: int) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json` for `transformers.AutoTokenizer`."""
        self.backend.save(str(folder / "tokenizer.json"))
        config: dict[str, Any] = {
            **SCHEMES[self.scheme].hugging_face,
            "model_max_length": max_length,
            "padding_side": "right",
            **{f"{role}_token": token for role, token in self.special.items()},
        }
        normal = self.backend.normalizer
        if self.scheme == "wordpiece" and isinstance(normal, normalizers.BertNormalizer):
            config |= {"do_lower_case": normal.lowercase, "strip_accents": normal.strip_accents}
            config["tokenize_chinese_chars"] = normal.handle_chinese_chars
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def train(scheme: str, texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Tokenizer:
    """A tokenizer of a scheme, trained on `texts`.

    Raises:
        UserError: an option that the scheme does not have.
    """
    texts = (part for text in texts for part in parts_of(text, scheme))
    if scheme == "wordpiece":
        return train_wordpiece(texts, vocab_size=vocab_size, lowercase=lowercase)
    if lowercase and scheme == "bpe":
        raise UserError("data.tokenizer.lowercase does not go with bpe, which loses nothing of the text.")
    return (
        train_bpe(texts, vocab_size=vocab_size)
        if scheme == "bpe"
        else train_words(texts, vocab_size=vocab_size, lowercase=lowercase)
    )


def train_wordpiece(texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Tokenizer:
    """WordPiece with BERT's normalisation (Devlin et al. 2018; Wu et al. 2016), trained on `texts`.

    The same texts give the same pieces. The library's trainer breaks ties by the ids of single characters, and those
    that go on with a word get theirs in the random order of a hash table. So they are given theirs beforehand, as
    special tokens; the tokenizer is made anew from the pieces, where they are ordinary ones.
    """
    special, texts = list(SCHEMES["wordpiece"].special.values()), list(texts)
    backend = _wordpiece({}, lowercase=lowercase)
    counts, going_on = word_characters(texts, backend)
    characters = frequent_characters(counts, most=vocab_size // 2)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special, *(CONTINUES + character for character in characters if character in going_on)],
        continuing_subword_prefix=CONTINUES,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    trained = _wordpiece(backend.get_vocab(), lowercase=lowercase)
    trained.add_special_tokens(special)
    return _with_template(trained, SCHEMES["wordpiece"].special)


def _wordpiece(vocab: dict[str, int], *, lowercase: bool) -> tokenizers.Tokenizer:
    unknown = SCHEMES["wordpiece"].special["unk"]
    backend = tokenizers.Tokenizer(
        models.WordPiece(vocab=vocab, unk_token=unknown, max_input_chars_per_word=LONGEST_PIECED)
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def word_characters(texts: Iterable[str], backend: tokenizers.Tokenizer) -> tuple[Counter[str], set[str]]:
    """How often each character is in a word, and those that are not only the first: as the backend makes words."""
    pairs: Counter[tuple[str, str]] = Counter()  # each character and the one before: few distinct ones
    for text in texts:
        pairs.update(zip(" " + text, text, strict=False))

    def words(part: str) -> list[str]:
        return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(part))]

    counts: Counter[str] = Counter()
    going_on: set[str] = set()
    for (before, character), count in pairs.items():
        if alone := words(character):  # not a space
            counts.update(dict.fromkeys("".join(alone), count))
            going_on.update(words(before + character)[-1][1:])
    return counts, going_on


COVERED = 0.9995  # of the characters of a text (SentencePiece's character coverage)


def frequent_characters(counts: Counter[str], *, most: int) -> list[str]:
    """The most frequent characters, which make up all but 1 in 2,000 of a text; at least 1,000, else at most `most`."""
    ranked, total = counts.most_common(), COVERED * counts.total()
    before = itertools.accumulate((count for _, count in ranked), initial=0)
    needed = sum(covered < total for _, covered in zip(ranked, before, strict=False))
    return [character for character, _ in ranked[: max(1000, min(most, needed))]]


def train_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Byte-level BPE (Radford et al. 2019, 2.2): loses nothing of the text, knows every character."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator((f" {text}" for text in texts), trainer=trainer)  # most sentences follow a space
    return Tokenizer(backend, scheme="bpe")


def train_words(texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Tokenizer:
    """Words spelled in bytes, and the list of the most frequent ones, to be predicted (Peters et al. 2018).

    Any word can be read; only the `vocab_size` most frequent ones are outputs of the softmax.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    counter = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    counter.normalizer, counter.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    counter.train_from_iterator(texts, trainer=trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False))
    ranked = sorted(counter.get_vocab(), key=counter.get_vocab().__getitem__)
    return words_tokenizer([word for word in ranked if len(word.encode()) <= LONGEST_WORD], normalizer)


def words_tokenizer(words: Sequence[str], normalizer: Any = None) -> Tokenizer:
    """The tokenizer of scheme `words` with these output words, the most frequent first."""
    characters = _byte_characters()
    pieces = [*characters, *(CONTINUES + character for character in characters)]
    pieces += SCHEMES["words"].special.values()
    pieces += [OUTPUT_WORD + word for word in words]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    # BPE without merges: the vocabulary's single characters, of which all but a word's first carry the mark.
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], continuing_subword_prefix=CONTINUES))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return Tokenizer(backend, scheme="words")


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level tokenizers (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _spell(word: bytes) -> list[int]:
    return [byte + 256 * (position > 0) for position, byte in enumerate(word or b"?")]


def _with_template(backend: tokenizers.Tokenizer, special: dict[str, str]) -> Tokenizer:
    cls, sep = special["cls"], special["sep"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (cls, sep)],
    )
    return Tokenizer(backend, scheme="wordpiece", special=special)


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
    """What of `tokenizer_config.json` is read."""

    tokenizer_class: str | None
    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None


class _Ends(TypedDict, total=False):
    """What of the encoder's `config.json` is read."""

    eos_token_id: int | list[int] | None


def load(path: Path) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, or from the encoder folder that holds it.

    Raises:
        UserError: no such file, damaged, or a special token of its scheme is missing.
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
    scheme = _scheme_of(backend)
    config = _beside(file, "tokenizer_config.json", _Config)
    special = _special_tokens(file, backend, scheme, config)
    if missing := [token for token in special.values() if backend.token_to_id(token) is None]:
        raise UserError(f"{file} lacks the special token {missing[0]}, which a {scheme} tokenizer needs.")
    if scheme == "wordpiece":
        _normalise_as(backend, config)
        tokenizer = _with_template(backend, special)
    else:
        tokenizer = Tokenizer(backend, scheme=scheme, special=special)
    tokenizer.file = file
    return tokenizer


def _beside(file: Path, name: str, kind: Any) -> dict[str, Any]:
    """The content of another file of a tokenizer's folder, empty where there is none."""
    other = file.with_name(name)
    return read_json(other, kind) if other.is_file() else {}


def _special_tokens(file: Path, backend: tokenizers.Tokenizer, scheme: str, config: dict[str, Any]) -> dict[str, str]:
    """Role -> token: as the folder names it, else as the scheme does. What GPT never needs is its end of text."""
    given = {}
    for named in (_beside(file, "special_tokens_map.json", _Special), config):  # the last one counts
        for role in SCHEMES[scheme].special:
            if token := named.get(f"{role}_token"):
                given[role] = token["content"] if isinstance(token, dict) else token
    default = SCHEMES[scheme].special
    if scheme == "bpe":
        end = given.get("eos", END_OF_TEXT)
        if backend.token_to_id(end) is None and "eos" not in given:  # transformers' models go by the number then
            ids = _beside(file, "config.json", _Ends).get("eos_token_id")
            end = backend.id_to_token(ids) if isinstance(ids, int) and ids >= 0 else None
            end = end or given.get("bos", END_OF_TEXT)
        default = {role: token if backend.token_to_id(token) is not None else end for role, token in default.items()}
        default["eos"] = end
    return {**default, **given}


def _normalise_as(backend: tokenizers.Tokenizer, config: dict[str, Any]) -> None:
    """Letters are made small, and accents cut, as `tokenizer_config.json` says where tokenizer.json contradicts it.

    So does transformers for the classes of BERT's tokenizer; what is not said there has its defaults.
    """
    normal, lowercase = backend.normalizer, config.get("do_lower_case")
    is_bert = config.get("tokenizer_class") in (None, "BertTokenizer", "BertTokenizerFast")
    if lowercase is None or not is_bert or not isinstance(normal, normalizers.BertNormalizer):
        return
    accents, chinese = config.get("strip_accents"), config.get("tokenize_chinese_chars")
    chinese = True if chinese is None else chinese
    if (normal.lowercase, normal.strip_accents, normal.handle_chinese_chars) != (lowercase, accents, chinese):
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=normal.clean_text,
            handle_chinese_chars=chinese,
            strip_accents=accents,
            lowercase=lowercase,
        )


@contextlib.contextmanager
def no_panic(file: Path | None) -> Iterator[None]:
    """A tokenizer.json can hold a regular expression that never ends: its library gives up, by a panic.

    Raises:
        UserError: it did; names the file.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # not an Exception, and nothing to import it from
            raise
        raise UserError(
            f"{file or 'The tokenizer'} cannot tokenise this text: a regular expression in it takes too long ({error})."
        ) from None


def _scheme_of(backend: tokenizers.Tokenizer) -> str:
    model = backend.model
    if isinstance(model, models.BPE):
        return "words" if model.continuing_subword_prefix else "bpe"
    return "wordpiece"
