"""Words of a text that is to be tagged, and their characters."""

from __future__ import annotations

import re
import unicodedata

WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def place_words(text: str | list[str]) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a text, split at spaces and punctuation, with the first character of each and the one behind it.

    A list of words is used unchanged; the characters are then those of the words joined by spaces.
    """
    places: list[tuple[int, int]] = []
    if isinstance(text, str):
        for match in WORD.finditer(text):
            begin, end = match.span()
            # A combining mark is neither letter nor space: it belongs to the letter in front, and splits no word.
            marked = _is_mark(text[begin]) or (text[begin].isalnum() and begin > 0 and _is_mark(text[begin - 1]))
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
    return unicodedata.category(character).startswith("M")
