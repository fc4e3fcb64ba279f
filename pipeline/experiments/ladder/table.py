"""The results of a ladder as files: ladder.json, ladder.md, ladder.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.experiments.ladder import plot as ladder_plot
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.tracking.tables import markdown_table

Rows = Sequence[dict[str, Any]]
NOTE = """\
All models have the same text{shared}. Bits per byte are those of the whole validation part, less is better; the best
is bold. Seconds and FLOPs are those of the training run with the best learning rate, without the choice of it.
"""
PASSING = "A model beats counting when its validation curve first falls below the best counting model.\n"
SEEDS = "Bits per byte and perplexity are means over {} seeds; all else is of the first.\n"
HALVES = "The weight, of the first model, is fitted on the first half of the validation text; bits are of the second.\n"
PUBLISHED = "\nPublished: by Warstadt et al. (2020), for these pairs, of models trained on other and more text.\n"
LEAST = 0.0005  # bits per byte, a gain that is shown


def write(results: dict[str, Any], out: Path) -> None:
    """Writes ladder.json, ladder.md and ladder.png into `out`."""
    write_json(out / "ladder.json", results, indent=1, allow_nan=False)
    write_atomically(out / "ladder.md", markdown(results))
    ladder_plot.plot(results, out / "ladder.png")


def markdown(results: dict[str, Any]) -> str:
    """All tables, those that have no row left out."""
    parts = [
        ("", main_table(results)),
        ("Choices", choices_table(results["models"])),
        ("Loss by context", context_table(results["models"])),
        ("Minimal pairs of grammar (BLiMP)", blimp_table(results["models"], results.get("published_blimp", []))),
        ("Mixtures", mixtures_table(results)),
        ("Claims", claims_table(results["claims"])),
        ("Continuations", continuations(results)),
    ]
    text = "\n".join((f"## {title}\n\n" if title else "") + part for title, part in parts if part)
    return f"# Language models on {results['corpus']}\n\n{text}"


def main_table(results: dict[str, Any]) -> str:
    """A line for each model; columns without content are left out."""
    models, shared = results["models"], results["tokenizer"] is not None
    best = min(row["bits_per_byte"] for row in models)
    columns = {
        "model": [row["title"] for row in models],
        "year": [str(row["year"]) for row in models],
        "source": [row["source"] for row in models],
        "parameters": [f"{row['parameters']:,}" for row in models],
        "bits per byte": [bold(f"{row['bits_per_byte']:.3f}", row["bits_per_byte"] == best) for row in models],
        "perplexity": [f"{row['perplexity']:,.1f}" if shared else "" for row in models],
        "seconds": [f"{row['seconds']:,.0f}" for row in models],
        "FLOPs": [f"{row['flops']:.2g}" if row["flops"] else "" for row in models],
        "beats counting": [f"{at['seconds']:,.0f} s" if (at := row["beats_counting"]) else "" for row in models],
    }
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    note = NOTE.format(shared=", tokenizer and validation tokens" if shared else "")
    note += PASSING if any(columns["beats counting"]) else ""
    note += SEEDS.format(seeds) if (seeds := max(len(row["by_seed"]) for row in models)) > 1 else ""
    made = f"Version {results['version']}, {results['precision']}, {results['device']}. `{results['command']}`\n"
    return f"{markdown_table(list(kept), zip(*kept.values(), strict=True))}\n{note}{made}"


def bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best else text


def choices_table(models: Rows) -> str:
    """Of a product of choices: the last axis as columns, all combinations of the others as rows."""
    if not all(row["axes"] for row in models) or len(models[0]["axes"]) < 2:
        return ""
    *others, last = models[0]["axes"]
    bits = {tuple(row["axes"].values()): row["bits_per_byte"] for row in models}
    columns = list(dict.fromkeys(row["axes"][last] for row in models))
    begins = list(dict.fromkeys(key[:-1] for key in bits))

    def cell(key: tuple[str, ...]) -> str:
        return bold(f"{bits[key]:.3f}", bits[key] == min(bits.values())) if key in bits else ""

    head = [*others, *(f"{last} {column}" for column in columns)]
    return markdown_table(head, [[*begin, *(cell((*begin, column)) for column in columns)] for begin in begins])


def context_table(models: Rows) -> str:
    """Nats per token by the number of tokens that a model was given before it."""
    places = list(dict.fromkeys((first, last) for row in models for first, last, _ in row["by_context"]))
    if len(places) < 2:
        return ""
    names = [str(first) if first == last else f"{first:,}-{last:,}" for first, last in places]
    rows = []
    for row in models:
        loss = {(first, last): f"{nats:.2f}" for first, last, nats in row["by_context"]}
        rows.append([row["title"], *(loss.get(place, "") for place in places)])
    return markdown_table(["tokens of context", *names], rows) + "\nNats per token.\n"


def blimp_table(models: Rows, published: Rows) -> str:
    """Accuracy by phenomenon, and what was published for the same pairs; the best model here is bold."""
    scored = [row for row in models if row["blimp"]]
    if not scored:
        return ""
    ours = [row["blimp"] for row in scored]
    lines = [["all", *(f"{accuracies['accuracy']:.1%}" for accuracies in [*ours, *published])]]
    for name in ours[0]["phenomena"]:
        values = [accuracies["phenomena"][name] for accuracies in ours]
        cells = [bold(f"{value:.1%}", value == max(values)) for value in values]
        theirs = [f"{accuracies['phenomena'][name]:.1%}" for accuracies in published]
        lines.append([name.replace("_", " "), *cells, *theirs])
    others = [f"{accuracies['title']} (published)" for accuracies in published]
    head = ["phenomenon", *(row["title"] for row in scored), *others]
    return markdown_table(head, lines) + PUBLISHED * bool(published)


def mixtures_table(results: dict[str, Any]) -> str:
    """The pairs that are better than either model."""
    titles = {row["name"]: row["title"] for row in results["models"]}
    pairs = sorted(results["mixtures"], key=lambda pair: pair["bits_per_byte"])
    if not pairs:
        return ""
    better = [pair for pair in pairs if pair["interval"][0] > 0 and pair["gain"] >= LEAST]
    rows = [
        [
            " + ".join(titles[name] for name in pair["models"]),
            f"{pair['weight']:.2f}",
            f"{pair['bits_per_byte']:.3f}",
            titles[pair["better_half"]],
            f"{pair['gain']:.3f} [{pair['interval'][0]:.3f}, {pair['interval'][1]:.3f}]",
        ]
        for pair in better
    ]
    worse = len(pairs) - len(better)
    others = f"{worse} of {len(pairs)} pairs gain less than {LEAST} bits per byte, or their interval holds 0.\n"
    if not rows:
        return others
    head = ["mixture", "weight", "bits per byte", "better alone", "gain with 95 % interval"]
    return f"{markdown_table(head, rows)}\n{HALVES}{others}"


def claims_table(claims: Rows) -> str:
    """The claims that these models test."""
    tried = [claim for claim in claims if claim["holds"] is not None]
    if not tried:
        return ""
    rows = [
        [
            claim["claim"],
            claim["source"],
            "holds" if claim["holds"] else "does not hold",
            claim["by"],
            claim["seeds"] or "",
        ]
        for claim in tried
    ]
    others = len(claims) - len(tried)
    note = f"\n{others} more need{'s' * (others == 1)} models that are not here.\n" if others else ""
    return markdown_table(["claim", "source", "here", "by", "seeds"], rows) + note


def continuations(results: dict[str, Any]) -> str:
    rows = [[row["title"], row["continuation"]] for row in results["models"] if row["continuation"] is not None]
    return markdown_table(["model", f"{results['prompt']} ..."], rows) if rows else ""
