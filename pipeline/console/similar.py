"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def similar(name: str, known: Iterable[str]) -> str | None:
    """The name that was most likely meant; None: nothing is like it."""
    names = {known_name.lower(): known_name for known_name in known}
    return names[found[0]] if (found := difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)) else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean NAME?`, to stand behind a sentence; empty: nothing is like it."""
    return f" Did you mean {meant}?" if (meant := similar(name, known)) else ""
