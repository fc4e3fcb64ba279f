"""What a report is made of. A table is written once, and becomes HTML, Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup


class Block:
    """What a section holds: templates/blocks/KIND.html.j2 shows it."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Table(Block):
    """A table of texts; `**...**` around a cell makes it bold.

    Args:
        caption: a sentence that says what is shown.
        notes: below it, for footnotes and caveats.
        numbers: columns, from 0, that are aligned as numbers; None: all but the first.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    notes: Sequence[str] = ()
    numbers: Sequence[int] | None = None

    def is_number(self, column: int) -> bool:
        return column > 0 if self.numbers is None else column in self.numbers


@dataclass(frozen=True)
class Heatmap(Block):
    """Counts by true label (rows) and predicted label (columns), colored by the share of the row."""

    labels: Sequence[str]
    counts: Sequence[Sequence[int]]
    caption: str

    @property
    def shares(self) -> list[list[float]]:
        return [[count / max(1, sum(row)) for count in row] for row in self.counts]

    @property
    def totals(self) -> list[int]:
        return [sum(row) for row in self.counts]


@dataclass(frozen=True)
class Chart(Block):
    """A drawing with its legend: (class of its color, text)."""

    svg: Markup
    caption: str
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Charts(Block):
    """Charts side by side, where there is room."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Text(Block):
    text: str


@dataclass(frozen=True)
class Code(Block):
    """Plain text; `folded`: only its summary is seen at first."""

    text: str
    folded: str | None = None


@dataclass(frozen=True)
class Error:
    """A wrong prediction: parts of its text, each with the mark that it gets (or none), and what was expected."""

    parts: Sequence[tuple[str, str]]
    expected: str
    predicted: str
    confidence: str

    @property
    def text(self) -> str:
        return " ".join(part for part, _ in self.parts)


@dataclass(frozen=True)
class Errors(Block):
    errors: Sequence[Error]
    caption: str


@dataclass
class Node:
    """A stage of a lineage, with what grew from it.

    Args:
        here: whether the page is about it.
    """

    title: str
    facts: Sequence[str] = ()
    children: list[Node] = field(default_factory=list)
    here: bool = False


@dataclass(frozen=True)
class Tree(Block):
    root: Node
    caption: str


# ---------------------------------------------------------------------- of ladders alone


@dataclass(frozen=True)
class Continuations(Block):
    """The same prompt, continued by each model: (name, what it is, text)."""

    prompt: str
    texts: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Cell:
    """`share`, from -1 (bad) to 1 (good), is its color."""

    text: str
    share: float = 0.0
    title: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Matrix(Block):
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    caption: str


@dataclass(frozen=True)
class Claims(Block):
    claims: Sequence[Mapping[str, Any]]


# ---------------------------------------------------------------------- what holds them


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Figure:
    """A number at the top of the page, with what it is compared with."""

    name: str
    value: str
    beside: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    Args:
        about: a line below the title.
        styles, script: templates that this page has beside those of all pages.
    """

    title: str
    about: str
    figures: Sequence[Figure]
    sections: Sequence[Section]
    styles: Sequence[str] = ()
    script: str | None = None

    @property
    def shown(self) -> list[Section]:
        """The sections that hold anything."""
        return [section for section in self.sections if section.blocks]
