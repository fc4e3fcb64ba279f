"""Files of word vectors as text, the format of word2vec, GloVe and fastText: a word and its numbers on each line.

Word2vec and fastText have a first line with the number of words and of numbers, GloVe has none.

Shapes: V words, m numbers of each.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import normalizers
from torch import Tensor

from pipeline.data.files import BROKEN, COMPRESSIONS
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.cbow import Cbow
from pipeline.tokenization.base import PARTIAL
from pipeline.tokenization.wordpiece import WordPiece, backend_of

FEW_CAPITALS = 0.01  # of the words: names of special tokens
WINDOW, LONGEST_TEXT = 5, 512  # of an encoder with such vectors: of word2vec; tokens


def as_text(encoder: Encoder) -> Iterator[str]:
    """The vectors of an encoder's tokens as the lines of a word2vec file, without special ones and those with spaces.

    Of tokens that hold the space before a word those that begin one, as words.

    Raises:
        UserError: it has no vector for each token.
    """
    if encoder.token_embedding is None:
        raise UserError(f"A {encoder.model_type} has no table with a vector for each token.")
    names = {index: name for index in encoder.tokenizer.ordinary_ids.tolist() if (name := _name_of(encoder, index))}
    vectors = encoder.token_embedding.weight.detach().float().cpu()
    yield f"{len(names)} {vectors.shape[1]}\n"
    for index, name in names.items():
        yield f"{name} {' '.join(f'{number:.6g}' for number in vectors[index].tolist())}\n"


def _name_of(encoder: Encoder, index: int) -> str | None:
    """What a token is called in a file of words; None: it is none."""
    if not encoder.tokenizer.keeps_spaces:
        name = str(encoder.tokenizer.backend.id_to_token(index))
    elif (text := encoder.tokenizer.decode([index])).startswith(" ") and PARTIAL not in text:
        name = text[1:]
    else:
        return None
    return None if not name or any(map(str.isspace, name)) else name


def read(path: Path, *, most: int) -> tuple[list[str], Tensor]:
    """The first words of a file, at most so many, and their vectors (V, m). Of a word that comes twice, the first.

    Raises:
        UserError: no such file, another format, or fewer words than its first line says.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path} with word vectors.")
    words: dict[str, int] = {}
    rows: list[np.ndarray] = []
    with _lines(path) as lines:
        first = next(lines, "")
        parts = first.split()
        header = len(parts) == 2 and all(part.isdecimal() for part in parts)
        size = int(parts[1]) if header else len(first.rstrip().split(" ")) - 1
        if size < 1:
            raise UserError(f"{path} has no word vectors: a word and its numbers on each line.")
        texts: Iterator[str] = itertools.chain([first], lines)
        if header:
            begin = [line for line in (next(lines, ""), next(lines, "")) if line]
            _check_size(begin, size, path)
            texts = itertools.chain(begin, lines)
        found = 0
        for number, line in enumerate(texts, 2 if header else 1):
            if len(words) == most:
                break
            if not line.strip():  # as at the end
                continue
            word, vector = _split(line, size, where=f"Line {number:,} of {path}")
            found += 1
            if word not in words:
                words[word] = len(words)
                rows.append(vector)
        if header and words and len(words) < most and found < int(parts[0]):
            raise UserError(f"{path} is not whole: it has {found:,} of the {int(parts[0]):,} words of its first line.")
    if not words:
        raise UserError(f"{path} has no word vectors.")
    return list(words), torch.from_numpy(np.stack(rows))


def _check_size(begin: Sequence[str], size: int, path: Path) -> None:
    """Raises: UserError, the first words have more numbers than the header says; one may be a number with a space."""
    extra, *others = [line.rstrip().split(" ")[1:-size] for line in begin] or [[]]
    if any(len(other) != len(extra) for other in others):
        return
    with contextlib.suppress(ValueError):
        if extra and all(math.isfinite(float(part)) for part in extra):
            raise UserError(
                f"The header of {path} says {size:,} numbers, and its first word has {size + len(extra):,}."
            )


def _split(line: str, size: int, *, where: str) -> tuple[str, np.ndarray]:
    """A word, which may have spaces (GloVe of 840 B words), and its numbers."""
    word, *numbers = line.rstrip().rsplit(" ", size)
    try:
        vector = np.array(numbers, dtype=np.float32)
    except ValueError:
        vector = np.zeros(0, dtype=np.float32)
    if len(vector) != size or not word or not math.isfinite(float(vector.sum())):
        raise UserError(f"{where} is not a word and {size:,} numbers.")
    return word, vector


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    try:
        with COMPRESSIONS.get(path.suffix, open)(path, "rt", encoding="utf-8-sig") as file:
            yield (line.replace("\t", " ") for line in file)
    except UnicodeDecodeError:
        raise UserError(f"{path} is no text in UTF-8: word2vec's binary format is not read.") from None
    except BROKEN:
        raise UserError(f"{path} is damaged: it cannot be decompressed.") from None


def encoder_of(words: list[str], vectors: Tensor) -> Cbow:
    """An encoder with these vectors (V, m). Unknown words have their mean; it has no output layer.

    Texts are split as BERT's are, at spaces and punctuation. They are read in lower case where hardly any
    word has a capital, as `UNK` alone.
    """
    special = [*WordPiece.default_special.values()]
    pieces = [*special, *(word for word in words if word not in special)]
    lowercase = sum(word != word.lower() for word in words) <= FEW_CAPITALS * len(words)
    backend = backend_of({piece: index for index, piece in enumerate(pieces)}, lowercase=lowercase)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
    backend.add_special_tokens(special)
    tokenizer = WordPiece(backend)
    cbow = Cbow(tokenizer, embedding_size=vectors.shape[1], window=WINDOW, max_length=LONGEST_TEXT, dropout=0.0)
    places = torch.tensor([tokenizer.backend.token_to_id(word) for word in words])
    with torch.no_grad():
        table = cbow.embedding.weight
        table[tokenizer.special_ids] = 0.0
        table[tokenizer.id("unk")] = vectors.mean(0)
        table[places] = vectors
    cbow.untrained = frozenset(name for name in cbow.export_state() if name.startswith(cbow.pretraining_tensors))
    return cbow


def readable(encoder: Encoder, words: list[str]) -> int:
    """How many of the words a text can have: of others, as `New_York`, the tokenizer makes several tokens."""
    ids = encoder.tokenizer.encode_batch(words)
    known = encoder.tokenizer.backend.token_to_id
    return sum(len(tokens) == 1 and tokens[0] == known(word) for word, tokens in zip(words, ids, strict=True))
