"""Words of a text that is to be tagged, and their characters."""

from __future__ import annotations

import re
import unicodedata

JOINER, ZERO_WIDTH_SPACE = "\u200d", "\u200b"
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def place_words(text: str | list[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a text, split at spaces and punctuation, with the first character of each and the one behind it.

    A list of words is used unchanged; the characters are then those of the words joined by spaces.
    """
    places: list[tuple[int, int]] = []
    if isinstance(text, str):
        for match in WORD.finditer(text):
            begin, end = match.span()
            # A combining mark is neither letter nor space: it belongs to the letter in front, and splits no word. Nor
            # does a soft hyphen, or what joins letters or emoji without a width.
            before = text[begin - 1 : begin]
            marked = _is_mark(text[begin]) or before == JOINER or (text[begin].isalnum() and _is_mark(before))
            if places and places[-1][1] == begin and marked:
                places[-1] = (places[-1][0], end)
            else:
                places.append((begin, end))
        return [text[begin:end] for begin, end in places], places
    at = 0
    for word in text:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return text, places


def _is_mark(character: str) -> bool:
    """Whether a character breaks no word (Unicode Standard Annex 29, rule 4), as an accent or a soft hyphen."""
    if character in ("", ZERO_WIDTH_SPACE):
        return False
    category = unicodedata.category(character)
    return category.startswith("M") or category == "Cf"
