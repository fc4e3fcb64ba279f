"""What is wrong with rows of data, many of them in one message."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pipeline.errors import UserError

SHOWN = 10  # problems that a message lists


def raise_all(problems: Sequence[UserError]) -> None:
    """Raises: UserError, what is wrong with the data: ten problems by file and line, and how many more there are."""
    if len(problems) < 2:
        for problem in problems:
            raise problem
        return
    sources = list(dict.fromkeys(_place(problem)[0] for problem in problems))
    problems = sorted(problems, key=lambda problem: (sources.index(_place(problem)[0]), _place(problem)[1]))
    kinds = [getattr(problem, "kind", "another problem") for problem in problems]
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]  # of each kind one is shown
    order = list(dict.fromkeys([*firsts, *range(len(problems))]))
    lines = [f"The data have {len(problems):,} problems:"]
    for number in sorted(order[:SHOWN]):
        text = str(problems[number])  # the remedy for a kind of text comes once
        lines.append("  " + (text if number in firsts else re.split(r"; | \(it has", text.rstrip("."))[0] + "."))
    if rest := Counter(kinds[number] for number in order[SHOWN:]):
        counts = ", ".join(f"{count:,} with {kind}" for kind, count in rest.most_common())
        lines.append(f"  and {rest.total():,} more: {counts}.")
    raise UserError("\n".join(lines))


def _place(problem: UserError) -> tuple[str, int]:
    """The file and the line of a problem."""
    source, _, line = getattr(problem, "place", "").rpartition(", ")
    number = line.rpartition(" ")[2]
    return source, int(number) if number.isdecimal() else 0
