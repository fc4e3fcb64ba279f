"""From answers to metrics: accuracy by rule, over templates, by group, and the baseline of word frequencies."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import metrics
from pipeline.prompting.calibration import RULES
from pipeline.prompting.requests import Scored
from tasks.dataset import Row
from tasks.prompted import Published
from tasks.prompts import Question

WORD = re.compile(r"\w+|[^\w\s]")
FILE = "file"  # a group: the file that a row is from
LARGEST = 50.0  # nats a word, above which a perplexity says no more


@dataclass
class Answer:
    """The scores of one question.

    Attributes:
        scored: of each candidate.
        scores: rule -> score of each candidate.
    """

    question: Question
    scored: list[Scored]
    scores: dict[str, list[float]]

    def choice(self, rule: str) -> int:
        scores = self.scores[rule]
        return max(range(len(scores)), key=scores.__getitem__)

    def is_tie(self) -> bool:
        first, second = sorted(self.scores["sum"], reverse=True)[:2]
        return first == second

    def credit(self, rule: str) -> float:
        """1 where the right candidate is the best one, 1 / n where it is one of n equally good ones."""
        if len(self.scored) == 1:  # the text's own last word
            return float(self.scored[0].greedy)
        scores, gold = self.scores[rule], self.question.gold
        return float(scores[gold] == max(scores)) / scores.count(max(scores))


def metrics_of(answers: Sequence[Answer], *, placed: bool) -> dict[str, float]:
    """Accuracy by rule with its standard error, chance, majority, and how often each place is chosen.

    Args:
        placed: whether the place of a candidate means something; else the right one always has the same.
    """
    count = len(answers)
    rules = [rule for rule in RULES if rule in answers[0].scores]
    result = {f"accuracy_{rule}": sum(a.credit(rule) for a in answers) / count for rule in rules}
    result["accuracy"] = result.pop("accuracy_sum")
    result["standard_error"] = metrics.standard_error(result["accuracy"], count)
    sizes = [len(answer.question.candidates) for answer in answers]
    if min(sizes) > 1:
        result["chance"] = statistics.fmean(1 / size for size in sizes)
        if placed:
            result["majority"] = metrics.majority([answer.question.gold for answer in answers])
            chosen = Counter(answer.choice("sum") for answer in answers)
            result |= {f"chosen_{place}": chosen[place] / count for place in range(max(sizes))}
        result["ties"] = sum(answer.is_tie() for answer in answers)
    else:
        result["perplexity"] = math.exp(min(LARGEST, -statistics.fmean(a.scored[0].total for a in answers)))
    result["cut"] = sum(any(one.cut for one in answer.scored) for answer in answers)
    result["unknown_words"] = sum(any(one.unknown for one in answer.scored) for answer in answers)
    return result


def summary(templates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Metrics of the templates of one number of shots -> the mean of each, and how far the accuracies spread."""
    accuracies = [one["accuracy"] for one in templates]
    names = [name for name in templates[0] if all(name in one for one in templates)]
    means = {name: statistics.fmean(one[name] for one in templates) for name in names}
    return {**means, "accuracy_min": min(accuracies), "accuracy_max": max(accuracies)}


def by_group(credits: Sequence[float], rows: Sequence[Row], column: str) -> dict[str, tuple[float, int]]:
    """Value of a column -> accuracy of its rows, and their number; `file` is that of a row; none without the column."""
    groups: dict[str, list[float]] = {}
    if column != FILE and not any(column in row for _, row in rows):
        return {}
    for value, (place, row) in zip(credits, rows, strict=True):
        name = file_of(place) if column == FILE and FILE not in row else str(row.get(column))
        groups.setdefault(name, []).append(value)
    try:
        order = sorted(groups, key=float)
    except ValueError:  # names
        order = sorted(groups)
    return {name: (statistics.fmean(groups[name]), len(groups[name])) for name in order}


def file_of(place: str) -> str:
    """The file of a row without its endings, or its configuration on the hub."""
    return Path(place.rpartition(", ")[0]).name.partition(".")[0].partition(" (")[0]


def published_credits(published: Published, rows: Sequence[Row]) -> dict[str, list[float]]:
    """Model -> the accuracy that was published for the group of each row; nothing where these rows are other ones.

    A figure holds for the rows that it was computed on: all groups must be known, and have all of their rows.
    """
    groups = [str(row.get(published.column)) for _, row in rows]
    if any(name not in published.accuracies or count != published.rows for name, count in Counter(groups).items()):
        return {}
    return {
        model: [published.accuracies[name][place] for name in groups] for place, model in enumerate(published.models)
    }


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """How often each word occurs in texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    return counts


def unigram_credits(questions: Sequence[Question], counts: Counter[str]) -> list[float]:
    """Which questions the frequency of the candidates' words alone gets right (add-one, sum of logarithms).

    Candidates of the same words in another order are a tie: of n the right one has 1 / n.
    """
    total = math.log(counts.total() + len(counts) + 1)

    def log_prob(text: str) -> float:
        return sum(math.log(counts[word] + 1) - total for word in WORD.findall(text))

    result = []
    for question in questions:
        scores = [log_prob(candidate) for candidate in question.candidates]
        best = [i for i, value in enumerate(scores) if math.isclose(value, max(scores), rel_tol=1e-9)]
        result.append((question.gold in best) / len(best))
    return result
