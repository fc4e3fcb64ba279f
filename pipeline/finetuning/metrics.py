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
from pipeline.finetuning.features import Item
from pipeline.finetuning.heads import Decision
from tasks.base import Example, Task
from tasks.bio import spans, to_bio


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
    """What models without any pretraining reach, in the metric of the task: learned from `train`, scored on `test`."""
    guesses = _tag_guesses(task, train, test) if task.head == "token" else _class_guesses(train, test)
    gold = [list(example.labels) for example in test]
    return {name: scores(Answers(gold, labels, []), task).figures[task.metric] for name, labels in guesses.items()}


def _class_guesses(train: Sequence[Example], test: Sequence[Example]) -> dict[str, list[list[int]]]:
    """Baseline -> the label that it gives each text."""
    classes = [label for example in train for label in example.labels]
    ways = {"bag_of_words": [[_joined(example.text) for example in part] for part in (train, test)]}
    if isinstance(train[0].text, tuple):
        ways["hypothesis_only"] = [[example.text[1] for example in part] for part in (train, test)]
    [(frequent, _)] = Counter(classes).most_common(1)
    learned = {name: metrics.bag_of_words(texts[0], classes, texts[1]) for name, texts in ways.items()}
    return {"majority": [[frequent]] * len(test), **{name: [[x] for x in found] for name, found in learned.items()}}


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _tag_guesses(task: Task, train: Sequence[Example], test: Sequence[Example]) -> dict[str, list[list[int]]]:
    """Baseline -> the tags that it gives the words of each text."""
    names = task.label_names
    if task.metric == "span_f1":
        known: dict[tuple[str, ...], Counter[str]] = {}
        for example in train:
            for kind, first, last in spans([names[label] for label in example.labels]):
                known.setdefault(tuple(example.text[first : last + 1]), Counter())[kind] += 1
        index = {name: number for number, name in enumerate(names)}
        return {"training_spans": [[index[tag] for tag in known_spans(list(e.text), known)] for e in test]}
    by_word: dict[str, Counter[int]] = {}
    for example in train:
        for word, tag in zip(example.text, example.labels, strict=True):
            by_word.setdefault(word, Counter())[tag] += 1
    [(frequent, _)] = sum(by_word.values(), Counter()).most_common(1)
    tags = {word: found.most_common(1)[0][0] for word, found in by_word.items()}
    return {
        "majority": [[frequent] * len(example.text) for example in test],
        "most_frequent_tag": [[tags.get(word, frequent) for word in example.text] for example in test],
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
