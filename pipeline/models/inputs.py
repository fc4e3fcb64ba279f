"""What goes into a model: texts, batches of token ids, and the special tokens around them.

Shapes: B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.tokenization.base import Tokenizer
from tasks.base import Text

# `mask` (B, T) bool, and `input_ids` (B, T) or what else the model reads, see its `forward`; beside them what
# objectives and heads need, such as `labels`.
Inputs = dict[str, Tensor]


class SpecialTokens(NamedTuple):
    """How many special tokens a row has in front of its text, between the texts of a pair, and behind."""

    prefix: int
    between: int
    suffix: int

    def count(self, texts: int = 1) -> int:
        """Special tokens of a row of one text or two."""
        return self.prefix + self.between * (texts - 1) + self.suffix


def check_generative(tokenizer: Tokenizer, model: str) -> None:
    """Raises UserError for a tokenizer whose tokens a causal model cannot predict."""
    if not tokenizer.generative:
        raise UserError(f"{model} needs a tokenizer of scheme bpe or whole-words, not {tokenizer.scheme}.")


def check_texts(texts: Any) -> list[Text]:
    """Texts, of an iterator too, as a list.

    Raises:
        UserError: they are something else; a string alone would be read letter by letter.
    """
    listed: list[Any] = list(texts) if isinstance(texts, Iterable) and not isinstance(texts, str) else [None]
    if not all(map(_is_text, listed)):
        raise UserError('Texts come in a list, as ["one", "two"]: each a string, a pair (a, b) or a list of words.')
    return listed


def check_batch_size(batch_size: int) -> None:
    """Raises: UserError, it is below 1."""
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it must be a whole number of at least 1.")


def _is_text(text: Any) -> bool:
    if isinstance(text, (tuple, list)):
        return all(isinstance(part, str) for part in text) and (isinstance(text, list) or len(text) == 2)
    return isinstance(text, str)


def parts_of(text: Text) -> list[str]:
    """One text, the two of a pair, or the words of a list."""
    return [text] if isinstance(text, str) else list(text)


def count(ids: Any) -> int:
    """Tokens of a text or of a pair."""
    return len(ids[0]) + len(ids[1]) if isinstance(ids, tuple) else len(ids)


def padded(rows: Sequence[Sequence[int]], *, pad: int) -> Inputs:
    """Rows of token ids -> `input_ids` and `mask` (B, T), with `pad` behind what is shorter than the longest."""
    length = max(map(len, rows))
    return {
        "input_ids": torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows]),
        "mask": torch.tensor([[True] * len(row) + [False] * (length - len(row)) for row in rows]),
    }


def rows_of(
    texts: Sequence[Any], *, begin: Sequence[int], between: Sequence[int], end: Sequence[int], max_length: int
) -> list[list[int]]:
    """Texts and pairs as rows of ids: begin a end, and begin a between b end.

    Too long a text loses its end, too long a pair the end of its longer text.
    """
    around, rows = len(begin) + len(end), []
    for text in texts:
        if isinstance(text, tuple):
            first, second = cut_pair(*text, room=max_length - around - len(between))
            rows.append([*begin, *first, *between, *second, *end])
        else:
            rows.append([*begin, *text[: max_length - around], *end])
    return rows


def last_positions(mask: Tensor) -> Tensor:
    """(B, T) bool -> (B,) the position of each row's last token among all B x T."""
    return torch.arange(0, mask.numel(), mask.shape[1], device=mask.device) + mask.sum(1) - 1


def flatten_pairs(batch: Inputs) -> Inputs:
    """Pairs (B, 2, T) as the rows (2 B, T) that an encoder reads in one pass; another batch unchanged."""
    if batch["mask"].ndim == 2:
        return batch
    return {name: value.flatten(0, 1) if value.ndim == 3 else value for name, value in batch.items()}


def of_two_lengths(batch: Inputs) -> bool:
    """Whether two passes over a batch of pairs (B, 2, T), a side each, cost less than one with the padding of both.

    A pass more costs a processor little, and a GPU, which waits for Python, more than padding.
    """
    longest = batch["mask"].sum(-1).amax(0)
    return not longest.is_cuda and bool(longest.min() < 0.75 * longest.max())


def one_side(batch: Inputs, side: int) -> Inputs:
    """Pairs (B, 2, T) -> the first texts, or with 1 the second, (B, S), without the padding behind the longest."""
    longest = int(batch["mask"][:, side].sum(1).max())
    return {name: value[:, side, :longest] if value.ndim == 3 else value for name, value in batch.items()}


def sides(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (2 B, ...) of pairs, of `flatten_pairs` -> those of the first texts and of the second, (B, ...) each."""
    return rows[0::2], rows[1::2]


def cut_pair(first: Sequence[Any], second: Sequence[Any], *, room: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The texts of a pair in as many tokens together, see `first_segment_length`."""
    kept = first_segment_length(len(first), len(second), room)
    return first[:kept], second[: room - kept]


def first_segment_length(first: int, second: int, room: int) -> int:
    """The number of tokens that the first text of a pair keeps: the longer text is cut first, at its end.

    Of an odd room for two long texts the longer one, or the second of two of equal length, gets one token more, as in
    `longest_first` of Hugging Face's fast tokenizers.
    """
    half = room // 2 if first <= second else room - room // 2
    return min(first, max(room - second, half))
