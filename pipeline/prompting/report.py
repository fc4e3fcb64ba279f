"""Metrics, predictions and tables of a zero-shot evaluation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.data.documents import Source
from pipeline.prompting.evaluate import Result
from pipeline.prompting.metrics import by_group, published_credits, summary, unigram_credits, word_counts
from pipeline.tracking.tables import markdown_line, markdown_table
from pipeline.training import advice
from tasks.dataset import DataSet, Row

SPECIAL = {  # metrics of a template that count rows
    "cut": "texts were cut on their left",
    "unknown_words": "rows have words that the encoder does not know",
    "ties": "rows are ties",
}
IDS = ("idx", "pairID", "pair_id", "id")  # columns that number the rows of a set


def metrics_of_run(task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]) -> dict[str, Any]:
    """`zeroshot/NAME` over templates, `.../template_1/NAME` of each, `zeroshot/shots_4/...` for further shots."""
    metrics: dict[str, Any] = {"zeroshot/rows": len(rows)}
    for count, parts in results.items():
        prefix = "zeroshot" if count == min(results) else f"zeroshot/shots_{count}"
        metrics |= {f"{prefix}/{name}": value for name, value in summary_of(parts).items()}
        for number, part in enumerate(parts, start=1):
            metrics |= {f"{prefix}/template_{number}/{name}": value for name, value in part.metrics.items()}
        metrics |= _by_groups(prefix, task, rows, _credits(parts))
    for model, credits in _published(task, rows).items():
        name = f"published/{model}"
        metrics |= {name: sum(credits) / len(credits), **_by_groups(name, task, rows, credits)}
    return metrics


def _published(task: DataSet, rows: Sequence[Row]) -> dict[str, list[float]]:
    published = getattr(task, "published", None)
    return {} if published is None else published_credits(published, rows)


def unigram_baseline(
    source: Source, task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]
) -> dict[str, float]:
    """Accuracy of the word-frequency baseline, and by group."""
    counts = word_counts(paragraph for document, _ in source.documents() for paragraph in document)
    parts = results[min(results)]
    credits = _means([unigram_credits([answer.question for answer in part.answers], counts) for part in parts])
    name = "baseline/unigram"
    return {name: sum(credits) / len(credits), **_by_groups(name, task, rows, credits)}


def summary_of(parts: Sequence[Result]) -> dict[str, float]:
    """The metrics of all templates at one number of shots: their means and ranges."""
    return summary([part.metrics for part in parts])


def _credits(parts: Sequence[Result]) -> list[float]:
    return _means([[answer.credit("sum") for answer in part.answers] for part in parts])


def _means(templates: Sequence[Sequence[float]]) -> list[float]:
    """The credit of each row, over templates."""
    return [statistics.fmean(row) for row in zip(*templates, strict=True)]


def _by_groups(prefix: str, task: DataSet, rows: Sequence[Row], credits: Sequence[float]) -> dict[str, float]:
    return {
        f"{prefix}/{column}/{name}": accuracy
        for column in getattr(task, "groups", [])
        for name, (accuracy, _) in by_group(credits, rows, column).items()
    }


# ---------------------------------------------------------------------- predictions and tables


def predictions_of(result: Result, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each question: its texts, and the scores of each candidate."""
    return [
        {
            "id": next((row[name] for name in IDS if name in row), number),
            "place": place,
            "shots": result.shots,
            "template": result.prompt.text,
            "context": answer.question.left,
            "behind": answer.question.right,
            "candidates": answer.question.candidates,
            "tokens": [scored.tokens for scored in answer.scored],
            "log_likelihoods": [scored.total for scored in answer.scored],
            "scores": answer.scores,
            "choice": answer.choice("sum"),
            "gold": answer.question.gold,
            "right": answer.credit("sum"),
        }
        for number, (answer, (place, row)) in enumerate(zip(result.answers, rows, strict=True))
    ]


