"""What a fine-tuned model answered, its scores, and what models without pretraining would score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.metrics import matthews_corrcoef  # torchmetrics' is above 0 where one class is always answered
from torch import Tensor
from torchmetrics.functional.classification import (
    multiclass_confusion_matrix,
    multiclass_f1_score,
)

from pipeline import metrics
from pipeline.heads import Decision
from pipeline.inputs import Item
from tasks.base import Example, Task
from tasks.tagging import spans, to_bio


@dataclass
class Answers:
    """Gold and predicted labels of a part, text by text: lists of one, or of one for each word."""

    gold: list[list[int]]
    predicted: list[list[int]]
    probabilities: list[Tensor]  # (C,) each, or (W, C)


@dataclass
class Scores:
    """Figures by name, and tables of them."""

    figures: dict[str, float]
    confusion: list[list[int]] = field(default_factory=list)
    by_type: dict[str, dict[str, float]] = field(default_factory=dict)


def gathered(
    answers: list[tuple[int, Decision]], items: Sequence[Item], examples: Sequence[Example], *, by_word: bool
) -> Answers:
    """Decisions about rows, of this and all other processes -> answers about texts; windows of a text are joined."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        parts: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(parts, answers)
        answers = [answer for part in parts for answer in part]
    gold = [list(example.labels) for example in examples]
    predicted: list[list[int]] = [[] for _ in examples]
    probabilities: list[list[Tensor]] = [[] for _ in examples]
    for row, (labels, shares) in sorted(answers, key=lambda answer: answer[0]):
        predicted[items[row].text] += labels.flatten().tolist()
        probabilities[items[row].text].append(shares)
    joined = [torch.cat(parts) if by_word and parts else (parts or [torch.zeros(0)])[0] for parts in probabilities]
    return Answers(gold, predicted, joined)


def scores(answers: Answers, task: Task) -> Scores:
    """Accuracy with its standard error, macro F1 and Matthews; for tags token accuracy, and F1 of spans by type."""
    names = task.label_names
    gold = torch.tensor([label for labels in answers.gold for label in labels])
    predicted = torch.tensor([label for labels in answers.predicted for label in labels])
    accuracy = float((gold == predicted).double().mean())
    kind = "token_accuracy" if task.head == "token" else "accuracy"
    figures = {
        kind: accuracy,
        "standard_error": metrics.standard_error(accuracy, len(gold)),
        "macro_f1": float(multiclass_f1_score(predicted, gold, len(names), average="macro")),
        "matthews": float(matthews_corrcoef(gold, predicted)),
    }
    if task.metric != "span_f1":
        return Scores(figures, multiclass_confusion_matrix(predicted, gold, len(names)).tolist())
    tags = [[[names[label] for label in labels] for labels in part] for part in (answers.gold, answers.predicted)]
    found = metrics.span_scores(*tags)
    spans_found = {f"span_{name}": found.pop(name) for name in ("precision", "recall", "f1", "support")}
    return Scores({**spans_found, kind: accuracy}, by_type=found)


def baselines(task: Task, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
    """What models without any pretraining reach, in the metric of the task."""
    if task.head == "token":
        return _tag_baselines(task, train, test)
    classes = [[example.label for example in part] for part in (train, test)]
    ways = {"bag_of_words": [[_joined(example.text) for example in part] for part in (train, test)]}
    if isinstance(train[0].text, tuple):
        ways["hypothesis_only"] = [[example.text[1] for example in part] for part in (train, test)]
    scores = {
        name: metrics.bag_of_words((texts[0], classes[0]), (texts[1], classes[1]))  # type: ignore[arg-type]
        for name, texts in ways.items()
    }
    return {"majority": metrics.majority(classes[1]), **scores}


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _tag_baselines(task: Task, train: Sequence[Example], test: Sequence[Example]) -> dict[str, float]:
    names = task.label_names

    def tags_of(example: Example) -> list[str]:
        assert isinstance(example.label, list)
        return [names[label] for label in example.label]

    gold = [tags_of(example) for example in test]
    if task.metric == "span_f1":
        known: dict[tuple[str, ...], Counter[str]] = {}
        for example in train:
            for kind, first, last in spans(tags_of(example)):
                known.setdefault(tuple(example.text[first : last + 1]), Counter())[kind] += 1
        guesses = [known_spans(list(example.text), known) for example in test]
        return {"training_spans": metrics.span_scores(gold, guesses)["f1"]}
    by_word: dict[str, Counter[str]] = {}
    overall: Counter[str] = Counter()
    for example in train:
        for word, tag in zip(example.text, tags_of(example), strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
            overall[tag] += 1
    pairs = [pair for example, tags in zip(test, gold, strict=True) for pair in zip(example.text, tags, strict=True)]
    right = sum(by_word.get(word, overall).most_common(1)[0][0] == tag for word, tag in pairs)
    return {
        "majority": metrics.majority([tag for _, tag in pairs]),
        "most_frequent_tag": right / max(1, len(pairs)),
    }


def known_spans(words: list[str], known: dict[tuple[str, ...], Counter[str]]) -> list[str]:
    """BIO tags of the longest spans that the training part had, from left to right."""
    longest = max(map(len, known), default=0)
    tags, i = ["O"] * len(words), 0
    while i < len(words):
        for size in range(min(longest, len(words) - i), 0, -1):
            if found := known.get(tuple(words[i : i + size])):
                kind = found.most_common(1)[0][0]
                tags[i : i + size] = [f"B-{kind}", *[f"I-{kind}"] * (size - 1)]
                i += size - 1
                break
        i += 1
    return to_bio(tags)
