"""Where labels stand in a chart, so that none covers another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
LINE = 16  # least distance of two labels, one above the other


def spread(heights: Sequence[float], top: float, bottom: float, gap: float = LINE) -> list[float]:
    """Heights near the given ones, at least `gap` apart where there is room, between `top` and `bottom`."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    gap = min(gap, (bottom - top) / max(1, len(order) - 1))
    placed: list[list[float]] = []  # groups of labels that touch: [sum of wishes, number]
    for place in order:
        placed.append([heights[place], 1])
        while len(placed) > 1 and _first(placed[-1], gap) < _first(placed[-2], gap) + placed[-2][1] * gap:
            total, count = placed.pop()
            placed[-1] = [placed[-1][0] + total, placed[-1][1] + count]
    spots = [_first(group, gap) + number * gap for group in placed for number in range(int(group[1]))]
    for number, spot in enumerate(spots):
        spots[number] = max(spot, top + number * gap)
    for number in range(1, len(spots) + 1):
        spots[-number] = min(spots[-number], bottom - (number - 1) * gap)
    found = [0.0] * len(order)
    for place, spot in zip(order, spots, strict=True):
        found[place] = round(spot, 1)
    return found


def _first(group: Sequence[float], gap: float) -> float:
    return group[0] / group[1] - gap * (group[1] - 1) / 2


def near(
    points: Sequence[Point], widths: Sequence[float], area: Box, taken: Sequence[Box]
) -> list[tuple[float, float, str, bool]]:
    """For each point the place of its label: x, y, anchor, and whether it is so far that a line leads to it.

    Labels are placed one after the other, in several orders, of which the best is taken.

    Args:
        widths: of the labels.
        area: where labels may stand.
        taken: what they should not cover, beside points and other labels.
    """
    blocks = [*taken, *((x - 8, y - 8, x + 8, y + 8) for x, y in points)]
    crowd = [-float(sum(math.hypot(x - a, y - b) < 70 for a, b in points)) for x, y in points]
    ranks = [crowd, *([sign * point[axis] for point in points] for axis in (0, 1) for sign in (1, -1))]
    orders = [sorted(range(len(points)), key=rank.__getitem__) for rank in ranks]
    return min((_placed(order, points, widths, area, blocks) for order in orders), key=lambda tried: tried[0])[1]


def _placed(
    order: Sequence[int], points: Sequence[Point], widths: Sequence[float], area: Box, blocks: Sequence[Box]
) -> tuple[float, list[tuple[float, float, str, bool]]]:
    """Labels in an order, each where it costs least: the cost of all, and their places."""
    total, taken, found = 0.0, [*blocks], {}
    for number in order:
        others = [point for point in points if point != points[number]]
        least, place = math.inf, None
        for offset in _offsets():
            if offset[0] >= least:  # no label so far away costs less
                break
            spot, box, distance = _place(*points[number], widths[number], *offset)
            cost = _cost(spot, box, distance, taken, others, area)
            if cost < least:
                least, place = cost, (box, (*spot, distance > 14))
        assert place is not None
        box, found[number] = place
        taken.append(box)
        total += least
    return total, [found[number] for number in range(len(points))]


@cache
def _offsets() -> list[tuple[float, float]]:
    """Distance and direction of labels, the best first."""
    turns = (0, 180, 270, 90, 330, 30, 210, 150, 300, 60, 240, 120)
    return [(distance, math.radians(turn)) for distance in (11, 13, 24, 36, 50, 66, 84, 105, 130) for turn in turns]


def _place(
    x: float, y: float, width: float, distance: float, turn: float
) -> tuple[tuple[float, float, str], Box, float]:
    """Where the text stands, the box that it takes, and how far it is."""
    across, down = distance * math.cos(turn), distance * math.sin(turn)
    middle = y + down + (2 if down > 1 else -2 if down < -1 else 0)
    if abs(across) < 1:
        anchor, left = "middle", x - width / 2
    else:
        anchor, left = ("start", x + across) if across > 0 else ("end", x + across - width)
    spot = (round(x + across, 1), round(middle + 4.5, 1), anchor)
    return spot, (left - 2, middle - 8, left + width + 2, middle + 8), distance


def _cost(
    spot: tuple[float, float, str],
    box: Box,
    distance: float,
    blocks: Sequence[Box],
    others: Sequence[Point],
    area: Box,
) -> float:
    """What is covered or outside, how far the label is, and whether it seems to be of another point."""
    left, top, right, bottom = area
    covered = sum(_overlap(box, block) for block in blocks)
    outside = max(0, left - box[0]) + max(0, box[2] - right) + max(0, top - box[1]) + max(0, box[3] - bottom)
    mistaken = any(math.hypot(spot[0] - x, spot[1] - 4.5 - y) < 16 for x, y in others)
    return distance + 2 * covered + 100 * outside + 60 * mistaken


def _overlap(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return width * height if width > 0 and height > 0 else 0.0
