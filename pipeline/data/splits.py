"""Splitting rows off a data set that has no validation or test part: the same rows on every run, whatever its seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
SEED = 0  # of all splits: not that of a run, so that runs with other seeds are tested on the same rows
MOST_ASIDE = 5  # where valid_rows is a number, at most one row in this many is set aside


def drawn(rows: int, count: int) -> list[int]:
    """Numbers of rows, drawn at random."""
    return np.random.default_rng(SEED).permutation(rows)[:count].tolist()


def nested(strata: Sequence[Hashable], seed: int) -> list[int]:
    """Numbers of all rows in an order whose every beginning has each stratum in its share, by the seed.

    So the first 10 rows are among the first 100. With one stratum it is a permutation.
    """
    members: dict[Hashable, list[int]] = {}
    for number, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(number)
    rng = np.random.default_rng(seed)
    places = [place for rows in members.values() for place in spread(rows, rng)]
    return [row for _, row in sorted(places)]


def spread(members: Sequence[T], rng: np.random.Generator, *, kept: int = 0) -> list[tuple[float, T]]:
    """Members in an order by chance, with places that are spread evenly from 0 to 1; its first `kept` are left out."""
    order, offset = rng.permutation(len(members)), rng.random()
    return [((place + offset) / len(members), members[j]) for place, j in enumerate(order[kept:])]


def stratified(contents: Sequence[Hashable], strata: Sequence[Hashable], count: int) -> list[int]:
    """Numbers of rows, in ascending order, in which each stratum has the share that it has in all rows.

    Rows of the same content stay together, so that no text is on both sides; a stratum never leaves as a whole, so that
    a model is trained on every label. Where that leaves no more to take, there are fewer than `count`.

    Args:
        contents: of each row, its text.
        strata: of each row, its label.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, content in enumerate(contents):
        groups.setdefault(content, []).append(number)
    by_stratum: dict[Hashable, list[list[int]]] = {}
    for group in groups.values():
        by_stratum.setdefault(strata[group[0]], []).append(group)
    rng = np.random.default_rng(SEED)
    places = [place for members in by_stratum.values() for place in spread(members, rng, kept=1)]
    chosen: list[int] = []
    for _, group in sorted(places, key=lambda place: place[0]):
        if len(chosen) + len(group) > count:
            continue
        chosen += group
    return sorted(chosen)
