"""What models of a ladder cost, and how far back each looks, as curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pipeline.reporting import ladder_charts
from pipeline.reporting.ladder_charts import Item, Look
from pipeline.reporting.ladder_models import (
    Model,
    is_finite,
    is_trained,
    legend,
    looks_of,
    on_curve,
    operations,
    title_of,
)
from pipeline.reporting.page import Block, Chart, Section, Table, Text
from pipeline.tracking.amounts import count, duration

MOST_POINTS = 60  # of a curve


def cost_section(models: Sequence[Model]) -> Section:
    """Validation while training against seconds and FLOPs, beside counting."""
    title = "Cost"
    trained = [model for model in models if is_trained(model) and model.get("history")]
    counting = min((model for model in models if model["kind"] == "counting"), key=on_curve, default=None)
    if not trained:
        return Section(title, [])
    looks = looks_of(models)
    ends = [on_curve(model) for model in models if model["kind"] != "baseline"]
    early = [
        model["history"][len(model["history"]) // 5]["bits_per_byte"] for model in trained
    ]  # the first fifth is steep
    high = max(filter(is_finite, [*ends, *early])) * 1.02
    blocks: list[Block] = []
    for key, x_label, scale in (
        ("seconds", "training time", ladder_charts.durations),
        ("flops", "floating-point operations of training (FLOPs)", ladder_charts.powers),
    ):
        curves = [curve for model in trained if (curve := _curve(model, key, looks, high))]
        dots = [_dot(model, key, looks) for model in models if model["kind"] == "counting" and model[key] > 0]
        xs = [x for item in (*curves, *dots) for x, y in item.points if y <= high]
        if not curves or not xs:
            continue
        up = ladder_charts.linear([min(ends), high], margin=0.03)
        label = f"best of counting: {counting['title']}" if counting else ""
        level = (on_curve(counting), label, "best of counting") if counting else None
        svg = ladder_charts.plot([*curves, *dots], scale(xs), up, x_label=x_label, y_label="bits per byte", level=level)
        caption = f"On the rows that training validates on, against {x_label}."
        if counting:
            caption += " The dashed line is the best of counting; a ring marks where a model passes it."
        blocks.append(
            Chart(svg, caption, legend([m for m in models if m in trained or (dots and m["kind"] == "counting")]))
        )
    if counting is not None:
        blocks.append(_passing(trained, counting))
    return Section(title, blocks)


def _curve(model: Model, key: str, looks: Mapping[str, Look], high: float) -> Item | None:
    points = [
        (row[key], row["bits_per_byte"]) for row in model["history"] if row[key] and is_finite(row["bits_per_byte"])
    ]
    if len(points) < 2:
        return None
    below = [number for number, (_, y) in enumerate(points) if y <= high]
    points = points[max(0, (below or [0])[0] - 1) :]
    every = math.ceil(len(points) / MOST_POINTS)
    kept = [*points[:-1:every], points[-1]]
    beats, ring = model.get("beats_counting"), None
    if beats and beats.get(key):
        y = next((y for x, y in points if x >= beats[key]), points[-1][1])
        kept = sorted({*kept, (beats[key], y)})
        ring = (beats[key], y, f"{model['title']} passes counting at step {beats['step']:,}")
    return Item(model["title"], model["name"], looks[model["name"]], kept, title_of(model), ring)


def _dot(model: Model, key: str, looks: Mapping[str, Look]) -> Item:
    point = (model[key], on_curve(model))
    return Item(
        model["title"], model["name"], looks[model["name"]], [point], f"{title_of(model)}, {duration(model['seconds'])}"
    )


def _passing(trained: Sequence[Model], counting: Model) -> Table:
    rows = []
    for model in trained:
        if beats := model.get("beats_counting"):
            cells = [
                f"{beats['step']:,}",
                count(beats["tokens"]),
                duration(beats["seconds"]),
                operations(beats["flops"]),
            ]
        else:
            cells = ["never", "", "", ""]
        rows.append([model["title"], *cells, duration(model["seconds"])])
    head = ["model", "step", "tokens", "time", "FLOPs", "whole training"]
    caption = f"Where each neural model first beats {counting['title']}, which took {duration(counting['seconds'])}."
    return Table(head, rows, caption)


def context_section(models: Sequence[Model]) -> Section:
    """Loss by the number of tokens before one."""
    title = "Reach"
    looks, items = looks_of(models), []
    for model in models:
        points = [
            (math.sqrt(first * last), nats) for first, last, nats in model.get("by_context") or () if is_finite(nats)
        ]
        if len(points) > 1 and model["kind"] != "baseline":
            items.append(Item(model["title"], model["name"], looks[model["name"]], points, title_of(model)))
    if not items:
        return Section(title, [])
    across = ladder_charts.doublings([x for item in items for x, _ in item.points])
    up = ladder_charts.linear([y for item in items for _, y in item.points])
    svg = ladder_charts.plot(items, across, up, x_label="tokens of context", y_label="nats per token")
    text = (
        "The loss of a token by the number of tokens before it. A model that looks back n − 1 tokens is flat behind "
        "them; one that falls to the end uses all that it is given."
    )
    shown = [model for model in models if model["name"] in {item.short for item in items}]
    return Section(title, [Text(text), Chart(svg, "Mean loss on held-out text by length of context.", legend(shown))])
