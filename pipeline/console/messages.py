"""Messages of a command: information, which --quiet leaves out. Results and warnings are printed, errors raised."""

from __future__ import annotations

import enum

from pipeline.console.rank import is_main

WIDTH = 118  # of a line of help


class Level(enum.IntEnum):
    """How much a command says."""

    QUIET, NORMAL, VERBOSE = range(3)


_level = Level.NORMAL


def set_level(level: Level) -> None:
    global _level
    _level = level


def level() -> Level:
    return _level


def inform(*texts: str) -> None:
    """Prints lines of information: reports of data, settings, advice."""
    if _level >= Level.NORMAL and is_main():
        print(*texts, sep="\n", flush=True)
