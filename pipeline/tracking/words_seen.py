"""Numbers of words seen: where encoders are kept on the way through a pretraining, and how their folders are called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.tracking import lineage

FOLDER = "encoders"  # of a run
Points = Literal["babylm"] | list[int] | None
UNITS = {"M": 1_000_000, "k": 1_000, "": 1}
NAME = re.compile(r"(?:chck_)?(\d+)([Mk]?)(?:-words)?")  # ours, and branches of BabyLM's models on the hub


@dataclass(frozen=True)
class SavedEncoder:
    """An encoder folder of a run that was not at its end.

    Args:
        words: of the text that it has seen.
        step: at which it was saved; None where its folder does not say.
    """

    folder: Path
    words: int
    step: int | None = None

    @property
    def branch(self) -> str:
        """Its branch on the hub, by which BabyLM's evaluation asks for it: chck_1M."""
        return f"chck_{shortest(self.words)}"


def babylm() -> Iterator[int]:
    """1, 2, ..., 10, 20, ..., 100, 200, ... million words (BabyLM Challenge 2025)."""
    return (digit * 10**power for power in itertools.count(6) for digit in range(1, 10))


def points_between(points: Points, before: float, now: float) -> list[int]:
    """The points above `before` words and up to `now`."""
    rising: Iterator[int] = babylm() if points == "babylm" else iter(sorted(set(points or ())))
    return [point for point in itertools.takewhile(lambda point: point <= now, rising) if point > before]


def shortest(words: int) -> str:
    """1,000,000 is 1M, 1,500,000 is 1500k, 1,234 is 1234."""
    unit = next(unit for unit, size in UNITS.items() if words % size == 0)
    return f"{words // UNITS[unit]}{unit}"


def name_of(words: int) -> str:
    """The name of a folder, as 1M-words."""
    return f"{shortest(words)}-words"


def saved_in(folder: Path) -> list[SavedEncoder]:
    """The encoders in a folder that are called by words seen, from the fewest.

    Raises:
        UserError: the lineage of one is damaged.
    """
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    matches = [(path, match) for path in names if (match := NAME.fullmatch(path.name)) and is_encoder(path)]
    found = [SavedEncoder(path, int(match[1]) * UNITS[match[2]], made_at(path).get("step")) for path, match in matches]
    return sorted(found, key=lambda saved: saved.words)


def is_encoder(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()


def made_at(folder: Path) -> lineage.Stage:
    """The last encoder in the lineage of a folder: with `words` and `step`, where it was saved by this version."""
    return lineage.last(lineage.read(folder), "encoder")
