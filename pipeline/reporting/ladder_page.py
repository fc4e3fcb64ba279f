"""The page of a ladder: models from counting to attention on one text, from the content of its ladder.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.reporting import render
from pipeline.reporting.ladder_curves import context_section, cost_section
from pipeline.reporting.ladder_models import (
    Model,
    has_axes,
    is_finite,
    titles_of,
)
from pipeline.reporting.ladder_overview import figures, overview_section
from pipeline.reporting.ladder_reading import paragraph_section
from pipeline.reporting.page import Block, Cell, Claims, Code, Continuations, Matrix, Page, Section, Table, Text
from pipeline.storage.atomic import write_atomically
from pipeline.tokenization.base import printable
from pipeline.tracking.amounts import count


def write_page(ladder: Mapping[str, Any], file: Path) -> None:
    """Writes the page. What the ladder lacks (mixtures, BLiMP, a paragraph, claims) is left out.

    Args:
        ladder: the content of a ladder.json.
    """
    write_atomically(file, render.html(page_of(ladder)))


def page_of(ladder: Mapping[str, Any]) -> Page:
    models = [model for model in ladder["models"] if is_finite(model.get("bits_per_byte"))]
    return Page(
        title="Language models on one text" if has_axes(models) else "Seventy years of language models on one text",
        about=_about(ladder),
        figures=figures(ladder, models),
        sections=[
            overview_section(ladder, models),
            _continuations(ladder),
            paragraph_section(ladder),
            cost_section(models),
            context_section(models),
            _grammar(ladder, models),
            _mixtures(ladder, models),
            _claims(ladder),
            _method(ladder, models),
        ],
        styles=["ladder.css"],
        script="ladder.js",
    )


def _about(ladder: Mapping[str, Any]) -> str:
    tokenizer = ladder["tokenizer"]
    pieces = (
        f"{tokenizer['scheme']} tokenizer, {tokenizer['vocabulary']:,} pieces" if tokenizer else "tokenizers differ"
    )
    parts = [
        f"Corpus {ladder['corpus']}: {count(ladder['train_tokens'])} tokens to learn from, "
        f"{count(ladder['validation_bytes'])} bytes held out",
        pieces,
        f"version {ladder['version']}, {ladder['precision']}, {ladder['device']}, {ladder['date'][:10]}",
    ]
    return "; ".join(parts)


def _continuations(ladder: Mapping[str, Any]) -> Section:
    texts = []
    for model in ladder["models"]:
        if model.get("continuation"):
            bits = model.get("bits_per_byte")
            about = f"{model['year']}" + (f", {bits:.2f} bits per byte" if is_finite(bits) else "")
            texts.append((model["title"], about, printable(model["continuation"])))
    if not texts:
        return Section("One prompt", [])
    text = (
        "Each model draws token after token from its own distribution, with the same seed. "
        "Shannon did so by hand, with a book opened at random."
    )
    return Section("One prompt", [Text(text), Continuations(ladder["prompt"], texts)])


def _grammar(ladder: Mapping[str, Any], models: Sequence[Model]) -> Section:
    title, asked = "Grammar", [model for model in models if model.get("blimp")]
    if not asked:
        return Section(title, [])
    names = list(dict.fromkeys(name for model in asked for name in model["blimp"]["phenomena"]))
    published = ladder.get("published_blimp") or []
    found = [*(model["blimp"] for model in asked), *published]
    rows = [("all", [_share(accuracies["accuracy"], bold=True) for accuracies in found])]
    for name in names:
        cells = [_share(accuracies["phenomena"].get(name)) for accuracies in found]
        rows.append((re.sub(r"_1$", "", name).replace("_", " "), cells))
    heads = [*(model["title"] for model in asked), *(f"{model['title']} (published)" for model in published)]
    text = (
        "BLiMP (Warstadt et al. 2020): of two sentences that differ in one thing, does the model find the grammatical "
        "one likelier? A coin is right in 50 %."
    )
    return Section(
        title,
        [
            Text(text),
            Matrix(heads, rows, "Accuracy in percent. Pale is chance, orange below it."),
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
    most = max(0.0, *(mixture["gain"] for mixture in mixtures))
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
    share = max(0.0, mixture["gain"]) / (most or 1)
    gain = f"{1000 * mixture['gain']:z.{0 if most > 0.01 else 1}f}"
    return Cell(gain, share, text, mixture["interval"][0] > 0)


def _top(mixtures: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> Table:
    rows = []
    for mixture in sorted(mixtures, key=lambda mixture: mixture["bits_per_byte"])[:5]:
        low, high = mixture["interval"]
        a, b = (titles[name] for name in mixture["models"])
        weights = f"{mixture['weight']:.2f} / {1 - mixture['weight']:.2f}"
        gain = f"{mixture['gain']:z.4f} ({low:z.4f} to {high:z.4f})"
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
            tried = [f"{rate['learning_rate']:g}: {_bits(rate['bits_per_byte'])}" for rate in model["rates"]]
            rows.append([model["title"], f"{model['steps']:,}", count(model["tokens"]), "; ".join(tried)])
    if rows:
        caption = "Learning rates were tried: bits per byte on validation rows. The best one was taken."
        head = ["model", "steps", "tokens seen", "learning rate: bits per byte"]
        blocks.append(Table(head, rows, caption, numbers=(1, 2)))
    if ladder.get("command"):
        blocks += [Text("This trains what is missing and writes the page again."), Code(ladder["command"])]
    return Section("How it was made", blocks)


def _bits(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3f}"
