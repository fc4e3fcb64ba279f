"""Overlong words (DNA, dashes or base64 in one line), cut into pieces before they are tokenized.

Training a tokenizer takes time quadratic in the longest word, and WordPiece and character encoders read only the
beginning of a long one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

OVERLONG = 4_000  # characters; no language has a longer word
# The look-behind lets a match begin at the first character only: else runs just below the limit take quadratic time.
_WORD, _MARKS, _SPACES = (rf"(?<!{kind}){kind}{{{OVERLONG + 1},}}" for kind in (r"\w", r"[^\w\s]", r"\s"))
_WORDS, _WORDS_AND_SPACES = re.compile(f"{_WORD}|{_MARKS}"), re.compile(f"{_WORD}|{_MARKS}|{_SPACES}")


def _find(text: str, *, spaces: bool) -> Iterator[re.Match[str]]:
    return _WORDS_AND_SPACES.finditer(text.replace("_", "-")) if spaces else _WORDS.finditer(text)


def count_overlong(text: str, *, spaces: bool) -> int:
    """The number of overlong words of a text.

    Args:
        spaces: as byte-level BPE splits words: a run of spaces is a word too, and `_` is a punctuation mark.
    """
    return sum(1 for _ in _find(text, spaces=spaces)) if len(text) > OVERLONG else 0


def split_overlong(text: str, *, longest: int, spaces: bool, fits: Callable[[str], bool]) -> list[str]:
    """Splits a text so that no part holds more than a piece of an overlong word; the parts join to the text.

    Args:
        longest: characters of a piece, at most.
        spaces: see `count_overlong`.
        fits: whether a piece can be read whole; else it is halved.
    """
    if len(text) <= OVERLONG:
        return [text]

    def ends(low: int, high: int) -> Iterator[int]:
        if high - low == 1 or fits(text[low:high]):
            yield high
        else:
            middle = (low + high) // 2
            yield from ends(low, middle)
            yield from ends(middle, high)

    cuts = [0]
    for word in _find(text, spaces=spaces):
        for low in range(word.start(), word.end(), longest):
            cuts += ends(low, min(low + longest, word.end()))
        cuts.pop()  # what follows the word stays in the part of its end
    return [text[low:high] for low, high in itertools.pairwise([*cuts, len(text)])]
