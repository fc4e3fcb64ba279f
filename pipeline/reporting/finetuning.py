"""The page of a fine-tuning run: what it scores, how it got there, and which errors it makes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from pipeline.metrics import WITH_ERROR
from pipeline.reporting import charts, shared
from pipeline.reporting.page import (
    Block,
    Chart,
    Charts,
    Code,
    Figure,
    Page,
    Section,
    Table,
    Text,
)
from pipeline.reporting.predictions import Row, sections_of
from pipeline.reporting.run_record import RunRecord
from pipeline.tracking.amounts import duration
from tasks.bio import spans
from tasks.metrics import shown

RESAMPLES = 1000  # of the test part, for an interval of a score of spans


def page(run: RunRecord) -> Page:
    metrics, metric = run.metrics, run.metric or "accuracy"
    score, baselines = metrics.get(f"test/{metric}"), run.baselines()
    choose = min if run.is_lower_better else max
    best = choose(baselines, key=lambda name: baselines[name]) if baselines else None
    figures = [
        Figure(
            f"Test {shared.readable(metric)}", shown(score) if score is not None else "?", interval_text(run, metric)
        )
    ]
    if best is not None:
        figures.append(Figure("Best baseline", shown(baselines[best]), best))
    if is_counted(run):
        figures.append(Figure("Counted", f"{metrics.get('parameters', 0):,} n-grams", "of the training texts"))
    else:
        figures.append(
            Figure("Tested checkpoint", f"step {metrics.get('best_step', 0):,}", f"of {metrics.get('steps', 0):,}")
        )
    figures.append(Figure("Time", duration(metrics.get("seconds", 0)), shared.shown_energy(metrics)))
    return Page(
        title=f"{run.model} on {run.task}",
        about=f"arm {run.arm}, seed {run.seed}, {shared.shown_rows(run.stage('task'))}, version {run.version}",
        figures=figures,
        sections=[
            *([] if is_counted(run) else [curves_section(run, metric)]),
            scores_section(run, metric),
            characters_section(run, metric),
            *sections_of(run.predictions),
            types_section(run),
            layers_section(run),
            shared.lineage_section(run.stages),
            load_section(run),
            shared.cost_section(run),
            shared.settings_section(run),
            shared.commands_section(shared.command_of(run)),
        ],
    )


def is_counted(run: RunRecord) -> bool:
    """Whether it took no steps: its model counts."""
    return run.metrics.get("steps") == 0


# ---------------------------------------------------------------------- curves and scores


def curves_section(run: RunRecord, metric: str) -> Section:
    """The metric that chooses the checkpoint with the baselines, the loss, and the learning rate."""
    step, label = run.metrics.get("best_step"), shared.name_of(metric)
    marked = float(step) if step else None
    baselines = {f"{name} (test)": value for name, value in run.baselines().items()}
    lower = " Lower is better." if run.is_lower_better else ""
    found = [
        shared.curves(
            run,
            metric,
            caption=f"{label} of the validation part, which chooses the checkpoint.{lower} Baselines: test part.",
            y_label=label,
            baselines=baselines,
            marked=marked,
        ),
        shared.curves(
            run, "loss", caption="The loss of the task.", y_label="loss", training="task_loss", marked=marked
        ),
        shared.rate_chart(run),
    ]
    drawn = [chart for chart in found if chart is not None]
    return Section("Training curves", [Charts(drawn)] if drawn else [])


def scores_section(run: RunRecord, metric: str) -> Section:
    """All figures of the test, and the baselines in the same metric."""
    names = [name for name in run.metrics if name.startswith("test/") and name.count("/") == 1]
    names = [f"test/{metric}", *(name for name in names if name not in (f"test/{metric}", "test/rows"))]
    rows, notes = [], list[str]()
    for name in names:
        value = run.metrics.get(name)
        if isinstance(value, (int, float)):
            text = f"{value:,}" if isinstance(value, int) or (value > 1 and value.is_integer()) else f"{value:,.4f}"
            text = f"**{text}**" if name == f"test/{metric}" else text
            rows.append([shared.name_of(name), text, interval_text(run, name.removeprefix("test/"))])
            notes += [how_of(name.removeprefix("test/"))] if rows[-1][2] else []
    for name, value in run.baselines().items():
        rows.append([f"Baseline: {name}", shown(value, 4), ""])
    count = run.metrics.get("test/rows")
    caption = "Scores on the test part" + (f" ({count:,} rows)." if count else ".")
    blocks: list[Block] = [Table(["metric", "score", "95 % interval"], rows, caption, list(dict.fromkeys(notes)))]
    if run.metrics.get("degenerate"):
        blocks.append(Text("Every prediction is the same: this run learned nothing of the task."))
    return Section("Scores", blocks)


def characters_section(run: RunRecord, metric: str) -> Section:
    """The score by the number of characters of each test text that are shown."""
    scores = {
        int(name.split("/")[1].removeprefix("characters_")): float(value)
        for name, value in run.metrics.items()
        if name.startswith("test/characters_")
    }
    if not scores:
        return Section("Characters shown", [])
    labels = [*(f"{number:,}" for number in sorted(scores)), "all"]
    values = [*(scores[number] for number in sorted(scores)), float(run.metrics.get(f"test/{metric}", 0))]
    name = shared.name_of(metric)
    caption = "The test with the first characters of each text alone; a shorter text is shown whole."
    rows = [[label, f"{value:.4f}"] for label, value in zip(labels, values, strict=True)]
    bars = charts.bar_chart(labels, values, y_label=name, x_label="first characters of each text that are shown")
    table = Table(["characters", name], rows, "The same in numbers.")
    return Section("Characters shown", [Charts([Chart(bars, caption)]), table])


def how_of(metric: str) -> str:
    """What the interval of a metric is of."""
    ways = {
        "accuracy": "The interval is of the test rows alone (Wilson 1927); other seeds add to it.",
        "pearson": "The interval is of the test rows alone (Fisher 1921); other seeds add to it.",
        "span_f1": f"The interval is of {RESAMPLES:,} bootstrap samples of the test rows; other seeds add to it.",
    }
    return ways.get(metric, "The interval is ± 1.96 standard errors of the test; other seeds add to it.")


def interval_text(run: RunRecord, metric: str) -> str:
    """The 95 % interval of a score over test rows; empty where none is known."""
    metrics = run.metrics
    score, error = metrics.get(f"test/{metric}"), metrics.get("test/standard_error")
    if score is None:
        return ""
    if metric == "accuracy":
        low, high = shared.wilson(score, int(metrics.get("test/rows", 0) or len(run.predictions)))
    elif metric == "span_f1" and run.predictions:
        low, high = bootstrap(run.predictions)
    elif metric == "pearson" and error:
        half = shared.Z * error / (1 - score**2)  # of atanh(r)
        low, high = math.tanh(math.atanh(score) - half), math.tanh(math.atanh(score) + half)
    elif metric in WITH_ERROR and error:
        low, high = max(0.0, score - shared.Z * error), min(1.0, score + shared.Z * error)
    else:
        return ""
    return f"[{low:.3f}, {high:.3f}]"


def bootstrap(rows: Sequence[Row]) -> tuple[float, float]:
    """The 95 % interval of the F1 of spans when the sentences are drawn again (Efron 1979); seeded."""
    counts = np.array([_span_counts(row["gold"], row["tags"]) for row in rows if "tags" in row])
    if not len(counts):
        return 0.0, 1.0
    rng = np.random.default_rng(0)
    weights = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=RESAMPLES)
    right, predicted, gold = (weights @ counts).T
    low, high = np.quantile(2 * right / np.maximum(1, predicted + gold), [0.025, 0.975])
    return float(low), float(high)


def _span_counts(gold: Sequence[str], tags: Sequence[str]) -> tuple[int, int, int]:
    ours, theirs = set(spans(list(tags))), set(spans(list(gold)))
    return len(ours & theirs), len(ours), len(theirs)


# ---------------------------------------------------------------------- types, layers, loaded tensors


def types_section(run: RunRecord) -> Section:
    """Precision, recall and F1 of each type of span, or of each label."""
    kinds = {name[len("test/") : -len("/f1")] for name in run.metrics if re.fullmatch("test/.+/f1", name)}
    rows = []
    for kind in sorted(kinds, key=lambda kind: -run.metrics.get(f"test/{kind}/support", 0)):
        scores = [f"{run.metrics.get(f'test/{kind}/{name}', 0):.3f}" for name in ("precision", "recall", "f1")]
        rows.append([kind, *scores, f"{run.metrics.get(f'test/{kind}/support', 0):,}"])
    if "test/span_f1" in run.metrics:
        title, first, what = "Types of spans", "type", "spans"
        caption = "Whole spans by type, as conlleval counts them."
    else:
        title, first, what = "Labels", "label", "texts"
        caption = "Each label, in texts that have it or were given it."
    head = [first, "precision", "recall", "F1", f"{what} in the test part"]
    return Section(title, [Table(head, rows, caption)] if rows else [])


def layers_section(run: RunRecord) -> Section:
    """The weights of the layers in the scalar mix, where the head has one."""
    names = run.history.mixed_layers()
    if not names:
        return Section("Layer weights", [])
    values = [run.history.series(name)[1][-1] for name in names]
    labels = ["embeddings" if name.endswith("_0") else f"layer {name.removeprefix('mix/layer_')}" for name in names]
    bars = Chart(
        charts.bar_chart(labels, values, y_label="weight", x_label="from the embeddings up"),
        f"The weight of each layer at the end; they began equal, at {1 / len(names):.3f}.",
    )
    drawn = [
        charts.Series(label, list(zip(*run.history.series(name), strict=True)), color=number % 7)
        for number, (name, label) in enumerate(zip(names, labels, strict=True))
    ]
    lines = Chart(
        charts.line_chart(drawn, y_label="weight", from_zero=True),
        "How the weights of the layers moved.",
        [(f"key s{line.color}", line.label) for line in drawn],
    )
    return Section("Layer weights", [Charts([bars, lines])])


def load_section(run: RunRecord) -> Section:
    text = run.text("load_report.txt") or run.text("receipt.txt")  # of versions up to 0.16
    return Section("Models" if is_counted(run) else "Loaded weights", [Code(text)] if text else [])
