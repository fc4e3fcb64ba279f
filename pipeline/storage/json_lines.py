"""JSON lines: one row a line, whatever a reader takes for the end of a line; text that JSON has cut in two."""

from __future__ import annotations

import json
from typing import Any

LINE_ENDS = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"})


def json_line(row: Any) -> str:
    """A value as one line of JSON. Characters that some readers take for the end of a line are escaped."""
    return json.dumps(row, ensure_ascii=False).translate(LINE_ENDS) + "\n"


def repair_surrogates(text: str) -> str:
    """Joins surrogate pairs that JSON escapes apart; a lone surrogate, as in web dumps, becomes U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def may_have_surrogates(line: str) -> bool:
    """Whether a line of JSON escapes a surrogate: few do, and only these need repair."""
    return "\\ud" in line.lower()
