"""The page of a zero-shot run: the scores of each template, and the answers that were wrong by the most."""

from __future__ import annotations

import re
from typing import Any

from pipeline.reporting import charts, predictions, shared
from pipeline.reporting.page import Chart, Charts, Error, Figure, Page, Section, Table
from pipeline.reporting.run_record import RunRecord
from pipeline.tracking.groups import MOST, by_column, published

RULES = {
    "accuracy": "sum",
    "accuracy_per_token": "per token",
    "accuracy_per_character": "per character",
    "accuracy_per_byte": "per byte",
    "accuracy_pmi": "PMI",
    "accuracy_calibrated": "calibrated",
}


def page(run: RunRecord) -> Page:
    metrics = run.metrics
    rows, accuracy = int(metrics.get("zeroshot/rows", 0)), metrics.get("zeroshot/accuracy", 0.0)
    low, high = shared.wilson(accuracy, rows)
    figures = [Figure("Accuracy", f"{accuracy:.3f}", f"[{low:.3f}, {high:.3f}], mean of the templates")]
    if "zeroshot/chance" in metrics:
        figures.append(Figure("Chance", f"{metrics['zeroshot/chance']:.3f}"))
    if "zeroshot/majority" in metrics:
        figures.append(Figure("Majority baseline", f"{metrics['zeroshot/majority']:.3f}"))
    figures.append(Figure("Rows", f"{rows:,}", "of the test part"))
    return Page(
        title=f"{run.model} on {run.task}, {shared.named_shots(run)}",
        about=f"prompts without training, seed {run.seed}, version {run.version}",
        figures=figures,
        sections=[
            templates_section(run),
            *groups_sections(run),
            errors_section(run),
            shared.lineage_section(run.stages),
            shared.settings_section(run),
            shared.commands_section(shared.command_of(run)),
        ],
    )


def groups_sections(run: RunRecord) -> list[Section]:
    """Accuracy by group, beside published figures: a section for each column that has not too many groups."""
    sections = []
    for column, groups in by_column(run.metrics).items():
        if not 1 < len(groups) <= MOST:
            continue
        rows = []
        for group, value in groups.items():
            theirs = published(run.metrics, f"/{column}/{group}").values()
            rows.append([group, *(f"{accuracy:.3f}" for accuracy in (value, *theirs))])
        head = [column, run.model, *(f"{model} (published)" for model in published(run.metrics))]
        sections.append(
            Section(f"By {column.replace('_', ' ')}", [Table(head, rows, "Accuracy by the sum of log-likelihoods.")])
        )
    return sections


def templates_section(run: RunRecord) -> Section:
    """A row for each template, a column for each rule of scoring; and the spread as a plot."""
    count = int(run.metrics.get("zeroshot/rows", 0))
    texts = [str(row.get("template", "")) for row in run.predictions[:: count or None]]  # all rows by each in turn
    found = {m.group(1) for name in run.metrics if (m := re.match(r"zeroshot/((?:shots_\d+/)?template_\d+)/", name))}
    rules = [rule for rule in RULES if f"zeroshot/{rule}" in run.metrics]
    cells, lines = [], []
    for name in sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", f"0/{name}")][-2:]):
        number = int(name.rpartition("_")[2])
        fewest = f"shots {least}, " if (least := min(shared.shots_of(run))) and "shots" not in name else ""
        label = fewest + name.replace("_", " ").replace("/", ", ")
        text = texts[number - 1] if number <= len(texts) else name
        values = [run.metrics.get(f"zeroshot/{name}/{rule}") for rule in rules]
        low, high = shared.wilson(values[0] or 0.0, count)
        cells.append(
            [
                f"{label}: {text}",
                *(f"{value:.3f}" if value is not None else "" for value in values),
            ]
        )
        mark = charts.Mark(values[0] or 0.0, "s0", "sum:", low, high)
        lines.append(charts.DotLine(label, [mark]))
    if not cells:
        return Section("Templates", [])
    guesses: dict[float, str] = {}
    for name in ("chance", "majority"):
        if (value := run.metrics.get(f"zeroshot/{name}")) is not None:
            guesses[value] = f"{guesses[value]} and {name}" if value in guesses else name
    colors = dict(zip(guesses, ("s6", "s4"), strict=False))
    bars = [charts.Mark(value, colors[value], f"{name}:", bar=True) for value, name in guesses.items()]
    lines = [charts.DotLine(line.label, [*bars, *line.marks]) for line in lines]
    solved = max(shared.shots_of(run)) or any("shots" in line.label for line in lines)  # examples in front
    seen = "Labels of solved examples were seen where there are shots." if solved else "No label was seen."
    caption = f"Accuracy of each template by each rule of scoring. {seen}"
    svg = charts.dot_plot(lines, x_label="accuracy by the sum of log-probabilities, with 95 % intervals")
    legend = [
        ("key dotted s0", "template"),
        *((f"key stroke {colors[value]}", name) for value, name in guesses.items()),
    ]
    beside = f" beside {' and '.join(guesses.values())}" if guesses else ""
    chart = Chart(svg, f"The templates{beside}.", legend)
    return Section(
        "Templates", [Table(["template", *(RULES[rule] for rule in rules)], cells, caption), Charts([chart])]
    )


def errors_section(run: RunRecord) -> Section:
    """The answers whose score was farthest above that of the right candidate."""
    wrong = []
    for row in run.predictions:
        scores = (row.get("scores") or {}).get("sum") or row.get("log_likelihoods")
        if (
            scores
            and isinstance(row.get("gold"), int)
            and isinstance(row.get("choice"), int)
            and row["choice"] != row["gold"]
        ):
            wrong.append((scores[row["choice"]] - scores[row["gold"]], row))
    wrong.sort(key=lambda pair: -pair[0])
    errors = [
        Error(
            [(_prompt_text(row), "")],
            _candidate(row, row["gold"]),
            _candidate(row, row["choice"]),
            f"by {margin:.1f} nats",
        )
        for margin, row in wrong[: predictions.MOST_ERRORS]
    ]
    caption = f"{len(wrong):,} of {len(run.predictions):,} answers are wrong. These are wrong by the most."
    return predictions.errors_section(errors, caption)


def _prompt_text(row: dict[str, Any]) -> str:
    return f"{row.get('context', '')} … {row.get('behind', '')}".strip()[:600]


def _candidate(row: dict[str, Any], index: int) -> str:
    candidates = row.get("candidates") or []
    return str(candidates[index]).strip() if index < len(candidates) else str(index)
