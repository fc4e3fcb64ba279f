"""Amounts as a reader wants them: three digits and a unit."""

from __future__ import annotations


def count(value: float) -> str:
    """1234567 -> `1.23 M`."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:  # which three digits round to it
            return f"{rounded(value / size, 3)} {unit}"
    return f"{value:,.0f}"


def rounded(value: float, digits: int = 4) -> str:
    """So many digits, and large numbers whole, without an exponent: 0.5181 and 20,000."""
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{value:,.{digits}g}"


def duration(seconds: float) -> str:
    """200 -> `3.33 min`."""
    if seconds < 0.95:
        return f"{seconds:.1g} s"
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size:
            return f"{rounded(seconds / size, 3)} {unit}"
    return f"{seconds:.0f} s"
