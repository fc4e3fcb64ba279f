"""What is seen in the predictions of a fine-tune, by what their lines hold: errors worth reading, and confusions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.reporting import charts
from pipeline.reporting.page import Block, Chart, Charts, Error, Errors, Heatmap, Section, Table
from tasks import questions
from tasks.bio import spans
from tasks.translation import sentence_chrf

MOST_ERRORS = 12
MOST_LABELS_ON_PAGE = 20  # of a confusion matrix
LONGEST = 600  # characters of a text that is shown
Row = dict[str, Any]  # a line of predictions.jsonl


def sections_of(rows: Sequence[Row]) -> list[Section]:
    """By what the lines hold: a label, tags of words, a score; of another kind of task the first lines themselves."""
    if not rows:
        return []
    for keys, sections in SHAPES.items():
        if all(key in rows[0] for key in keys):
            return sections(rows)
    names = list(rows[0])
    cells = [[cut(row.get(name, "")) for name in names] for row in rows[:MOST_ERRORS]]
    caption = f"The first of {len(rows):,} rows of the test part."
    return [Section("Predictions", [Table(names, cells, caption, numbers=())])]


def of_labels(rows: Sequence[Row]) -> list[Section]:
    """Confusion, and the wrong answers that the model is surest of."""
    labels = list(rows[0].get("probabilities") or sorted({str(row["gold"]) for row in rows}))
    counts = Counter((str(row["gold"]), str(row["label"])) for row in rows)
    blocks: list[Block] = []
    if len(labels) <= MOST_LABELS_ON_PAGE:
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


def cut(value: Any) -> str:
    """A value as text, no longer than it is shown."""
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def text_parts(text: Any) -> list[tuple[str, str]]:
    """A text, or both of a pair."""
    texts = text if isinstance(text, (list, tuple)) else [text]
    shown = map(cut, texts)
    return [(part, "") for number, part in enumerate(shown) for part in ([part] if number == 0 else ["/", part])]


def errors_section(errors: Sequence[Error], caption: str) -> Section:
    return Section("Errors worth reading", [Errors(errors, caption)] if errors else [])
