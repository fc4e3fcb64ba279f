"""Tags of spans: BIO, IOB1 and IOBES, read as conlleval reads them."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[str, int, int]  # type, first and last word


def bio_tags(tags: Sequence[str]) -> list[str]:
    """All tags that the span types of `tags` can need: O, and B and I of each type."""
    types = dict.fromkeys(tag[2:] for tag in tags if tag != "O")
    return ["O", *(f"{mark}-{kind}" for kind in types for mark in "BI")]


def spans(tags: Sequence[str]) -> list[Span]:
    """Spans of tags in BIO, IOB1 or IOBES, with malformed sequences read as conlleval reads them.

    A span ends before O, before another type, before B and S, and after E and S; where one ends or nothing was
    open, any tag but O begins one: so an I without a B before it begins a span.
    """
    found: list[Span] = []
    before, open_type, begin = "O", "", 0
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        breaks = prefix in ("O", "B", "S") or before in ("E", "S") or kind != open_type
        if before != "O" and breaks:
            found.append((open_type, begin, i - 1))
        if prefix != "O" and (before == "O" or breaks):
            begin, open_type = i, kind
        before = prefix
    return found


def to_bio(tags: Sequence[str]) -> list[str]:
    """Tags of any of these schemes -> BIO."""
    result = ["O"] * len(tags)
    for kind, first, last in spans(tags):
        result[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return result
