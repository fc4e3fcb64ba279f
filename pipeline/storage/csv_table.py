"""Comma-separated values, as all of a run's tables are written."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def csv_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