def tables(task: DataSet, rows: Sequence[Row], results: Mapping[int, Sequence[Result]]) -> str:
    """Tables to read: a row for each template and number of shots, then, of the fewest shots, one for each group."""
    results = dict(sorted(results.items()))
    everything = [part for parts in results.values() for part in parts]
    rules = list(dict.fromkeys(name for part in everything for name in part.metrics if name.startswith("accuracy_")))
    head = ["shots", "template", "accuracy", *[name[9:].replace("_", " ") for name in rules], "chosen"]
    lines = [
        f"template {number}  {part.prompt.text!r}"
        + (f", then {' or '.join(map(repr, candidates))}" if (candidates := candidates_of(part)) else "")
        for number, part in enumerate(next(iter(results.values())), start=1)
    ]
    lines += markdown_table(head, []).splitlines()
    for parts in results.values():
        for number, part in enumerate(parts, start=1):
            lines += _template_lines(number, part, rules, task.label_names)
        means = summary_of(parts)
        if len(parts) > 1:
            spread = f"{means['accuracy_min']:.3f} to {means['accuracy_max']:.3f}"
            lines.append(f"(mean of the templates {means['accuracy']:.3f}, {spread})")
    lines += _baselines(next(iter(results.values())))
    if known := _published(task, rows):
        figures = ", ".join(f"{model} {sum(credits) / len(credits):.3f}" for model, credits in known.items())
        lines.append(f"published for these rows: {figures}")
    for column in getattr(task, "groups", []):
        groups = by_group(_credits(next(iter(results.values()))), rows, column)
        lines += [f"{column}:"] if groups else []
        for name, (accuracy, count) in groups.items():
            lines.append(f"  {name:<45} {accuracy:.3f}  ({count:,})")
    return "\n".join(lines)


def not_better_than_guessing(parts: Sequence[Result]) -> str | None:
    """A warning where the mean of the templates does not beat chance, or the most frequent label."""
    found = {name: [part.metrics[name] for part in parts if name in part.metrics] for name in ("chance", "majority")}
    guesses = {name: statistics.fmean(values) for name, values in found.items() if values}
    shots = parts[0].shots
    where = f"with {shots:,} shot{'s' * (shots != 1)} "
    return advice.not_better(summary_of(parts)["accuracy"], guesses, mode="max", where=where)


def candidates_of(part: Result) -> list[str]:
    """The candidates of a prompt that has one for each label, in the order of labels in the data."""
    candidates = part.prompt.candidates
    return list(candidates.values()) if isinstance(candidates, dict) else []


def _template_lines(number: int, part: Result, rules: Sequence[str], labels: Sequence[str]) -> list[str]:
    f = part.metrics
    others = [f"{f[name]:.3f}" if name in f else "" for name in rules]
    shares = [f[name] for name in f if name.startswith("chosen_")]
    names = labels if isinstance(part.prompt.candidates, dict) else [str(place + 1) for place in range(len(shares))]
    chosen = ", ".join(f"{name} {share:.2f}" for name, share in zip(names, shares, strict=False))
    accuracy = f"{f['accuracy']:.3f} ± {f['standard_error']:.3f}"
    lines = [markdown_line([str(part.shots), str(number), accuracy, *others, chosen]).rstrip()]
    if part.dropped:
        lines.append(f"({part.dropped:,} examples did not fit in front of template {number})")
    if part.shortened:
        lines.append(f"({part.shortened:,} texts behind the candidates of template {number} were cut at their end)")
    for name, text in SPECIAL.items():
        if f.get(name):
            lines.append(f"({f[name]:,.0f} {text} in template {number})")
    return lines


def _baselines(parts: Sequence[Result]) -> list[str]:
    """What the accuracies compare with, a line for each different one among the templates."""
    lines = []
    for part in parts:
        f = part.metrics
        if "chance" in f:
            baselines = f"chance {f['chance']:.3f}" + (f", majority {f['majority']:.3f}" if "majority" in f else "")
            lines.append(f"{baselines}; ± one standard error, a 95 % interval is twice as wide")
        else:
            lines.append(f"perplexity of the word {f['perplexity']:.2f}")
    return list(dict.fromkeys(lines))
