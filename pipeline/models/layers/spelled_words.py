"""Batches of spelled words, in which each distinct word is spelled once, and their classes in the softmax.

Shapes: B rows, T positions (words), W distinct words of a batch, C characters of a word.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pipeline.models.layers.char_cnn import BEGIN, END, spell

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
