"""Messages of a command: information, which --quiet leaves out. Results and warnings are printed, errors raised."""

from __future__ import annotations

import enum
import os


class Level(enum.IntEnum):
    """How much a command says."""

    QUIET, NORMAL, VERBOSE = range(3)


_level = Level.NORMAL


def set_level(level: Level) -> None:
    global _level
    _level = level


def level() -> Level:
    return _level


def first_process() -> bool:
    """Whether this is the first process of a run, as Lightning, torchrun and SLURM tell their processes."""
    ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
    return next((rank for rank in ranks if rank is not None), "0") == "0"


def inform(*texts: str) -> None:
    """Prints lines of information: reports of data, settings, advice."""
    if _level >= Level.NORMAL and first_process():
        print(*texts, sep="\n", flush=True)
