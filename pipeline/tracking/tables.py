"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, each line with its end. White space in cells becomes a space, `|` is escaped."""
    return "".join(markdown_line(cells) for cells in [head, ["---"] * len(head), *rows])


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |\n"


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())
