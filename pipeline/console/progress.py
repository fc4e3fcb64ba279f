"""Progress of long work: a bar on a terminal; in a log file a plain line each half minute, and none of short work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from pipeline.console.messages import Level, level

SECONDS = 30.0  # between two lines of a log file


class Lines(tqdm):
    """A bar for a log file: neither carriage returns nor blanks, and a line each 30 s at most."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.shown, self.lines = time.monotonic(), 0
        super().__init__(*args, **{**options, "mininterval": SECONDS, "miniters": 1, "leave": False})

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Writes a line, unless the last one is young; tqdm calls it more often than each `mininterval`."""
        if time.monotonic() - self.shown >= SECONDS:
            self._line()

    def clear(self, nolock: bool = False) -> None:
        pass

    def close(self) -> None:
        if not self.disable and self.lines and self.n:  # the end of what was long enough for a line
            self._line()
        super().close()

    def _line(self) -> None:
        self.shown, self.lines = time.monotonic(), self.lines + 1
        values = self.format_dict
        rate = values["rate"] or (self.n - values["initial"]) / max(1e-9, values["elapsed"])
        done, total = (
            f"{self.format_sizeof(count)}{self.unit}" if self.unit_scale else f"{count:,.0f}"
            for count in (self.n, self.total or 0)
        )
        unit = "" if self.unit_scale else f"{self.unit} "
        parts = [f"{self.desc.removesuffix(': ')}: {unit}{done}" + (f" of {total}" if self.total else "")]
        if self.total and rate:
            parts.append(f"{self.n / self.total:.0%}, {self.format_interval((self.total - self.n) / rate)} left")
        print(*parts, *([self.postfix] if self.postfix else []), sep=", ", file=self.fp, flush=True)


def progress(steps: Iterable[Any] | None = None, *, desc: str, unit: str, **options: Any) -> tqdm:
    """A bar of tqdm on standard error; plain lines where that is not a terminal, nothing with --quiet.

    Args:
        steps: is iterated over; None: call `update`.
        options: of tqdm: total, initial, leave, delay, smoothing, ...
    """
    terminal = sys.stderr.isatty()
    shown: dict[str, Any] = {"desc": desc, "unit": unit, "file": sys.stderr, "disable": level() == Level.QUIET}
    if terminal:
        bar = tqdm(steps, **shown, **{"mininterval": 0.5, "dynamic_ncols": True, **options})
    else:
        bar = Lines(steps, **shown, **{name: value for name, value in options.items() if name != "delay"})
    bar.initial = options.get("initial", 0)  # tqdm leaves it out of a disabled bar
    return bar


def write(text: str) -> None:
    """A line on standard error, above open bars."""
    tqdm.write(text, file=sys.stderr)
