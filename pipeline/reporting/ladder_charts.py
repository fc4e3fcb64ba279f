"""Charts of a ladder of models: each is drawn twice, for wide and for narrow screens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from pipeline.reporting.charts import Axis, Point
from pipeline.reporting.label_placement import Box, near, spread
from pipeline.tracking.tables import superscript

SHAPES = (  # around (0, 0), so that kinds differ without their color
    '<rect x="-5" y="-5" width="10" height="10"/>',
    '<path d="M0-7 6.5 5H-6.5z"/>',
    '<path d="M0-7 7 0 0 7-7 0z"/>',
    '<circle r="5.5"/>',
    '<circle r="5" class="hollow"/>',
    '<path d="M-6-3.5 0-7 6-3.5V3.5L0 7-6 3.5z"/>',
)
UNITS = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (36_000, "10 h"), (360_000, "100 h"))
BETWEEN = tuple(
    (number * seconds, f"{number} {unit}")
    for seconds, unit, numbers in ((1, "s", (2, 5, 20, 30)), (60, "min", (2, 5, 20, 30)), (3600, "h", (2, 5, 20, 50)))
    for number in numbers
)
WHOLE = ".0f"


@dataclass(frozen=True)
class Canvas:
    """Sizes of a drawing in its own units; `letter` is the mean width of one."""

    kind: str
    width: int
    height: int
    left: int
    right: int
    letter: float
    top: int = 14
    bottom: int = 48

    @property
    def area(self) -> Box:
        return self.left, self.top, self.width - self.right, self.height - self.bottom


APART = 12  # of points on a line that labels keep clear of
WIDE = Canvas("broad", 960, 480, left=58, right=22, letter=7.5)
NARROW = Canvas("slim", 360, 430, left=50, right=10, letter=6.8)


@dataclass(frozen=True)
class Look:
    """Color and shape of a kind of model, and the dashes of one of them."""

    color: str
    shape: int = 0
    dash: int = 0


@dataclass(frozen=True)
class Item:
    """A model: a dot where `points` holds one, else a curve.

    Args:
        short: its label where room is scarce.
        title: what is read beside the mouse.
        ring: a place on the curve that is marked, with its title.
        bold: whether its label is.
    """

    label: str
    short: str
    look: Look
    points: Sequence[Point]
    title: str
    ring: tuple[float, float, str] | None = None
    bold: bool = False


@dataclass(frozen=True)
class Scale:
    """An axis: its ends, and its ticks with their labels."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def within(self, begin: float, end: float) -> Callable[[float], float]:
        """Values -> positions from `begin` to `end`."""
        turn = math.log if self.log else float
        low, high = turn(self.low), turn(self.high)
        return lambda value: round(begin + (turn(value) - low) / ((high - low) or 1) * (end - begin), 1)


def linear(values: Sequence[float], *, margin: float = 0.05, form: str = "") -> Scale:
    """A scale with round ticks; `form` is the format of their labels, WHOLE that of whole numbers."""
    low, high = min(values), max(values)
    pad = margin * (high - low or abs(high) or 1)
    axis = Axis(low - pad, high + pad, 0, 1)
    ticks = [tick for tick in axis.ticks if form != WHOLE or tick == round(tick)]
    return Scale(axis.low, axis.high, [(tick, f"{tick:{form}}" if form else axis.label(tick)) for tick in ticks])


def ratios(values: Sequence[float]) -> Scale:
    """A logarithmic scale with few round ticks: equal distances are equal ratios. Below is room for labels."""
    low, high, whole = min(values), max(values), max(values) / min(values)
    low, high = low / whole**0.14, high * whole**0.06
    steps = [step * 10**power for power in (-1, 0, 1) for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)]
    ticks = [(step, f"{step:g}") for step in steps if low <= step <= high]
    if len(ticks) < 2:  # the ends are close
        axis = Axis(low, high, 0, 1)
        ticks = [(tick, axis.label(tick)) for tick in axis.ticks if low <= tick <= high]
    return Scale(low, high, ticks, log=True)


