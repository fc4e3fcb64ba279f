"""Keys and values that hypotheses share, against those of each row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.models.generation import select
from pipeline.models.layers.attention import attention
from pipeline.models.layers.dropout import Dropout
from pipeline.models.layers.key_values import KeyValues

HEADS, WIDTH, BLOCKS = 2, 4, 2


class Alone:
    """Each row with what it has seen, by concatenation."""

    def __init__(self, rows: int) -> None:
        self.keys = [[torch.zeros(rows, HEADS, 0, WIDTH)] * 2 for _ in range(BLOCKS)]

    def extend(self, block: int, *new: Tensor) -> list[Tensor]:
        self.keys[block] = [torch.cat(pair, 2) for pair in zip(self.keys[block], new, strict=True)]
        return self.keys[block]

    def select(self, rows: Tensor) -> Alone:
        made = Alone(0)
        made.keys = [[part[rows] for part in pair] for pair in self.keys]
        return made


def agree(state: KeyValues, alone: Alone, rows: int, new: int) -> None:
    """What attention makes of new tokens is the same in each block; the state takes them in."""
    bias = state.advance(torch.zeros(rows, new, dtype=torch.long))
    for block in range(BLOCKS):
        q, k, v = torch.randn(3, rows, HEADS, new, WIDTH)
        expected = attention(q, *alone.extend(block, k, v), None, Dropout(0.0), causal=True)
        keys, values = state.extend(block, k, v)
        asked = q.view(len(keys), -1, HEADS, new, WIDTH).transpose(1, 2).flatten(2, 3) if len(keys) < rows else q
        found = attention(asked, keys, values, bias, Dropout(0.0), causal=new > 1)
        if len(keys) < rows:
            found = found.transpose(1, 2).reshape(rows, 1, HEADS, WIDTH).transpose(1, 2)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert state.length == alone.keys[0][0].shape[2]


@pytest.mark.parametrize("seed", range(4))
def test_shared_keys_are_those_of_each_row_alone(seed: int) -> None:
    """Hypotheses of three texts take each other's places; then a text ends, and rows are drawn at random."""
    torch.manual_seed(seed)
    texts, k = 3, 4
    state, alone = KeyValues(BLOCKS), Alone(texts)
    agree(state, alone, texts, 5)
    rows = torch.arange(texts).repeat_interleave(k)
    state, alone = select(state, rows), alone.select(rows)
    sizes = []
    for step in range(60):
        agree(state, alone, texts * k, 1)
        sizes.append(state.size)
        if step == 40:  # the text in the middle is done
            texts, of_texts = 2, torch.tensor([0, 2])
        else:
            of_texts = torch.arange(texts)
        chosen = torch.randint(k, (texts, k)) * (torch.rand(texts, k) < 0.9)  # most descend from few, as in a search
        rows = (of_texts[:, None] * k + chosen).flatten()
        state, alone = select(state, rows), alone.select(rows)
    assert max(sizes) < 3 * 65  # what nobody sees is dropped: without that it would be 5 + 60 * k
    for new in (1, 3, 1):
        rows = torch.randint(texts * k, (5,))  # as many of a text as there happen to be
        state, alone, texts, k = select(state, rows), alone.select(rows), 5, 1
        agree(state, alone, 5, new)


def test_two_continuations_of_one_state_do_not_meet() -> None:
    """Room behind a state is written to by one of those that were selected from it."""
    torch.manual_seed(0)
    state, alone = KeyValues(BLOCKS), Alone(2)
    agree(state, alone, 2, 3)
    agree(state, alone, 2, 1)
    rows = torch.arange(2)
    pairs = [(select(state, rows), alone.select(rows)) for _ in range(2)]
    for _ in range(3):
        for one, other in pairs:
            agree(one, other, 2, 1)
    agree(state, alone, 2, 1)


def test_a_gradient_reaches_keys_of_earlier_steps() -> None:
    state = KeyValues(1)
    keys = torch.ones(1, 1, 1, 2, requires_grad=True)
    for _ in range(3):
        state.advance(torch.zeros(1, 1, dtype=torch.long))
        stored, _ = state.extend(0, keys * 1, keys * 1)
    stored.sum().backward()
    assert keys.grad is not None
    assert keys.grad.flatten().tolist() == [3.0, 3.0]
