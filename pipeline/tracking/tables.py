"""Tables as Markdown and as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, each line with its end. White space in cells becomes a space, `|` and tags are escaped."""
    return "".join(markdown_line(cells) for cells in [head, ["---"] * len(head), *rows])


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |\n"


def cells_of(line: str) -> list[str]:
    """The cells of a line that `markdown_line` has written."""
    return [re.sub(r"\\([|<`!])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _escaped(cell: str) -> str:
    return " ".join(escaped(cell).replace("|", "\\|").split())


def escaped(text: str) -> str:
    """A text for Markdown: without tags of HTML and pictures; a span between two backticks stays code."""
    parts = re.split(r"((?<![\\`])`[^`]+`(?!`))", text)  # every other one is code
    return "".join(part if at % 2 else MARKUP.sub(r"\\\g<0>", part) for at, part in enumerate(parts))


MARKUP = re.compile(r"<(?=[A-Za-z/!?])|`|!(?=\[)")


SUPERSCRIPTS = dict(zip("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹", strict=True))


def superscript(number: int) -> str:
    """A number in small raised digits: of a footnote, or an exponent."""
    return "".join(SUPERSCRIPTS[digit] for digit in str(number))


# ---------------------------------------------------------------------- LaTeX

LATEX = {
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    **{mark: f"$^{digit}$" for digit, mark in SUPERSCRIPTS.items()},
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "''",
    "±": "$\\pm$",
    "→": "$\\rightarrow$",
    "†": "$\\dagger$",
    "…": "\\ldots{}",
}


def latex_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, aligned: str, caption: str, label: str) -> str:
    """A LaTeX table in the style of booktabs; `**text**` in a cell is bold.

    Args:
        aligned: l or r for each column.
    """
    body = "".join(f"  {_begun(' & '.join(map(latex, cells)))} \\\\\n" for cells in rows)
    return (
        f"\\begin{{table}}\n  \\centering\n  \\caption{{{latex(caption)}}}\n  \\label{{{label}}}\n"
        f"  \\begin{{tabular}}{{{aligned}}}\n  \\toprule\n  {' & '.join(map(latex, head))} \\\\\n  \\midrule\n{body}"
        "  \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


def _begun(line: str) -> str:
    """A line as the one before, which ends in two backslashes, may stand in front of it."""
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def latex(text: str) -> str:
    """A text with the characters escaped that LaTeX takes for commands."""
    plain = "".join(LATEX.get(mark, mark) for mark in " ".join(text.split()))
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", plain)