def durations(values: Sequence[float]) -> Scale:
    """A logarithmic scale of seconds, with more ticks where its ends are close."""
    return _log(values, UNITS if max(values) >= 100 * min(values) else [*UNITS, *BETWEEN])


def powers(values: Sequence[float]) -> Scale:
    """A logarithmic scale with powers of ten, and two and five times these where its ends are close."""
    steps = (1, 2, 5) if max(values) < 100 * min(values) else (1,)
    ticks = [
        (step * 10.0**power, f"{step} × 10{superscript(power)}".removeprefix("1 × "))
        for power in range(-3, 30)
        for step in steps
    ]
    return _log(values, ticks)


def doublings(values: Sequence[float]) -> Scale:
    """A logarithmic scale with powers of two."""
    return _log(values, [(2.0**power, f"{2**power:,}") for power in range(21)])


def _log(values: Sequence[float], ticks: Sequence[tuple[float, str]]) -> Scale:
    low, high = min(values) / 1.15, max(values) * 1.15
    return Scale(low, high, [tick for tick in ticks if low <= tick[0] <= high], log=True)


def plot(
    items: Sequence[Item],
    across: Scale,
    up: Scale,
    *,
    x_label: str,
    y_label: str,
    stairs: Sequence[Point] = (),
    level: tuple[float, str, str] | None = None,
) -> Markup:
    """A chart for wide screens and one for narrow ones, of which the page shows one.

    Args:
        items: dots have their labels near them, curves at the right.
        stairs: corners of the line of what was best so far.
        level: a dashed line across, with its label and a short one, which are left out where dots have labels.
    """
    drawn = []
    for canvas in (WIDE, NARROW):
        longest = max((len(_label(item, canvas)) for item in items if len(item.points) > 1), default=0)
        room = replace(canvas, right=round(longest * canvas.letter) + 18) if longest else canvas
        drawn.append(_draw(room, items, across, up, (x_label, y_label), stairs, level))
    return Markup('<div class="draw">{}</div>').format(Markup("").join(drawn))


def _label(item: Item, canvas: Canvas) -> str:
    return item.label if canvas.kind == WIDE.kind else item.short


def _draw(
    canvas: Canvas,
    items: Sequence[Item],
    across: Scale,
    up: Scale,
    titles: tuple[str, str],
    stairs: Sequence[Point],
    level: tuple[float, str, str] | None,
) -> Markup:
    left, top, right, bottom = canvas.area
    x_of, y_of = across.within(left, right), up.within(bottom, top)
    parts = _frame(canvas, across, up, titles)
    lines = [[(x_of(x), y_of(y)) for x, y in stairs]]
    if stairs:
        parts.append(_line("stairs", lines[0]))
    if level is not None:
        y, label = y_of(level[0]), level[1] if canvas.kind == WIDE.kind else level[2]
        lines.append([(left, y), (right, y)])
        parts.append(_line("baseline", lines[-1]))
        if not any(len(item.points) == 1 for item in items):
            parts.append(_text(label, left + 6, y + 17, "note"))
    curves = [item for item in items if len(item.points) > 1]
    dots = [item for item in items if len(item.points) == 1]
    shapes = [[(x_of(x), y_of(y)) for x, y in _below(item.points, up.high)] for item in curves]
    heights = spread([shape[-1][1] for shape in shapes], top + 4, bottom - 2)
    for item, shape, height in zip(curves, shapes, heights, strict=True):
        x, y = shape[-1]
        inner = [_line(f"line d{item.look.dash}", shape), _mark(item, x, y)]
        inner.append(_line("leader", [(x + 8, y), (right - 2, height), (right + 4, height)]))
        inner.append(_text(_label(item, canvas), right + 8, height + 4, "name"))
        if item.ring is not None and item.ring[1] <= up.high:
            ring = Markup('<circle class="ring" cx="{}" cy="{}" r="7"><title>{}</title></circle>')
            inner.append(ring.format(x_of(item.ring[0]), y_of(item.ring[1]), item.ring[2]))
        parts.append(_group(item, inner))
    places = [(x_of(item.points[0][0]), y_of(item.points[0][1])) for item in dots]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in _along([*lines, *shapes])]
    widths = [len(_label(item, canvas)) * canvas.letter * (1.08 if item.bold else 1) for item in dots]
    named = near(places, widths, canvas.area, taken)
    for item, (x, y), (at, height, anchor, far) in zip(dots, places, named, strict=True):
        inner = [_mark(item, x, y), _text(_label(item, canvas), at, height, f"name {anchor}{' best' * item.bold}")]
        if far:
            inner.insert(0, _line("leader", [(x, y), (at + {"start": -2, "end": 2}.get(anchor, 0), height - 4)]))
        parts.append(_group(item, inner))
    begin = '<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">'
    title = f"{titles[1]} against {titles[0]}"
    return (
        Markup(begin).format(canvas.kind, canvas.width, canvas.height, title)
        + Markup("").join(parts)
        + Markup("</svg>")
    )


