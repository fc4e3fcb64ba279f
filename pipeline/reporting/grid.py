"""The page of a comparison: scores, gains, learning curves and costs of all its runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.comparison import gains as comparison
from pipeline.experiments.comparison.gains import Gain, Line
from pipeline.experiments.comparison.table import Footnote, footnotes, score_table
from pipeline.metrics import signed
from pipeline.reporting import charts, shared
from pipeline.reporting.page import Block, Chart, Charts, Code, Figure, Page, Section, Table, Text, Tree
from pipeline.reporting.run_record import RunRecord, runs_under
from pipeline.tracking.amounts import count
from pipeline.tracking.plots import ARM_LOOKS

COLORS = {arm: f"s{color}" for arm, (color, _) in ARM_LOOKS.items()}


def page(folder: Path) -> Page:
    """The page of a folder with compare.csv, and with the runs of it where they are still there."""
    rows = comparison_files.read(folder / "compare.csv")
    lines = comparison.lines_of(rows)
    runs = [run for run in runs_under([folder / "runs"]) if run.kind == "finetune"]
    shown = [run for row in rows if (run := run_of(row, runs))]
    arms = comparison.arms_of(rows)
    gains = [(line, gain) for line in lines if (gain := line.gain_over_scratch)]
    figures = [Figure("Fine-tunes", f"{len(rows):,}", f"{sum(row['minutes'] for row in rows) / 60:.1f} hours in all")]
    if gains and comparison.has_intervals(lines):
        beside = "gain over scratch with a 95 % interval above 0"
        certain = sum(gain.is_certain for _, gain in gains)
        figures.append(Figure("Pretraining helps", f"{certain} of {len(gains)}", beside))
    shares = [pair for pair in gains if pair[0].is_share]  # differences of other scores are no larger or smaller
    if shares:
        line, largest = max(shares, key=lambda pair: pair[1].mean)
        figures.append(Figure("Largest gain", signed(largest.mean), f"{line.model} on {line.task_name}"))
    models, tasks = (
        ", ".join(comparison.in_order(rows, "model")),
        ", ".join(line.task_name for line in _each_task(lines)),
    )
    return Page(
        title=f"Comparison {folder.resolve().name}",
        about=f"{models} on {tasks}; arms {', '.join(arms)}",
        figures=figures,
        sections=[
            score_section(rows, title="Scores", notes=footnotes(folder)),
            curves_section(runs, lines),
            runs_section(rows),
            lineage_section(shown),
            cost_section(rows, runs),
            commands_section(folder, shown),
        ],
    )


def score_section(rows: comparison.Rows, *, title: str, notes: Sequence[Footnote]) -> Section:
    """The table with intervals, and for each task a plot of the scores and one of the gains."""
    lines = comparison.lines_of(rows)
    scores = score_table(lines, notes)
    caption = "Scores of every arm, and what pretraining gained."
    return Section(title, [Table(scores.head, scores.rows, caption, scores.notes, numbers=()), *_plots(lines)])


def _each_task(lines: Sequence[Line]) -> list[Line]:
    return list({line.task: line for line in lines}.values())


def _plots(lines: Sequence[Line]) -> list[Block]:
    drawn: list[Chart] = []
    small = "; small dots are single runs" if comparison.has_several_runs(lines) else ""
    intervals = "with 95 % intervals; hollow: open, it holds 0"
    spread = intervals if comparison.has_intervals(lines) else comparison.why_no_interval(lines)
    for first in _each_task(lines):
        group = [line for line in lines if line.task == first.task]
        arms = [arm for arm in first.arms if any(line.arms[arm] for line in group)]
        legend = [(f"key dotted {COLORS.get(arm, 's4')}", arm) for arm in arms] + [("key stroke", "best baseline")]
        svg = charts.dot_plot([_scores(line) for line in group], x_label=f"{first.metric} on the test part")
        caption = f"{first.task_name}: scores of every arm{small}."
        drawn.append(Chart(svg, caption, legend))
        if any(line.gain_over_scratch for line in group):
            svg = charts.dot_plot([_gains(line) for line in group], x_label=f"difference of {first.metric}", zero=True)
            keys = [("key dotted s0", "over scratch"), ("key dotted s5", "over the best baseline")]
            caption = f"{first.task_name}: what pretraining gained, {spread}."
            drawn.append(Chart(svg, caption, keys))
    return [Charts(drawn)] if drawn else []


def _scores(line: Line) -> charts.DotLine:
    marks = []
    if (best := line.best_baseline) is not None:
        marks.append(charts.Mark(best.mean, "s6", f"{best.name}:", bar=True))
    for arm, scores in line.arms.items():
        color = COLORS.get(arm, "s4")
        marks += [
            charts.Mark(score, color, f"{arm}:", small=True) for score in scores[: len(scores) * (len(scores) > 1)]
        ]
        marks += [charts.Mark(sum(scores) / len(scores), color, f"{arm}, mean:")] if scores else []
    return charts.DotLine(line.model, marks)


def _gains(line: Line) -> charts.DotLine:
    marks = []
    for gain, color, label in (
        (line.gain_over_scratch, "s0", "over scratch:"),
        (line.gain_over_baseline, "s5", "over the baseline:"),
    ):
        if gain is not None:
            marks.append(_gain_mark(gain, color, label))
    return charts.DotLine(line.model, marks)


def _gain_mark(gain: Gain, color: str, label: str) -> charts.Mark:
    half = gain.half or 0.0
    return charts.Mark(gain.mean, color, label, gain.mean - half, gain.mean + half, hollow=gain.is_open)


def curves_section(runs: Sequence[RunRecord], lines: Sequence[Line]) -> Section:
    """How the metric of the validation part moved in the run of seed 0 of each arm, for each task and model."""
    drawn = []
    for line in lines:
        series = []
        for arm in line.arms:
            rows = [row for row in line.rows if (row["arm"], row["seed"]) == (arm, 0)]
            run = run_of(rows[0], runs) if rows else None
            if run is None or run.metric is None:
                continue
            steps, values = run.history.series(f"val/{run.metric}")
            if steps:
                points = list(zip(steps, values, strict=True))
                series.append(charts.Series(arm, points, color=int(COLORS.get(arm, "s4")[1:])))
        if series:
            best = line.best_baseline
            baselines = {f"{best.name} (test)": best.mean} if best else {}
            label = f"{line.metric} (validation)"
            svg = charts.line_chart(series, y_label=label, baselines=baselines)
            legend = [(f"key s{one.color}", one.label) for one in series]
            drawn.append(Chart(svg, f"{line.model} on {line.task_name}, seed 0.", legend))
    return Section("Learning curves", [Charts(drawn)] if drawn else [])


def run_of(row: dict[str, Any], runs: Sequence[RunRecord]) -> RunRecord | None:
    """The run that a row of the table is of: with seed 0 there are others, of settings that were not chosen."""
    name = re.escape("-".join([row["model"], Path(row["task"]).stem, row["arm"], str(row["seed"])]))
    found = [
        run
        for run in runs
        if re.fullmatch(rf"{name}(-\d+)?", run.folder.name) and run.metrics.get(f"test/{row['metric']}") == row["score"]
    ]
    flags = str(row.get("flags") or "")
    return next((run for run in found if flags in run.text("command.txt")), next(iter(found), None))


def runs_section(rows: comparison.Rows) -> Section:
    """Every run, with what was chosen for it."""
    cells = [
        [
            Path(row["task"]).stem,
            row["model"],
            row["arm"],
            str(row["seed"]),
            f"{row['score']:.4f}",
            f"{row['chosen_by']:.4f}" if "chosen_by" in row else "",
            str(row.get("flags") or "").replace("--model.optimization.", ""),
            f"{row['minutes']:.1f}",
        ]
        for row in rows
    ]
    head = ["task", "model", "arm", "seed", "test score", "validation score", "chosen setting", "minutes"]
    caption = "Every run. The setting is chosen on the validation part with seed 0; other seeds take it."
    return Section("Every run", [Table(head, cells, caption, numbers=(3, 4, 5, 7))])


def lineage_section(runs: Sequence[RunRecord]) -> Section:
    """A tree from each encoder to the tasks that it was fine-tuned on."""
    blocks: list[Block] = []
    for encoder in dict.fromkeys(run.encoder for run in runs):
        mine = [run for run in runs if run.encoder == encoder]
        nodes = shared.nodes_of(mine[0].beginnings)
        if not nodes:
            continue
        nodes[-1].children += shared.grown_nodes(mine)
        blocks.append(Tree(nodes[0], f"What grew from the encoder of {mine[0].model}."))
    return Section("Lineage", blocks)


def cost_section(rows: comparison.Rows, runs: Sequence[RunRecord]) -> Section:
    cells = []
    for model in comparison.in_order(rows, "model"):
        mine = [row for row in rows if row["model"] == model]
        known = [run.metrics for row in mine if (run := run_of(row, runs))]
        energy = [metrics["energy_wh"] for metrics in known if "energy_wh" in metrics]
        minutes, tokens = sum(row["minutes"] for row in mine), sum(row["tokens"] for row in mine)
        spent = f"{sum(energy):.2f} Wh of {len(energy)} run{'s' * (len(energy) > 1)}" if energy else "not recorded"
        cells.append([model, f"{len(mine)}", f"{minutes:,.1f}", count(tokens), spent])
    head = ["model", "runs", "minutes", "tokens", "energy"]
    notes = [text for text in [shared.energy_note([run.metrics for run in runs])] if text]
    versions = sorted({run.version for run in runs})
    if versions:
        notes.append(f"Versions of the runs: {', '.join(versions)}.")
    return Section(
        "Time and energy", [Table(head, cells, "What the runs of the table cost.", notes, numbers=(1, 2, 3))]
    )


def commands_section(folder: Path, runs: Sequence[RunRecord]) -> Section:
    blocks: list[Block] = []
    if lines := comparison_files.commands_in(folder):
        blocks += [Text("This runs what is missing, and writes the table again."), Code("\n".join(lines))]
    if runs:
        blocks += [Text("This is one of its runs alone."), Code(shared.command_of(runs[0]))]
    return Section("Repeat it", blocks)
