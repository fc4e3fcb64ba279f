"""Words from their characters: ids of characters, convolutions, highways, projection (Kim et al. 2016).

Shapes: W distinct words of a batch, C characters of a word, P projection.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

# Character ids of the published models: bytes are 0 to 255; all are raised by one, 0 masks.
TEXT_BEGIN, TEXT_END, WORD_BEGIN, WORD_END, PADDING, CHARACTERS = 256, 257, 258, 259, 260, 261
BEGIN, END = b"\x00<S>", b"\x00</S>"  # in place of a word: marks of the begin and end of a sentence
WIDEST = 7  # characters: the widest convolution that was published


class CharacterEncoder(nn.Module):
    """Characters of a word -> its vector: convolutions, maximum over places, highways, projection (Kim et al. 2016).

    Args:
        character_size: width of the embedding of a character.
        filters: [[width, count], ...].
        highways: number of highway layers.
        projection: P.
        activation: of the convolutions.
    """

    def __init__(
        self, *, character_size: int, filters: list[list[int]], highways: int, projection: int, activation: str
    ) -> None:
        super().__init__()
        size = sum(count for _, count in filters)
        self.activation = torch.relu if activation == "relu" else torch.tanh
        self.embedding = nn.Embedding(CHARACTERS + 1, character_size, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(character_size, count, width) for width, count in filters)
        self.highways = nn.ModuleList(nn.Linear(size, 2 * size) for _ in range(highways))
        self.project = nn.Linear(size, projection)
        nn.init.uniform_(self.embedding.weight, -1, 1)
        with torch.no_grad():
            self.embedding.weight[0] = 0
            for highway in self.highways:
                assert isinstance(highway, nn.Linear)
                nn.init.normal_(highway.weight, std=math.sqrt(1 / size))
                nn.init.zeros_(highway.bias)
                highway.bias[size:] = -2.0  # at first a highway lets most of its input through

    def forward(self, characters: Tensor) -> Tensor:
        """(W, C) -> (W, P)."""
        x = self.embedding(characters).transpose(1, 2)
        # The activations rise, so the maximum may come first, and they see a fraction of the values.
        x = self.activation(torch.cat([convolution(x).amax(-1) for convolution in self.convolutions], -1))
        for highway in self.highways:
            new, gate = highway(x).chunk(2, -1)
            x = x + torch.sigmoid(gate) * (torch.relu(new) - x)
        return self.project(x)


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