def _below(points: Sequence[Point], high: float) -> list[Point]:
    """A falling curve from where it comes below `high`."""
    kept = [number for number, (_, y) in enumerate(points) if y <= high]
    begin = kept[0] if kept else len(points) - 1
    if not begin:
        return list(points)
    (x0, y0), (x1, y1) = points[begin - 1], points[begin]
    share = (y0 - high) / (y0 - y1) if y0 > y1 else 0.0
    return [(x0 + share * (x1 - x0), high), *points[begin:]]


def _along(lines: Iterable[Sequence[Point]]) -> list[Point]:
    """Points on lines, at most APART from each other."""
    found = []
    for line in lines:
        for (x0, y0), (x1, y1) in itertools.pairwise(line):
            count = max(1, math.ceil(math.hypot(x1 - x0, y1 - y0) / APART))
            found += [(x0 + (x1 - x0) * part / count, y0 + (y1 - y0) * part / count) for part in range(count)]
    return found


# ---------------------------------------------------------------------- parts


def _frame(canvas: Canvas, across: Scale, up: Scale, titles: tuple[str, str]) -> list[Markup]:
    left, top, right, bottom = canvas.area
    x_of, y_of = across.within(left, right), up.within(bottom, top)
    parts, last = [], -math.inf
    for value, label in across.ticks:
        x, half = x_of(value), len(label) * canvas.letter / 2
        parts.append(_line("grid", [(x, top), (x, bottom)]))
        if x - half > last + 6 and x + half < canvas.width:
            parts.append(_text(label, x, bottom + 18, "middle"))
            last = x + half
    for value, label in up.ticks:
        parts += [_line("grid", [(left, y_of(value)), (right, y_of(value))])]
        parts += [_text(label, left - 7, y_of(value) + 4.5, "end")]
    parts.append(_line("axis", [(left, bottom), (right, bottom)]))
    parts.append(_text(titles[0], (left + right) / 2, canvas.height - 8, "label middle"))
    turned = Markup('<text class="label middle" transform="translate(13 {}) rotate(-90)">{}</text>')
    return [*parts, turned.format((top + bottom) / 2, titles[1])]


def _group(item: Item, inner: Sequence[Markup]) -> Markup:
    title = Markup("<title>{}</title>").format(item.title)
    return Markup('<g class="model {}">{}{}</g>').format(item.look.color, title, Markup("").join(inner))


def _mark(item: Item, x: float, y: float) -> Markup:
    shape = Markup(SHAPES[item.look.shape])
    return Markup('<g class="mark" transform="translate({} {})">{}</g>').format(x, y, shape)


def _line(kind: str, points: Sequence[Point]) -> Markup:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return Markup('<polyline class="{}" points="{}"/>').format(kind, path)


def _text(text: str, x: float, y: float, kind: str) -> Markup:
    return Markup('<text class="{}" x="{:g}" y="{:g}">{}</text>').format(kind, round(x, 1), round(y, 1), text)
