"""The page of a ladder: models from counting to attention on one text, from the content of its ladder.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.reporting import ladder_charts, render
from pipeline.reporting.ladder_blocks import Cell, Claims, Continuations, Matrix
from pipeline.reporting.ladder_charts import Item
from pipeline.reporting.ladder_curves import context_section, cost_section
from pipeline.reporting.ladder_models import (
    Model,
    best_of,
    count,
    duration,
    is_finite,
    is_trained,
    legend,
    looks_of,
    operations,
    readable,
    title_of,
    titles_of,
)
from pipeline.reporting.ladder_reading import paragraph_section
from pipeline.reporting.page import Block, Chart, Code, Figure, Page, Section, Table, Text
from pipeline.storage.atomic import write_atomically


def write_page(ladder: Mapping[str, Any], file: Path) -> None:
    """Writes the page. What the ladder lacks (mixtures, BLiMP, a paragraph, claims) is left out.

    Args:
        ladder: the content of a ladder.json.
    """
    write_atomically(file, render.html(page_of(ladder)))


def page_of(ladder: Mapping[str, Any]) -> Page:
    models = [model for model in ladder["models"] if is_finite(model.get("bits_per_byte"))]
    return Page(
        title="Seventy years of language models on one text",
        about=_about(ladder),
        figures=_figures(models, ladder.get("mixtures") or []),
        sections=[
            _years(ladder, models),
            _continuations(ladder),
            paragraph_section(ladder),
            cost_section(models),
            context_section(models),
            _grammar(models),
            _mixtures(ladder, models),
            _claims(ladder),
            _method(ladder, models),
        ],
        styles=["ladder.css"],
        script="ladder.js",
    )


def _about(ladder: Mapping[str, Any]) -> str:
    tokenizer = ladder["tokenizer"]
    parts = [
        f"Corpus {ladder['corpus']}: {count(ladder['train_tokens'])} tokens to learn from, "
        f"{count(ladder['validation_bytes'])} bytes held out",
        f"{tokenizer['scheme']} tokenizer, {tokenizer['vocabulary']:,} pieces",
        f"version {ladder['version']}, {ladder['precision']}, {ladder['device']}, {ladder['date']}",
    ]
    return "; ".join(parts)


def _figures(models: Sequence[Model], mixtures: Sequence[Mapping[str, Any]]) -> list[Figure]:
    best, counting, worst = (
        best_of(models),
        best_of(models, "counting"),
        max(models, key=lambda m: m["bits_per_byte"], default=None),
    )
    if best is None or worst is None:
        return []
    figures = [
        Figure("Best model", best["title"], f"{best['year']}, {best['bits_per_byte']:.3f} bits per byte"),
        Figure(
            "From first to best",
            f"{worst['bits_per_byte']:.2f} → {best['bits_per_byte']:.2f}",
            f"bits per byte; a text shrinks to {best['bits_per_byte'] / 8:.0%} of its size",
        ),
    ]
    if counting is not None:
        beside = f"{counting['title']}, {duration(counting['seconds'])}"
        figures.append(Figure("Best of counting", f"{counting['bits_per_byte']:.2f}", beside))
        ahead = [m for m in models if is_trained(m) and m["bits_per_byte"] < counting["bits_per_byte"]]
        trained = sum(map(is_trained, models))
        figures.append(
            Figure("Neural models ahead of counting", f"{len(ahead)} of {trained}", "at the end of training")
        )
    if mixtures:
        top = min(mixtures, key=lambda mixture: mixture["bits_per_byte"])
        names = {model["name"]: model["title"] for model in models}
        pair = " + ".join(names.get(name, name) for name in top["models"])
        figures.append(Figure("Best mixture", f"{top['bits_per_byte']:.2f}", pair))
    return figures


def _years(ladder: Mapping[str, Any], models: Sequence[Model]) -> Section:
    if not models:
        return Section("Seventy years", [])
    looks, lowest = looks_of(models), math.inf
    stairs: list[ladder_charts.Point] = []
    records: set[str] = set()
    by_year = sorted(models, key=lambda model: (model["year"], model["bits_per_byte"]))
    for model in by_year:
        if model["bits_per_byte"] < lowest:
            stairs += [(model["year"], lowest)] if stairs else []
            lowest = model["bits_per_byte"]
            stairs.append((model["year"], lowest))
            records.add(model["name"])
    years = [model["year"] for model in models]
    stairs.append((max(years) + 2, lowest))
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
    span = [min(years), max(years) + 2]
    across = ladder_charts.linear(span, margin=0.04, form=".0f")
    up = ladder_charts.linear([model["bits_per_byte"] for model in models])
    svg = ladder_charts.plot(items, across, up, x_label="year", y_label="bits per byte", stairs=stairs)
    caption = (
        "Held-out text. The stepped line is the best of its time; all models were trained here, on the same tokens."
    )
    blocks: list[Block] = [
        Text(
            "Bits per byte: how many bits a model spends on one byte of text that it has not seen. Without a model a "
            "byte costs 8. The better a model predicts what comes next, the fewer it needs."
        ),
        Chart(svg, caption, legend(models)),
        _table(ladder["models"]),
    ]
    return Section("Seventy years", blocks)


def _table(models: Sequence[Model]) -> Table:
    best = best_of([model for model in models if is_finite(model.get("bits_per_byte"))])
    rows = []
    for model in models:
        bits = f"{model['bits_per_byte']:.3f}" if is_finite(model.get("bits_per_byte")) else "infinite"
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


def _continuations(ladder: Mapping[str, Any]) -> Section:
    texts = []
    for model in ladder["models"]:
        if model.get("continuation"):
            bits = model.get("bits_per_byte")
            about = f"{model['year']}" + (f", {bits:.2f} bits per byte" if is_finite(bits) else "")
            texts.append((model["title"], about, readable(model["continuation"])))
    if not texts:
        return Section("One prompt", [])
    text = (
        "Each model draws token after token from its own distribution, with the same seed. "
        "Shannon did so by hand, with a book opened at random."
    )
    return Section("One prompt", [Text(text), Continuations(ladder["prompt"], texts)])


def _grammar(models: Sequence[Model]) -> Section:
    title, asked = "Grammar", [model for model in models if model.get("blimp")]
    if not asked:
        return Section(title, [])
    names = list(dict.fromkeys(name for model in asked for name in model["blimp"]["phenomena"]))
    rows = [("all", [_share(model["blimp"]["accuracy"], bold=True) for model in asked])]
    for name in names:
        cells = [_share(model["blimp"]["phenomena"].get(name)) for model in asked]
        rows.append((re.sub(r"_1$", "", name).replace("_", " "), cells))
    text = (
        "BLiMP (Warstadt et al. 2020): of two sentences that differ in one thing, does the model find the grammatical "
        "one likelier? A coin is right in 50 %."
    )
    return Section(
        title,
        [
            Text(text),
            Matrix([m["title"] for m in asked], rows, "Accuracy in percent. Pale is chance, orange below it."),
        ],
    )


def _share(value: float | None, *, bold: bool = False) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell("")
    return Cell(f"{100 * value:.0f}", 2 * value - 1, f"{100 * value:.1f} %", bold)


def _mixtures(ladder: Mapping[str, Any], models: Sequence[Model]) -> Section:
    title, mixtures, titles = "Mixtures", ladder.get("mixtures") or [], titles_of(ladder)
    if not mixtures:
        return Section(title, [])
    pairs = {frozenset(mixture["models"]): mixture for mixture in mixtures}
    known = {name for pair in pairs for name in pair}
    names = [model["name"] for model in models if model["name"] in known]
    most = max((mixture["gain"] for mixture in mixtures), default=0) or 1
    rows = []
    for number, name in enumerate(names[1:], 1):
        cells = [_mixture(pairs.get(frozenset((name, other))), most, titles) for other in names[:number]]
        rows.append((titles[name], [*cells, *[Cell("")] * (len(names) - 1 - number)]))
    text = (
        "p = λ p₁ + (1 − λ) p₂, with λ fitted on the first half of the held-out text and scored on the second. "
        "Models that err in different ways help each other most."
    )
    caption = "Gain over the better of the two, in thousandths of a bit per byte. Bold: its 95 % interval is above 0."
    matrix = Matrix([titles[name] for name in names[:-1]], rows, caption)
    return Section(title, [Text(text), matrix, _top(mixtures, titles)])


def _mixture(mixture: Mapping[str, Any] | None, most: float, titles: Mapping[str, str]) -> Cell:
    if mixture is None:
        return Cell("")
    a, b = (titles[name] for name in mixture["models"])
    text = (
        f"{mixture['weight']:.2f} {a} + {1 - mixture['weight']:.2f} {b}: {mixture['bits_per_byte']:.3f} bits per byte"
    )
    share = max(0.0, mixture["gain"] / most)
    return Cell(f"{1000 * mixture['gain']:.0f}".replace("-0", "0"), share, text, mixture["interval"][0] > 0)


def _top(mixtures: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    rows = []
    for mixture in sorted(mixtures, key=lambda mixture: mixture["bits_per_byte"])[:5]:
        low, high = mixture["interval"]
        a, b = (titles[name] for name in mixture["models"])
        weights = f"{mixture['weight']:.2f} / {1 - mixture['weight']:.2f}"
        gain = f"{mixture['gain']:.4f} ({low:.4f} to {high:.4f})"
        rows.append([f"{a} + {b}", weights, f"{mixture['bits_per_byte']:.3f}", gain])
    head = ["mixture", "weights", "bits per byte", "gain over the better one"]
    return Table(head, rows, "The five best, on the second half of the held-out text.")


def _claims(ladder: Mapping[str, Any]) -> Section:
    claims = ladder.get("claims") or []
    text = "What lectures and papers say, and what this ladder shows. One text and small models: a hint, no proof."
    return Section("Claims", [Text(text), Claims(claims)] if claims else [])


def _method(ladder: Mapping[str, Any], models: Sequence[Model]) -> Section:
    blocks: list[Block] = []
    rows = []
    for model in models:
        if len(model.get("rates") or ()) > 1:
            tried = [f"{rate['learning_rate']:g}: {rate['bits_per_byte']:.3f}" for rate in model["rates"]]
            rows.append([model["title"], f"{model['steps']:,}", count(model["tokens"]), "; ".join(tried)])
    if rows:
        caption = "Each neural model was trained with several learning rates; the best on the held-out text is shown."
        head = ["model", "steps", "tokens seen", "learning rate: bits per byte"]
        blocks.append(Table(head, rows, caption, numbers=(1, 2)))
    if ladder.get("command"):
        blocks += [Text("This trains what is missing and writes the page again."), Code(ladder["command"])]
    return Section("How it was made", blocks)
