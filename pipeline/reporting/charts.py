"""Charts as inline SVG. Colors are classes of the page's style, so that they follow its light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup, escape

from pipeline.reporting.label_placement import Point
from pipeline.tracking.amounts import rounded
from pipeline.tracking.plots import pushed_apart

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 74, 22, 14, 48
MOST_POINTS = 400  # of a line; more are thinned out
LABEL_GAP = 15  # least distance of two labels of baselines


@dataclass(frozen=True)
class Series:
    """A line, or with `faint` a thin one without markers."""

    label: str
    points: Sequence[Point]
    color: int = 0
    faint: bool = False


@dataclass(frozen=True)
class Mark:
    """A value on the line of a dot plot, with the ends of its interval where it has one."""

    value: float
    color: str
    label: str = ""
    low: float | None = None
    high: float | None = None
    small: bool = False
    hollow: bool = False
    bar: bool = False  # a vertical stroke instead of a dot


@dataclass(frozen=True)
class DotLine:
    label: str
    marks: Sequence[Mark] = field(default_factory=list)


class Axis:
    """Values -> positions, with round ticks."""

    def __init__(self, low: float, high: float, begin: float, end: float, *, most: int = 6) -> None:
        if not (math.isfinite(low) and math.isfinite(high)):
            low, high = 0.0, 1.0
        if low == high:
            low, high = low - (abs(low) * 0.05 or 0.5), high + (abs(high) * 0.05 or 0.5)
        self.low, self.high, self.begin, self.end = low, high, begin, end
        rough = (high - low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        self.step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)

    def __call__(self, value: float) -> float:
        return round(self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin), 1)

    @property
    def ticks(self) -> list[float]:
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        return [number * self.step for number in range(first, last + 1)]

    def label(self, value: float) -> str:
        if abs(value) >= 1e6:
            return f"{value / 1e6:g} M"
        if max(abs(self.low), abs(self.high)) < 0.02 and value:  # as rates are
            mantissa, _, exponent = f"{value:.2e}".partition("e")
            return f"{float(mantissa):g}e{int(exponent)}"
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return f"{value:,.{digits + (round(self.step * 10**digits, 6) % 1 > 0)}f}" if value else "0"


def line_chart(
    series: Sequence[Series],
    *,
    y_label: str,
    baselines: Mapping[str, float] | None = None,
    marked: float | None = None,
    from_zero: bool = False,
) -> Markup:
    """Lines over optimizer steps, a dashed line for each baseline, and a marked step.

    Args:
        marked: a position on the x axis.
    """
    baselines = baselines or {}
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points] + list(baselines.values()) + [0.0] * from_zero
    pad = 0.04 * (max(ys) - min(ys))
    across = Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = Axis(min(ys) - (0 if from_zero else pad), max(ys) + pad, HEIGHT - BOTTOM, TOP, most=5)
    parts = [_frame(across, up, HEIGHT, "optimizer step", y_label)]
    parts += _baselines(baselines, up)
    if marked is not None:
        stroke = Markup('<line class="marked" x1="{x}" x2="{x}" y1="{}" y2="{}"/>')
        parts.append(stroke.format(TOP, HEIGHT - BOTTOM, x=across(marked)))
    for line in series:
        kept = _thinned(line.points)
        shape = " ".join(f"{across(x)},{up(y)}" for x, y in kept)
        kind = "faint" if line.faint else "line"
        parts.append(Markup('<polyline class="{} s{}" points="{}"/>').format(kind, line.color, shape))
        if not line.faint or len(kept) == 1:  # a line of one point cannot be seen
            for x, y in kept if len(kept) <= 60 else ():
                title = f"{line.label}: {rounded(y)} at {x:,.0f}"
                dot = Markup('<circle class="dot s{}" cx="{}" cy="{}" r="3.2"><title>{}</title></circle>')
                parts.append(dot.format(line.color, across(x), up(y), title))
    return _svg(parts, HEIGHT, f"{y_label} over optimizer steps")


def _thinned(points: Sequence[Point]) -> list[Point]:
    every = math.ceil(len(points) / MOST_POINTS)
    return [*points[::every], *([points[-1]] if (len(points) - 1) % every else [])]


def _baselines(baselines: Mapping[str, float], up: Axis) -> list[Markup]:
    parts: list[Markup] = []
    ordered = sorted(baselines.items(), key=lambda item: -item[1])
    labels = pushed_apart([up(value) - 5 for _, value in ordered], LABEL_GAP)
    for (name, value), label in zip(ordered, labels, strict=True):
        y = up(value)
        parts.append(
            Markup('<line class="baseline" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(LEFT, WIDTH - RIGHT, y=y)
        )
        parts.append(_text(f"{name} {rounded(value, 3)}", WIDTH - RIGHT - 2, label, "note end"))
    return parts


def dot_plot(lines: Sequence[DotLine], *, x_label: str, zero: bool = False) -> Markup:
    """A line for each model or arm, marks on it; `zero`: a line at 0.

    Dots of other colors stand a little below each other, so that equal values do not hide each other.
    """
    row, left = 40, max(84, 24 + 7 * max((len(line.label) for line in lines), default=0))
    height = TOP + row * len(lines) + BOTTOM
    values = [v for line in lines for m in line.marks for v in (m.value, m.low, m.high) if v is not None] + [0.0] * zero
    pad = 0.05 * (max(values) - min(values) or 0.1)
    across = Axis(min(values) - pad, max(values) + pad, left, WIDTH - RIGHT, most=5)
    parts = [_frame(across, None, height, x_label, "", left=left)]
    if zero:
        parts.append(
            Markup('<line class="zero" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(across(0), TOP, height - BOTTOM)
        )
    for number, line in enumerate(lines):
        middle = TOP + row * (number + 0.5)
        parts.append(_text(line.label, left - 10, middle + 5, "tick end"))
        levels = list(dict.fromkeys(mark.color for mark in line.marks if not mark.bar))
        for mark in line.marks:
            shift = 0.0 if mark.bar else min(12, 32 / len(levels)) * (levels.index(mark.color) - (len(levels) - 1) / 2)
            parts += _mark(mark, across, middle + shift)
    return _svg(parts, height, x_label)


def _mark(mark: Mark, across: Axis, y: float) -> list[Markup]:
    parts, x = [], across(mark.value)
    if mark.low is not None and mark.high is not None:
        ends = {"a": across(mark.low), "b": across(mark.high), "y": y, "color": mark.color}
        parts.append(Markup('<line class="whisker {color}" x1="{a}" x2="{b}" y1="{y}" y2="{y}"/>').format(**ends))
    title = Markup("<title>{}</title>").format(f"{mark.label} {rounded(mark.value)}".strip())
    if mark.bar:
        shape = Markup('<line class="stroke {}" x1="{x}" x2="{x}" y1="{}" y2="{}">{}</line>')
        parts.append(shape.format(mark.color, y - 13, y + 13, title, x=x))
    else:
        kind = "small" if mark.small else "hollow" if mark.hollow else "dot"
        shape = Markup('<circle class="{} {}" cx="{}" cy="{}" r="{}">{}</circle>')
        parts.append(shape.format(kind, mark.color, x, y, 3 if mark.small else 6, title))
    return parts


def bar_chart(labels: Sequence[str], values: Sequence[float], *, y_label: str, x_label: str = "") -> Markup:
    """A bar for each label, from 0 up or down, with its value where there are few."""
    across = Axis(0, len(values), LEFT, WIDTH - RIGHT)
    low, high = min(0.0, min(values) * 1.1), max(0.0, max(values) * 1.1)
    up = Axis(low, high if high > low else 1.0, HEIGHT - BOTTOM, TOP, most=5)
    width = (WIDTH - RIGHT - LEFT) / len(values)
    parts = [_frame(None, up, HEIGHT, x_label, y_label)]
    every = math.ceil(len(labels) / 10)
    for number, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, top, height = across(number), min(up(value), up(0)), abs(up(0) - up(value))
        bar = Markup('<rect class="bar s0" x="{:.1f}" y="{}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')
        parts.append(bar.format(x + 0.12 * width, top, 0.76 * width, height, f"{label}: {rounded(value)}"))
        if len(values) <= 8:
            parts.append(_text(rounded(value, 3), x + width / 2, top - 5, "note middle"))
        if number % every == 0:
            parts.append(_text(label, x + width / 2, HEIGHT - BOTTOM + 17, "tick middle"))
    return _svg(parts, HEIGHT, f"{y_label} by {x_label}")


def scatter(points: Sequence[Point], *, x_label: str, y_label: str) -> Markup:
    """Points, and the line on which both values are equal."""
    low, high = min(min(p) for p in points), max(max(p) for p in points)
    across, up = Axis(low, high, LEFT, WIDTH - RIGHT), Axis(low, high, HEIGHT - BOTTOM, TOP, most=5)
    parts = [_frame(across, up, HEIGHT, x_label, y_label)]
    line = '<line class="baseline" x1="{}" y1="{}" x2="{}" y2="{}"/>'
    parts.append(Markup(line).format(across(low), up(low), across(high), up(high)))
    kept = points[:: math.ceil(len(points) / 1500)]
    dots = "".join(f'<circle cx="{across(x)}" cy="{up(y)}" r="2.4"/>' for x, y in kept)
    parts.append(Markup('<g class="cloud s0">{}</g>').format(Markup(dots)))
    return _svg(parts, HEIGHT, f"{y_label} by {x_label}")


# ---------------------------------------------------------------------- parts


def _frame(
    across: Axis | None, up: Axis | None, height: int, x_label: str, y_label: str, *, left: int = LEFT
) -> Markup:
    parts, bottom = [], height - BOTTOM
    grid: Callable[[float, float, float, float], Markup] = Markup(
        '<line class="grid" x1="{}" y1="{}" x2="{}" y2="{}"/>'
    ).format
    if across is not None:
        for value in across.ticks:
            parts.append(grid(across(value), TOP, across(value), bottom))
            parts.append(_text(across.label(value), across(value), bottom + 17, "tick middle"))
    if up is not None:
        for value in up.ticks:
            parts.append(grid(left, up(value), WIDTH - RIGHT, up(value)))
            parts.append(_text(up.label(value), left - 7, up(value) + 4, "tick end"))
    parts.append(Markup('<line class="axis" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(left, WIDTH - RIGHT, y=bottom))
    parts.append(_text(x_label, (left + WIDTH - RIGHT) / 2, height - 8, "label middle"))
    if y_label:
        middle = (TOP + bottom) / 2
        turned = Markup('<text class="label middle" transform="translate(13 {}) rotate(-90)">{}</text>')
        parts.append(turned.format(middle, y_label))
    return Markup("").join(parts)


def _text(text: str, x: float, y: float, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, text)


def _svg(parts: Sequence[Markup], height: int, title: str) -> Markup:
    begin = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return Markup(begin) + Markup("").join(parts) + Markup("</svg>")
