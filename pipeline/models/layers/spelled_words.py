"""Words as characters: ids of the published ELMo models, and batches of words that spell each distinct word once.

Shapes: B rows, T positions (words), W distinct words of a batch, C characters of a word.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# Character ids of the published models: bytes are 0 to 255; all are raised by one, 0 masks.
TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING, CHARACTERS = 256, 257, 258, 259, 260, 261
BEGIN, END = b"\x00<S>", b"\x00</S>"  # in place of a word: marks of the begin and end of a sentence
WIDEST = 7  # characters: the widest convolution that was published
UNKNOWN = 2  # its class in the softmax; 0 and 1 are the two marks


def collate_words(rows: list[list[bytes]], outputs: dict[bytes, int], *, max_characters: int) -> dict[str, Tensor]:
    """Rows of words -> characters of the distinct words, which row and place has which, and their classes."""
    distinct: dict[bytes, int] = {}
    length = max(map(len, rows))
    words = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros(words.shape, dtype=bool)
    for number, row in enumerate(rows):
        words[number, : len(row)] = [distinct.setdefault(word, len(distinct)) for word in row]
        mask[number, : len(row)] = True
    known = np.array([output_class(word, outputs) for word in distinct])
    return {
        "characters": torch.from_numpy(spell(list(distinct), max_characters)),
        "words": torch.from_numpy(words),
        "mask": torch.from_numpy(mask),
        "input_ids": torch.from_numpy(np.where(mask, known[words], 0)),
    }


def output_class(word: bytes, outputs: dict[bytes, int]) -> int:
    return 0 if word == BEGIN else 1 if word == END else outputs.get(word, UNKNOWN)


def spell(words: list[bytes], max_characters: int) -> np.ndarray:
    """Character ids (W, C) as the published models have them: marks of begin and end, padding, all raised by one.

    C is as short as leaves one place where every convolution sees only padding, which is enough: the maximum
    over more such places is the same.
    """
    bodies = [word[: max_characters - 2] for word in words]
    sizes = np.array([1 if word in (BEGIN, END) else len(word) for word in bodies])
    width = min(max_characters, int(sizes.max()) + 2 + WIDEST)
    ids = np.full((len(words), width), PADDING, dtype=np.int64)
    ids[:, 0] = WORD_BEGIN
    ids[np.arange(len(words)), sizes + 1] = WORD_END
    for number, word in enumerate(words):
        if word in (BEGIN, END):
            ids[number, 1] = TEXT_BEGIN if word == BEGIN else TEXT_END
    plain = np.array([number for number, word in enumerate(words) if word not in (BEGIN, END)], dtype=np.int64)
    if len(plain):
        text = np.frombuffer(b"".join(bodies[i] for i in plain), dtype=np.uint8)
        begins = np.concatenate([[0], np.cumsum(sizes[plain])[:-1]])
        row = np.repeat(plain, sizes[plain])
        ids[row, 1 + np.arange(len(text)) - np.repeat(begins, sizes[plain])] = text
    return ids + 1
