"""The page of a fine-tuning run: what it scores, how it got there, and which errors it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipeline.metrics import WITH_ERROR
from pipeline.reporting import charts, shared
from pipeline.reporting.page import (
    Block,
    Chart,
    Charts,
    Code,
    Error,
    Errors,
    Figure,
    Heatmap,
    Page,
    Section,
    Table,
    Text,
)
from pipeline.reporting.run_record import RunRecord
from pipeline.tracking.amounts import duration
from tasks import questions
from tasks.bio import spans
from tasks.translation import sentence_chrf

MOST_ERRORS = 12
MOST_LABELS = 20  # of a confusion matrix on a page
RESAMPLES = 1000  # of the test part, for an interval of a score of spans
LONGEST = 600  # characters of a text that is shown
Row = dict[str, Any]  # a line of predictions.jsonl


def page(run: RunRecord) -> Page:
    metrics, metric = run.metrics, run.metric or "accuracy"
    score, baselines = metrics.get(f"test/{metric}"), run.baselines()
    choose = min if run.is_lower_better else max
    best = choose(baselines, key=lambda name: baselines[name]) if baselines else None
    figures = [
        Figure(
            f"Test {shared.readable(metric)}", f"{score:.3f}" if score is not None else "?", interval_text(run, metric)
        )
    ]
    if best is not None:
        figures.append(Figure("Best baseline", f"{baselines[best]:.3f}", best))
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
            *test_sections(run.predictions),
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
    rows = []
    for name in names:
        value = run.metrics.get(name)
        if isinstance(value, (int, float)):
            text = f"{value:,}" if isinstance(value, int) or (value > 1 and value.is_integer()) else f"{value:,.4f}"
            text = f"**{text}**" if name == f"test/{metric}" else text
            rows.append([shared.name_of(name), text, interval_text(run, name.removeprefix("test/"))])
    for name, value in run.baselines().items():
        rows.append([f"Baseline: {name}", f"{value:.4f}", ""])
    count = run.metrics.get("test/rows")
    caption = "Scores on the test part" + (f" ({count:,} rows)." if count else ".")
    notes = [how_of(metric)] if rows and rows[0][2] else []  # the metric is first
    blocks: list[Block] = [Table(["metric", "score", "95 % interval"], rows, caption, notes)]
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
        "span_f1": f"The interval is of {RESAMPLES:,} bootstrap samples of the test rows; other seeds add to it.",
    }
    return ways.get(metric, "The interval is ± 1.96 standard errors over the test rows; other seeds add to it.")


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
    elif metric in WITH_ERROR and error:
        low, high = score - shared.Z * error, score + shared.Z * error
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


# ---------------------------------------------------------------------- what is seen in the predictions


def test_sections(rows: Sequence[Row]) -> list[Section]:
    """By what the lines hold: a label, tags of words, or a score."""
    for keys, sections in SHAPES.items():
        if rows and all(key in rows[0] for key in keys):
            return sections(rows)
    return []


def of_labels(rows: Sequence[Row]) -> list[Section]:
    """Confusion, and the wrong answers that the model is surest of."""
    labels = list(rows[0].get("probabilities") or sorted({str(row["gold"]) for row in rows}))
    counts = Counter((str(row["gold"]), str(row["label"])) for row in rows)
    blocks: list[Block] = []
    if len(labels) <= MOST_LABELS:
        table = [[counts[gold, predicted] for predicted in labels] for gold in labels]
        caption = "Rows: the true label; columns: the predicted one. Percentages are of the row."
        blocks.append(Heatmap(labels, table, caption))
    pairs = [(count, pair) for pair, count in counts.items() if pair[0] != pair[1]]
    confused = [
        [gold, predicted, f"{count:,}", f"{count / len(rows):.1%}"]
        for count, (gold, predicted) in sorted(pairs, reverse=True)[:8]
    ]
    if len(labels) > 2 and confused:
        head = ["true label", "predicted label", "rows", "of the test part"]
        blocks.append(Table(head, confused, "What is most often taken for something else.", numbers=(2, 3)))
    wrong = sorted((row for row in rows if row["gold"] != row["label"]), key=lambda row: -row.get("probability", 0))
    errors = [
        Error(
            text_parts(row.get("text", "")),
            str(row["gold"]),
            str(row["label"]),
            f"{row['probability']:.1%} sure" if "probability" in row else "",
        )
        for row in wrong[:MOST_ERRORS]
    ]
    caption = f"{len(wrong):,} of {len(rows):,} predictions are wrong. These are the ones that the model is surest of."
    return [Section("Confusion", blocks), errors_section(errors, caption)]


def of_tags(rows: Sequence[Row]) -> list[Section]:
    """The sentences whose wrong tags the model is surest of."""
    wrong = [row for row in rows if row["gold"] != row["tags"]]
    errors = [
        Error(
            marked_words(row["words"], row["gold"], row["tags"]),
            _spans_in(row, "gold"),
            _spans_in(row, "tags"),
            _sureness(row),
        )
        for row in sorted(wrong, key=lambda row: -_confidence(row))[:MOST_ERRORS]
    ]
    caption = (
        f"{len(wrong):,} of {len(rows):,} sentences have a wrong tag. These are the ones with the wrong tags that the "
        "model is surest of; a mark below a word is what it should be and what it is taken for."
    )
    return [errors_section(errors, caption)]


def _confidence(row: Row) -> float:
    """The mean probability of the wrong tags."""
    sure = [
        p for p, gold, tag in zip(row.get("probabilities") or [], row["gold"], row["tags"], strict=False) if gold != tag
    ]
    return sum(sure) / len(sure) if sure else 0.0


def _sureness(row: Row) -> str:
    return f"{_confidence(row):.1%} sure" if row.get("probabilities") else ""


def _spans_in(row: Row, side: str) -> str:
    found = spans(list(row[side]))
    return "; ".join(f"{' '.join(row['words'][first : last + 1])} ({kind})" for kind, first, last in found) or "nothing"


def marked_words(words: Sequence[str], gold: Sequence[str], tags: Sequence[str]) -> list[tuple[str, str]]:
    """Words, with what is wrong about their tags."""
    marks = ["" if right == tag else f"{right} → {tag}" for right, tag in zip(gold, tags, strict=True)]
    return list(zip(words, marks, strict=True))


def of_scores(rows: Sequence[Row]) -> list[Section]:
    """Predicted over true scores, and the largest errors."""
    points = [(float(row["gold"]), float(row["score"])) for row in rows]
    svg = charts.scatter(points, x_label="true score", y_label="predicted score")
    chart = Chart(svg, "Each dot is a row of the test part; on the dashed line a prediction is right.")
    worst = sorted(rows, key=lambda row: -abs(row["score"] - row["gold"]))[:MOST_ERRORS]
    errors = [Error(text_parts(row.get("text", "")), f"{row['gold']:.2f}", f"{row['score']:.2f}", "") for row in worst]
    return [
        Section("Predicted and true scores", [Charts([chart])]),
        errors_section(errors, "The predictions that are farthest from the true score."),
    ]


def of_translations(rows: Sequence[Row]) -> list[Section]:
    """The translations that are least like their references."""
    scored = sorted((sentence_chrf(row["output"], row["reference"]), number) for number, row in enumerate(rows))
    errors = [
        Error(text_parts(rows[n]["source"]), rows[n]["reference"], rows[n]["output"], f"chrF {value:.0f}")
        for value, n in scored[:MOST_ERRORS]
    ]
    return [errors_section(errors, "The translations with the lowest chrF.")]


def of_label_sets(rows: Sequence[Row]) -> list[Section]:
    """The texts with the most wrong and missing labels."""
    wrong = [row for row in rows if set(row["gold"]) != set(row["labels"])]
    wrong.sort(key=lambda row: -len(set(row["gold"]) ^ set(row["labels"])))
    errors = [
        Error(text_parts(row.get("text", "")), ", ".join(row["gold"]) or "none", ", ".join(row["labels"]) or "none", "")
        for row in wrong[:MOST_ERRORS]
    ]
    caption = f"{len(wrong):,} of {len(rows):,} texts have a wrong or a missing label. These have the most of them."
    return [errors_section(errors, caption)]


def of_answers(rows: Sequence[Row]) -> list[Section]:
    """The answers without a right word that the model is surest of."""
    wrong = questions.wrong(rows)
    errors = [
        Error(text_parts(row["text"]), " or ".join(row["gold"]), row["answer"], f"{row['probability']:.1%} sure")
        for row in wrong[:MOST_ERRORS]
    ]
    caption = (
        f"{len(wrong):,} of {len(rows):,} answers have no right word. These are the ones that the model is surest of."
    )
    return [errors_section(errors, caption)]


SHAPES: dict[tuple[str, ...], Callable[[Sequence[Row]], list[Section]]] = {
    ("gold", "label"): of_labels,
    ("gold", "labels"): of_label_sets,
    ("gold", "answer"): of_answers,
    ("words", "gold", "tags"): of_tags,
    ("gold", "score"): of_scores,
    ("source", "reference", "output"): of_translations,
}


def text_parts(text: Any) -> list[tuple[str, str]]:
    """A text, or both of a pair."""
    texts = text if isinstance(text, (list, tuple)) else [text]
    shown = [str(part) if len(str(part)) <= LONGEST else f"{str(part)[:LONGEST]}..." for part in texts]
    return [(part, "") for number, part in enumerate(shown) for part in ([part] if number == 0 else ["/", part])]


def errors_section(errors: Sequence[Error], caption: str) -> Section:
    return Section("Errors worth reading", [Errors(errors, caption)] if errors else [])


# ---------------------------------------------------------------------- types, layers, loaded tensors


def types_section(run: RunRecord) -> Section:
    """Precision, recall and F1 of each type of span, or of each label."""
    kinds = {name.split("/")[1] for name in run.metrics if name.startswith("test/") and name.endswith("/f1")}
    rows = []
    for kind in sorted(kinds, key=lambda kind: -run.metrics.get(f"test/{kind}/support", 0)):
        scores = [f"{run.metrics.get(f'test/{kind}/{name}', 0):.3f}" for name in ("precision", "recall", "f1")]
        rows.append([kind, *scores, f"{run.metrics.get(f'test/{kind}/support', 0):,}"])
    if "test/span_f1" in run.metrics:
        title, first, what, caption = (
            "Types of spans",
            "type",
            "spans",
            "Whole spans by type, as conlleval counts them.",
        )
    else:
        title, first, what, caption = "Labels", "label", "texts", "Each label, in texts that have it or were given it."
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
        charts.line_chart(drawn, x_label="optimizer step", y_label="weight", from_zero=True),
        "How the weights of the layers moved.",
        [(f"key s{line.color}", line.label) for line in drawn],
    )
    return Section("Layer weights", [Charts([bars, lines])])


def load_section(run: RunRecord) -> Section:
    text = run.text("load_report.txt") or run.text("receipt.txt")  # of versions up to 0.16
    return Section("Models" if is_counted(run) else "Loaded weights", [Code(text)] if text else [])
