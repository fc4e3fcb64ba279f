"""The models of a ladder at a glance: figures, bits per byte by year or by choice, a table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.experiments.ladder.plot import lines_of
from pipeline.experiments.ladder.table import LEAST
from pipeline.reporting import ladder_charts
from pipeline.reporting.charts import Point
from pipeline.reporting.ladder_charts import Item, Look, Scale
from pipeline.reporting.ladder_models import (
    Model,
    best_of,
    has_axes,
    is_finite,
    is_trained,
    legend,
    looks_of,
    operations,
    title_of,
    titles_of,
)
from pipeline.reporting.page import Chart, Figure, Section, Table, Text
from pipeline.tracking.amounts import count, duration


def figures(ladder: Mapping[str, Any], models: Sequence[Model]) -> list[Figure]:
    """The numbers at the top of the page.

    Args:
        models: those with a finite loss.
    """
    best, counting = best_of(models), best_of(models, "counting")
    if best is None:
        return []
    worst = max(models, key=lambda model: model["bits_per_byte"])
    found = [
        Figure("Best model", best["title"], f"{best['year']}, {best['bits_per_byte']:.3f} bits per byte"),
        Figure(
            "From worst to best",
            f"{worst['bits_per_byte']:.2f} → {best['bits_per_byte']:.2f}",
            f"bits per byte; a text shrinks to {best['bits_per_byte'] / 8:.0%} of its size",
        ),
    ]
    trained = [model for model in models if is_trained(model)]
    if counting is not None and trained:
        beside = f"{counting['title']}, {duration(counting['seconds'])}"
        found.append(Figure("Best of counting", f"{counting['bits_per_byte']:.2f}", beside))
        ahead = sum(model["bits_per_byte"] < counting["bits_per_byte"] for model in trained)
        found.append(Figure("Neural models ahead of it", f"{ahead} of {len(trained)}", "at the end of training"))
    if mixtures := ladder.get("mixtures"):
        top, names = min(mixtures, key=lambda mixture: mixture["bits_per_byte"]), titles_of(ladder)
        pair = " + ".join(names[name] for name in top["models"])
        gap = f"{top['gain']:.3f} below" if top["gain"] >= LEAST else "no better than"
        beside = f"{pair}; {gap} {names[top['better_half']]} alone, on half of the text"
        found.append(Figure("Best mixture", f"{top['bits_per_byte']:.2f}", beside))
    return found


def overview_section(ladder: Mapping[str, Any], models: Sequence[Model]) -> Section:
    """All models: by year, or by the choices that they are made of."""
    title = "Choices" if has_axes(models) else "Seventy years"
    if not models:
        return Section(title, [])
    text = (
        "Bits per byte: how many bits a model spends on one byte of text that it has not seen. Without a model a "
        "byte costs 8. The better a model predicts what comes next, the fewer it needs."
    )
    return Section(
        title, [Text(text), _choices(models) if has_axes(models) else _years(models), _table(ladder["models"])]
    )


def _years(models: Sequence[Model]) -> Chart:
    """Every model at its year, and the line of what was best so far."""
    looks, years = looks_of(models), [model["year"] for model in models]
    stairs, records = _records(models)
    items = [
        Item(
            f"{model['title']} {model['bits_per_byte']:.2f}",
            model["name"],
            looks[model["name"]],
            [(model["year"], model["bits_per_byte"])],
            f"{title_of(model)}; {model['source']}",
            bold=model["name"] in records,
        )
        for model in models
    ]
    across = ladder_charts.linear([min(years), max(years) + 2], margin=0.04, form=ladder_charts.WHOLE)
    up = ladder_charts.ratios([model["bits_per_byte"] for model in models])
    label = "bits per byte (logarithmic)"
    svg = ladder_charts.plot(items, across, up, x_label="year", y_label=label, stairs=stairs)
    caption = "Held-out text, years of the papers. Every model was trained here; the stepped line is the best so far."
    return Chart(svg, caption, legend(models))


def _records(models: Sequence[Model]) -> tuple[list[Point], set[str]]:
    """The corners of the line of what was best so far, and the names of the models on it."""
    stairs: list[Point] = []
    names, lowest = set(), math.inf
    for model in sorted(models, key=lambda model: (model["year"], model["bits_per_byte"])):
        if model["bits_per_byte"] < lowest:
            stairs += [(model["year"], lowest)] if stairs else []
            lowest = model["bits_per_byte"]
            stairs.append((model["year"], lowest))
            names.add(model["name"])
    return [*stairs, (max(model["year"] for model in models) + 2, lowest)], names


def _choices(models: Sequence[Model]) -> Chart:
    """The choices of one axis from left to right; a line for each combination of the others."""
    along, choices, lines = lines_of(models)
    items = [
        Item(name, name, Look(f"s{number % 5}", 0, number // 5), points, name)
        for number, (name, points) in enumerate(lines.items())
    ]
    ticks = [(float(place), choice) for place, choice in enumerate(choices)]
    across = Scale(-0.15, len(ticks) - 0.85, ticks)
    up = ladder_charts.linear([model["bits_per_byte"] for model in models])
    svg = ladder_charts.plot(items, across, up, x_label=along, y_label="bits per byte")
    return Chart(svg, f"Bits per byte of held-out text by {along}.")


def _table(models: Sequence[Model]) -> Table:
    best = best_of([model for model in models if is_finite(model.get("bits_per_byte"))])
    rows = []
    for model in models:
        bits = f"{model['bits_per_byte']:.3f}" if is_finite(model.get("bits_per_byte")) else "infinite"
        if len(seeds := model.get("by_seed") or ()) > 1:
            bits += f" ± {statistics.stdev(seeds):.3f}"
        perplexity = model.get("perplexity")
        rows.append(
            [
                model["title"],
                str(model["year"]),
                f"**{bits}**" if model is best else bits,
                f"{perplexity:,.1f}" if is_finite(perplexity) else "infinite",
                count(model["parameters"]),
                duration(model["seconds"]),
                operations(model["flops"]),
                model["source"],
            ]
        )
    head = ["model", "year", "bits per byte", "perplexity", "parameters", "training", "FLOPs", "source"]
    caption = "Every model. Perplexity is by token. Parameters of a counting model: its entries."
    return Table(head, rows, caption, numbers=(1, 2, 3, 4, 5, 6))
