"""What only the page of a ladder has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Continuations:
    """The same prompt, continued by each model: (name, what it is, text)."""

    prompt: str
    texts: Sequence[tuple[str, str, str]]

    @property
    def kind(self) -> str:
        return "continuations"


@dataclass(frozen=True)
class Cell:
    """`share`, from -1 (bad) to 1 (good), is its color."""

    text: str
    share: float = 0.0
    title: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Matrix:
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    caption: str

    @property
    def kind(self) -> str:
        return "matrix"


@dataclass(frozen=True)
class Claims:
    claims: Sequence[Mapping[str, Any]]

    @property
    def kind(self) -> str:
        return "claims"
