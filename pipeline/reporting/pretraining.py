"""The page of a pretraining run, with everything that grew from its encoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pydoc import locate
from typing import Any

from pipeline import objectives
from pipeline.experiments.comparison.table import Footnote
from pipeline.objectives.base import Objective
from pipeline.presets import former_names
from pipeline.reporting import charts, grid, shared
from pipeline.reporting.page import Block, Chart, Charts, Code, Figure, Page, Section, Table, Text
from pipeline.reporting.run_record import RunRecord
from pipeline.tracking.amounts import count, duration, rounded
from pipeline.tracking.tables import cells_of

GROWN = "What grew from this encoder"  # the title of a section
MOST_NAMED = 6  # folders in a note
Key = Callable[[RunRecord], Any]


def page(run: RunRecord, grown: Sequence[RunRecord]) -> Page:
    """Curves, corpus, samples and costs; and the scores of the runs that began with the encoder."""
    metrics = run.metrics
    main, baselines = compared_losses(run), run.baselines()
    shown = runs_of_their_own(grown)
    steps = metrics.get("steps", 0)
    counted = not steps  # a model that counts its corpus once
    unigram = baselines.get("unigram")
    figures = [
        Figure(
            f"Validation {shared.readable(f'{name}_loss')}",
            f"{metrics[f'val/{name}_loss']:.3f} nats",
            f"unigram baseline {unigram:.2f}" if unigram is not None else "",
        )
        for name in main
        if f"val/{name}_loss" in metrics
    ]
    if "val/bits_per_byte" in metrics:
        figures.append(Figure("Bits per byte", f"{metrics['val/bits_per_byte']:.3f}", "of the raw validation text"))
    figures += [
        Figure("Tokens seen", count(metrics.get("tokens", 0)), "" if counted else f"{steps:,} steps"),
        Figure("Time", duration(metrics.get("seconds", 0)), shared.shown_energy(metrics)),
    ]
    return Page(
        title=f"{run.model} pretrained on {run.corpus}",
        about=f"{metrics.get('parameters', 0):,} {'counts' if counted else f'parameters, {steps:,} steps'}, "
        f"seed {run.seed}, version {run.version}",
        figures=figures,
        sections=[
            *([] if counted else [curves_section(run, main)]),
            metrics_section(run),
            corpus_section(run),
            samples_section(run),
            *grown_sections(grown, shown),
            shared.lineage_section(run.stages, grown=shared.grown_nodes(shown)),
            shared.cost_section(run),
            shared.settings_section(run),
            shared.commands_section(shared.command_of(run)),
        ],
    )


def losses_of(run: RunRecord) -> list[str]:
    return [found.group(1) for name in run.metrics if (found := re.fullmatch(r"val/(.+)_loss", name))]


def compared_losses(run: RunRecord) -> list[str]:
    """Losses of the language model, which the baselines are for; all, where the objective is not known here."""
    losses = losses_of(run)
    chosen = (former_names.current(run.config).get("model") or {}).get("objective")
    path = chosen.get("class_path") if isinstance(chosen, dict) else chosen
    # Only the project's own are imported: a run of others may name any module, and a page of it is to run no code.
    objective: Any = locate(str(path)) if str(path).startswith(f"{objectives.__name__}.") else None
    if not (isinstance(objective, type) and issubclass(objective, Objective)):
        return losses
    known = objective.compared_losses()
    return [name for name in losses if name in known] or losses


def curves_section(run: RunRecord, main: Sequence[str]) -> Section:
    """The losses with their baselines, then the rest, each on its own axis."""
    baselines = run.baselines()
    losses = losses_of(run)
    drawn: list[Chart | None] = []
    for name in [*main, *(name for name in losses if name not in main)]:
        label = shared.name_of(f"{name}_loss")
        compared = baselines if name in main else None
        caption = f"{label} over the run" + (
            ", with the loss of guessing evenly and by frequency." if compared else "."
        )
        drawn.append(shared.curves(run, f"{name}_loss", caption=caption, y_label=f"{label} (nats)", baselines=compared))
        accuracy = shared.name_of(f"{name}_accuracy")
        drawn.append(
            shared.curves(run, f"{name}_accuracy", caption=f"{accuracy}: share of right predictions.", y_label=accuracy)
        )
    norm = shared.curves(run, "grad_norm", caption="Norm of the gradient before clipping.", y_label="gradient norm")
    found = [chart for chart in (*drawn, shared.rate_chart(run), norm) if chart is not None]
    return Section("Training curves", [Charts(found)] if found else [])


def metrics_section(run: RunRecord) -> Section:
    rows = [
        [f"Baseline: {shared.readable(name)}" if "baseline/" in name else shared.name_of(name), rounded(value)]
        for name, value in run.metrics.items()
        if name.startswith(("val/", "baseline/")) and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    most = (former_names.current(run.config).get("data") or {}).get("validation_rows")
    where = "the validation text" + (f" (at most {most:,} of its rows)" if isinstance(most, int) else "")
    text = f"Metrics of {where}, and baselines of the loss: the uniform guess and the unigram frequencies."
    return Section("Metrics", [Table(["metric", "value"], rows, text)] if rows else [])


# ---------------------------------------------------------------------- corpus and samples


def corpus_section(run: RunRecord) -> Section:
    """Sizes, fertility, unknown rate and lengths; of an older run the report as it was printed."""
    facts = run.json("corpus.json")
    if not facts:
        text = run.text("data.txt")
        return Section("Corpus and tokenizer", [Code(text)] if text else [])
    parts, unit = facts["parts"], facts["unit"]
    names = {
        "documents": "Documents",
        "sentences": "Sentences",
        "words": "Words",
        "tokens": unit[:1].upper() + unit[1:],
        "lines": "Lines of text",
        "duplicate_lines": "Lines that repeat another (about)",
        "bytes": "Bytes of text",
    }
    rows = [[label, *(f"{part[key]:,}" for part in parts.values())] for key, label in names.items()]
    one = "Bytes" if unit.startswith("bytes") else "Tokens"
    rows.append([f"{one} per word (fertility)", *(f"{part['tokens_per_word']:.2f}" for part in parts.values())])
    rows.append(["Unknown", *(f"{part['unknown']:.3%}" for part in parts.values())])
    for kind in ("sentence", "document"):
        lengths = [part[f"{kind}_lengths"] for part in parts.values()]
        for name, form in (("median", ",.0f"), ("mean", ",.1f"), ("longest", ",")):
            rows.append([f"{one} in a {kind}: {name}", *(format(length[name], form) for length in lengths)])
    tokenizer = facts["tokenizer"]
    caption = f"{facts['corpus']}, with a tokenizer of {tokenizer['pieces']:,} pieces (hash {tokenizer['hash']})."
    blocks: list[Block] = [Table(["", *parts], rows, caption)]
    drawn = [histogram(parts["train"][f"{kind}_lengths"], kind, one.lower()) for kind in ("sentence", "document")]
    return Section("Corpus and tokenizer", [*blocks, Charts(drawn)])


def histogram(lengths: dict[str, Any], kind: str, unit: str) -> Chart:
    """How many sentences or documents are of which length; each bar spans twice the lengths of the one before."""
    counts = list(lengths["counts"])
    last = max((number for number, count in enumerate(counts) if count), default=0)
    first = next((number for number, count in enumerate(counts) if count), 0)
    shares = [count / max(1, sum(counts)) for count in counts[first : last + 1]]
    labels = [f"{begin:,}" for begin in lengths["bins"][first : last + 1]]
    label = f"{unit} in a {kind} (from this number to twice as many)"
    svg = charts.bar_chart(labels, shares, x_label=label, y_label=f"share of {kind}s")
    return Chart(svg, f"Lengths of the {kind}s of the training text.")


def samples_section(run: RunRecord) -> Section:
    """What the model makes of the validation text: the table that the run wrote."""
    lines = [line for line in run.text("examples.md").split("\n") if line.startswith("|")]
    cells = [cells_of(line) for line in lines]
    if len(cells) < 3:
        return Section("Samples", [])
    rows = [row for row in cells[2:12] if len(row) == len(cells[0])]
    return Section("Samples", [Table(cells[0], rows, "What the encoder makes of the validation text.", numbers=())])


# ---------------------------------------------------------------------- what grew from the encoder


def grown_sections(grown: Sequence[RunRecord], shown: Sequence[RunRecord]) -> list[Section]:
    """The scores of fine-tunes as a comparison, and those of prompts; what of `grown` is not shown is named."""
    tuned = [run for run in shown if run.kind == "finetune"]
    notes = left_out(grown, shown)
    if tuned:
        rows = [run.row() for run in tuned]
        sections = [grid.score_section(rows, title=GROWN, notes=[Footnote(note) for note in notes])]
    else:
        sections = [Section(GROWN, [Text(note) for note in notes])] if notes else []
    prompted = [run for run in shown if run.kind == "zeroshot"]
    cells = []
    for run in prompted:
        metrics = run.metrics
        count = int(metrics.get("zeroshot/rows", 0))
        low, high = shared.wilson(metrics.get("zeroshot/accuracy", 0.0), count)
        guesses = [metrics.get(f"zeroshot/{name}") for name in ("chance", "majority")]
        cells.append(
            [
                run.task,
                ", ".join(map(str, shared.shots_of(run))),
                f"{metrics.get('zeroshot/accuracy', 0):.3f} [{low:.3f}, {high:.3f}]",
                *("" if guess is None else f"{guess:.3f}" for guess in guesses),
                f"{count:,}",
            ]
        )
    if cells:
        head = ["task", "solved examples", "accuracy (mean of templates)", "chance", "majority", "rows"]
        caption = (
            "Prompts without any training, with 95 % intervals over the rows of the test part. Of several numbers of "
            "solved examples the accuracy is that of the fewest."
        )
        sections.append(Section("Prompts", [Table(head, cells, caption)]))
    if not grown:
        text = "No fine-tune or zero-shot run of this encoder was found; --search names further folders to look in."
        sections.append(Section(GROWN, [Text(text)]))
    return sections


def runs_of_their_own(grown: Sequence[RunRecord]) -> list[RunRecord]:
    """Those that are no part of an experiment: fine-tunes that can be averaged, and all zero-shot runs."""
    own = [run for run in grown if run.experiment is None]
    return [*comparable(own), *(run for run in own if run.kind == "zeroshot")]


def comparable(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The fine-tunes that are a line of a table: of a task and model those of one data set and metric, of an arm those
    of one setting, of a seed one."""
    tested = [run for run in runs if run.kind == "finetune" and f"test/{run.metric}" in run.metrics]
    tested = largest_parts(tested, lambda run: (run.task, run.model), lambda run: (run.metric, run.data))
    tested = largest_parts(tested, lambda run: (run.task, run.model, run.arm), lambda run: run.setting)
    return list({(run.task, run.model, run.arm, run.seed): run for run in tested}.values())


