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
            if places and places[-1][1] == begin and _goes_on(text, places[-1][0], begin):
                places[-1] = (places[-1][0], end)
            else:
                places.append((begin, end))
        return [text[begin:end] for begin, end in places], places
    at = 0
    for word in text:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return text, places


def _goes_on(text: str, first: int, at: int) -> bool:
    """Whether the character at `at` is a part of the word from `first` (Unicode Standard Annex 29, WB3c and WB4).

    Marks are neither letters nor spaces, but split no word: letters behind those of a letter go on, and so do emoji
    behind a joiner.
    """
    before, character = text[at - 1], text[at]
    if _is_mark(character):
        return True
    if character.isalnum() and _is_mark(before):
        marked = next((text[i] for i in range(at - 1, first - 1, -1) if not _is_mark(text[i])), None)
        return marked is None or marked.isalnum()
    return before == JOINER and unicodedata.category(character) == "So"


def _is_mark(character: str) -> bool:
    """Whether a character is an accent, a soft hyphen or a joiner, or says how others are shown."""
    if character == ZERO_WIDTH_SPACE:
        return False
    category = unicodedata.category(character)
    return category.startswith("M") or category == "Cf"
