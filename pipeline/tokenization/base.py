"""A tokenizer: a `tokenizers.Tokenizer` with the ids of special tokens, a hash, and saving in the Hugging Face layout.

Each scheme is a subclass in its own file. `tokenizer.json` holds the tokenizer; `tokenizer_config.json` names its
class, special tokens and maximum length for `transformers` (without it a cased BERT would be lower-cased silently).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers

from pipeline.errors import UserError
from pipeline.storage.json_lines import repair_surrogates
from pipeline.tokenization.overlong_words import count_overlong, split_overlong

CONTINUES = "##"  # prefix of a piece that continues a word, in WordPiece and in spelled words
Place = tuple[int, int]  # the first character of a token, and the one behind its last
PARTIAL = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for a part of a character


def printable(text: str) -> str:
    """A text without control characters, which a model of bytes may write: no font and no page has them."""
    return "".join(char if char.isprintable() or char in "\n\t" else PARTIAL for char in text)


class Tokenizer:
    """Text -> token ids, by one scheme.

    Args:
        backend: the library's tokenizer; its truncation and padding are switched off.
        special: role -> special token, where they differ from the scheme's.

    Attributes:
        scheme: name of the scheme: `wordpiece`, `bpe`, `bpe-seq2seq`, `words` or `whole-words`.
        special: role -> special token. Roles: `pad`, `unk`, `cls`, `sep`, `mask`, `bos`, `eos`.
        keeps_spaces: whether the space before a sentence is part of its tokens.
        spells: whether tokens are the bytes of words: id mod 256 is the byte, below 256 it begins a word.
        generative: whether its tokens are what a causal model predicts, and `eos` ends a text.
        options: what `train` takes besides, by its names under `data.tokenizer`.
        longest_piece: characters of a piece of an overlong word, at most (see overlong_words.py).
        hugging_face: entries of `tokenizer_config.json`, as long as `is_standard`.
        file: the file that it was loaded from, for messages.
    """

    scheme: ClassVar[str]
    default_special: ClassVar[dict[str, str]]
    keeps_spaces: ClassVar[bool] = False
    spells: ClassVar[bool] = False
    generative: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()
    longest_piece: ClassVar[int]
    hugging_face: ClassVar[dict[str, Any]]

    def __init__(self, backend: tokenizers.Tokenizer, special: dict[str, str] | None = None) -> None:
        # A downloaded tokenizer.json may truncate, at 128 pieces for instance: no text may be lost silently.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special = special or self.default_special
        self.file: Path | None = None

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, lowercase: bool) -> Self:
        """Trains a tokenizer.

        Args:
            vocab_size: V, at most; more where the special tokens and the characters (or bytes) of the text need more.
            lowercase: lower-case the text and strip accents.

        Raises:
            UserError: the scheme does not have an option.
        """
        raise NotImplementedError

    @classmethod
    def special_of(
        cls, backend: tokenizers.Tokenizer, named: dict[str, str], end_id: Callable[[], Any]
    ) -> dict[str, str]:
        """Role -> special token of a loaded tokenizer.

        Args:
            named: those that its folder names.
            end_id: reads `eos_token_id` in the folder's `config.json`.
        """
        return {**cls.default_special, **named}

    def configure(self, config: dict[str, Any]) -> None:
        """Applies the entries of `tokenizer_config.json` that take precedence over `tokenizer.json`."""

    # ------------------------------------------------------------------ vocabulary

    def __len__(self) -> int:
        """V: one more than the largest token id, added tokens included."""
        return self._length

    @cached_property
    def _length(self) -> int:
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def id(self, role: str) -> int:
        """The id of a special token by its role, as in `tokenizer.id("mask")`."""
        index = self.backend.token_to_id(self.special[role])
        assert index is not None  # checked by registry.load, made by train
        return index

    @property
    def special_ids(self) -> list[int]:
        return sorted({self.id(role) for role in self.special})

    @property
    def languages(self) -> dict[str, int]:
        """The tokens of languages -> their ids."""
        return {}

    @property
    def language_names(self) -> list[str]:
        """Languages as `data.tokenizer.languages` has them: en of <en>, and en_XX."""
        return [token.strip("<>") for token in self.languages]

    @property
    def sentinels(self) -> list[int]:
        """The ids of tokens that stand for hidden spans, in their order."""
        return []

    def language_id(self, language: str) -> int:
        """The id of a language's token: of <en> or of en_XX for en.

        Raises:
            UserError: the tokenizer has no such token.
        """
        known = self.languages
        for token, index in known.items():
            if language in (token, token.strip("<>"), token.partition("_")[0]):
                return index
        have = f"it has {', '.join(known)}" if known else "it has none: data.tokenizer.languages makes them"
        raise UserError(f"The tokenizer has no token for the language '{language}'; {have}.")

    @cached_property
    def ordinary_ids(self) -> np.ndarray:
        """(n,): all ids but those of special tokens: random replacements are drawn from these."""
        return np.setdiff1d(np.arange(len(self)), self.special_ids)

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.backend.to_str().encode()).hexdigest()

    def reads_as(self, other: Tokenizer) -> bool:
        """Whether a text has the same ids in the other, whatever tokens transformers is to put around it."""
        ours, theirs = (json.loads(one.backend.to_str()) | {"post_processor": None} for one in (self, other))
        for one in (ours, theirs):  # transformers saves what is not set as empty
            one["model"] = {name: value for name, value in one["model"].items() if value not in (None, "")}
        return ours == theirs

    @cached_property
    def continues_word(self) -> np.ndarray:
        """(V,) bool: whether a piece continues a word (`##ing`)."""
        flags = np.zeros(len(self), dtype=bool)
        for piece, index in self.backend.get_vocab().items():
            flags[index] = piece.startswith(CONTINUES) and piece not in self.special.values()
        return flags

    @cached_property
    def outputs(self) -> dict[bytes, int]:
        """Words to predict, where tokens are no classes: word in UTF-8 -> its class in the softmax."""
        return {}

    @cached_property
    def spelling_nats(self) -> np.ndarray:
        """(257,) cost in nats of each byte, and of the end, of a word that cannot be predicted by name."""
        raise NotImplementedError

    def unknown_nats(self, text: str, ids: Sequence[int]) -> float:
        """Nats of spelling the words of a text that are [UNK] among its tokens, where bits per byte are to add them."""
        return 0.0

    # ------------------------------------------------------------------ encoding

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens; a lone surrogate is read as U+FFFD.

        Raises:
            UserError: a regular expression of a downloaded tokenizer.json takes too long.
        """
        return self._encode(self.backend, texts)

    def encode_placed(self, texts: Sequence[str]) -> list[tuple[list[int], list[Place]]]:
        """As `encode_batch`, with the place of each token in its text."""
        parts = [self.parts_of(repair_surrogates(text), self.fits) for text in texts]
        with no_panic(self.file):
            encodings = iter(self.backend.encode_batch(list(itertools.chain(*parts)), add_special_tokens=False))
        result: list[tuple[list[int], list[Place]]] = []
        for one in parts:
            ids, places, begin = [], [], 0
            for part in one:
                encoding = next(encodings)
                ids += encoding.ids
                places += [(begin + first, begin + last) for first, last in encoding.offsets]
                begin += len(part)
            result.append((ids, places))
        return result

    def encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_batch`, of texts of a corpus: a `[MASK]` in them is six characters, not a mask."""
        return self._encode(self._plain_backend, texts)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """A second backend: switching the first one to and fro would not be safe while another thread encodes."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend

    def _encode(self, backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        try:
            return self._encode_parts(backend, texts)
        except TypeError:  # the library refuses lone surrogates
            return self._encode_parts(backend, [repair_surrogates(text) for text in texts])

    def _encode_parts(self, backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        parts = [self.parts_of(text, self.fits) for text in texts]
        with no_panic(self.file):
            encodings = backend.encode_batch_fast(list(itertools.chain(*parts)), add_special_tokens=False)
        ids = (encoding.ids for encoding in encodings)
        return [next(ids) if len(one) == 1 else [index for _ in one for index in next(ids)] for one in parts]

    @classmethod
    def parts_of(cls, text: str, fits: Callable[[str], bool] = lambda piece: True) -> list[str]:
        """A text in parts that are tokenized one by one: only overlong words are cut (see `split_overlong`)."""
        return split_overlong(text, longest=cls.longest_piece, spaces=cls.keeps_spaces, fits=fits)

    @classmethod
    def overlong_words(cls, text: str) -> int:
        """The number of words of a text that are cut into pieces before they are tokenized."""
        return count_overlong(text, spaces=cls.keeps_spaces)

    def fits(self, piece: str) -> bool:
        """Whether a piece of an overlong word, once it is normalized, is short enough to be read whole."""
        return True

    def normalize(self, text: str) -> str:
        normalizer = self.backend.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self.backend.decode(list(ids))

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Token ids of each word of a sentence that is split into words already, at least one each."""
        unknown = [self.id("unk")]  # a word of characters that the normalizer removes
        return [ids or unknown for ids in self.encode_batch(words)]

    # ------------------------------------------------------------------ saving

    def save(self, folder: Path, *, max_length: int) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json` for `transformers.AutoTokenizer`."""
        self.backend.save(str(folder / "tokenizer.json"))
        self.save_config(folder, max_length=max_length)

    def save_config(self, folder: Path, *, max_length: int, **more: Any) -> None:
        """Writes `tokenizer_config.json`, with further entries."""
        config: dict[str, Any] = {
            **(self.hugging_face if self.is_standard() else self.any_class()),
            "model_max_length": max_length,
            "padding_side": "right",
            **{f"{role}_token": token for role, token in self.special.items()},
            **self.normalizer_config(),
            **more,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    def save_with_ends(self, folder: Path, *, begin: Sequence[int], between: Sequence[int], end: Sequence[int]) -> None:
        """Writes a `tokenizer.json` that has transformers put these tokens around a text and between two of them."""
        if self.backend.encode("").ids == [*begin, *end]:
            return  # it does so already
        name = self.backend.id_to_token
        first, middle, last = ([str(name(index)) for index in ids] for ids in (begin, between, end))
        copy = tokenizers.Tokenizer.from_str(self.backend.to_str())
        copy.post_processor = tokenizers.processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *middle, "$B", *last],
            special_tokens=[(str(name(index)), index) for index in sorted({*begin, *between, *end})],
        )
        copy.save(str(folder / "tokenizer.json"))

    def is_standard(self) -> bool:
        """Whether the class of transformers that `hugging_face` names, which makes a tokenizer of its own from the
        vocabulary, cuts texts as this one does."""
        return True

    def any_class(self) -> dict[str, Any]:
        """Entries of `tokenizer_config.json` for a class that takes all of `tokenizer.json`."""
        names = self.hugging_face.get("model_input_names")
        return {"tokenizer_class": "PreTrainedTokenizerFast", **({"model_input_names": names} if names else {})}

    def parts(self, *names: str) -> list[Any]:
        """Parts of `tokenizer.json`, as `normalizer`."""
        content = json.loads(self.backend.to_str())
        return [content[name] for name in names]

    def normalizer_config(self) -> dict[str, Any]:
        """Entries of `tokenizer_config.json` that repeat the normalizer of `tokenizer.json`."""
        return {}


@contextlib.contextmanager
def no_panic(file: Path | None) -> Iterator[None]:
    """A downloaded tokenizer.json can hold a regular expression that takes exponential time: the library panics.

    Raises:
        UserError: it did; names the file.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # not an Exception, and cannot be imported
            raise
        raise UserError(
            f"{file or 'The tokenizer'} cannot tokenize this text: a regular expression in it takes too long ({error})."
        ) from None