def largest_parts(runs: Sequence[RunRecord], group: Key, part: Key) -> list[RunRecord]:
    """Of each group of runs the part with the most of them; of as many, the one that was run last."""

    def size(found: list[RunRecord]) -> tuple[int, str]:
        return len(found), max(str(run.metrics.get("date", "")) for run in found)

    return [run for mine in _by(runs, group) for run in max(_by(mine, part), key=size)]


def _by(runs: Sequence[RunRecord], key: Key) -> list[list[RunRecord]]:
    found: dict[Any, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.values())


def left_out(grown: Sequence[RunRecord], shown: Sequence[RunRecord]) -> list[str]:
    """What is not shown, and why."""
    notes = []
    folders = {run.folder for run in shown}
    if others := [run for run in grown if run.experiment is None and run.folder not in folders]:
        names = named([str(run.folder) for run in others])
        notes.append(
            "All arms of a row have the same data, and each the runs of one setting: of several that with the most "
            f"runs, of as many the latest. Left out: {names}."
        )
    if places := dict.fromkeys(str(run.experiment) for run in grown if run.experiment is not None):
        notes.append(f"Runs of comparisons and of other experiments are in their own tables: {named(list(places))}.")
    return notes


def named(folders: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = len(folders) - MOST_NAMED
    return ", ".join(folders[:MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
