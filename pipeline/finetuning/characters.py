"""The test of a fine-tuned model on the beginnings of texts: how many characters does it need?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.finetuning.model import FineTunedModel
from tasks.base import Example, Task


def beginning(text: Any, characters: int) -> Any:
    """The first characters of a text, or of both texts of a pair; a shorter text is whole."""
    return text[:characters] if isinstance(text, str) else tuple(part[:characters] for part in text)


def scores_by_characters(
    model: FineTunedModel, task: Task, examples: Sequence[Example], numbers: Sequence[int]
) -> dict[int, float]:
    """Characters of each text that are shown -> the metric of the task."""
    gold, result = [example.label for example in examples], {}
    for number in numbers:
        predictions = model.predictions([beginning(example.text, number) for example in examples])
        scores = task.scores(gold, [prediction.label for prediction in predictions])
        result[number] = scores.figures[task.metric]
    return result
