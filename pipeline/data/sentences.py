"""A rule-based sentence splitter for scripts with and without spaces."""

from __future__ import annotations

import re
from collections.abc import Iterator

_END = re.compile(r"(?<=[.!?…؟।])([\"'”’)\]»]*)\s+(?=[\"'“‘(\[«„¿¡]*([^\Wa-z]))")
_WIDE = "。！？"  # ends of sentences in scripts that do not separate them by spaces
_CLOSING = "」』”’）】》〉»)"
_WIDE_END = re.compile(rf"(?<=[{_WIDE}])(?![{_WIDE}{_CLOSING}\"'])|(?<=[{_WIDE}][{_CLOSING}])(?![{_CLOSING}\"'])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Mt|No|Vol|vs|cf|al|ca|c|"
    r"e\.g|i\.e|etc|approx|Inc|Ltd|Co|U\.S|U\.K|Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec)\.$"
)


def sentences(paragraph: str) -> list[str]:
    """Splits a paragraph at . ! ? before a capital, a digit or a caseless letter, but not after an abbreviation."""
    wide = any(mark in paragraph for mark in _WIDE)
    return [sentence for part in (_WIDE_END.split(paragraph) if wide else [paragraph]) for sentence in _spaced(part)]


def after_space(paragraph: str, parts: list[str]) -> list[bool]:
    """Of the sentences of a paragraph whether white space stands before each, or its beginning."""
    found, place = [], 0
    for part in parts:
        place = paragraph.index(part, place)
        found.append(not place or paragraph[place - 1].isspace())
        place += len(part)
    return found


def _initial(text: str) -> bool:
    """Whether a text ends with an initial of a script other than Latin, whose initials _ABBREVIATION has."""
    letter = text[-2:-1]
    return text.endswith(".") and not letter.isascii() and letter.lower() != letter.upper() and text[-3:-2] in " («"


def _spaced(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph of a script that separates them by spaces."""
    begin = 0
    for match in _END.finditer(paragraph):
        end = match.end(1)
        # The search begins shortly before the end: no abbreviation is longer.
        abbreviation = _ABBREVIATION.search(paragraph, max(0, begin - 1, end - 12), end)
        if not abbreviation and not match[2].islower() and not _initial(paragraph[max(0, end - 4) : end]):
            yield paragraph[begin:end].strip()
            begin = match.end()
    if last := paragraph[begin:].strip():
        yield last
