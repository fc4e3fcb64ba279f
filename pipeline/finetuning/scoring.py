"""A fine-tuned model on labeled texts that it was not tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError
from pipeline.finetuning.heads import head_for
from pipeline.finetuning.model import FineTunedModel
from tasks.base import Example, Prediction, Scores, Task


@dataclass(frozen=True)
class Scored:
    """What a model said of some texts.

    Attributes:
        predictions: one for each text.
        cut: how many texts were too long for the model.
        degenerate: whether all texts have the same answer, and should not.
    """

    predictions: list[Prediction]
    scores: Scores
    cut: int
    degenerate: bool

    def rows(self, task: Task, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Lines of `predictions.jsonl`."""
        return [task.row(*pair) for pair in zip(examples, self.predictions, strict=True)]


def check_kind(model: FineTunedModel, task: Task) -> None:
    """Raises: UserError, a task that another head answers."""
    wanted = head_for(task.head or "", model.encoder.learning)
    if wanted != model.options.name:
        kind = type(task).__name__.lower()
        needs = "a model that is trained in steps" if wanted is None else f"'{wanted}'"  # no head for what counts
        raise UserError(f"The model has the head '{model.options.name}', and a task of {kind} needs {needs}.")
    own, asked = list(model.options.languages), [task.columns.get(side) for side in ("source", "target")]
    if task.parallel and own == asked[::-1]:
        raise UserError(f"The model translates {own[0]} into {own[1]}, and the task {asked[0]} into {asked[1]}.")


def score(model: FineTunedModel, task: Task, examples: Sequence[Example], *, batch_size: int = 64) -> Scored:
    """Predictions and scores.

    Raises:
        UserError: pairs for a model of single texts, or the other way.
    """
    texts = [example.text for example in examples]
    model.check(texts)
    features = model.features(texts)
    predictions = model.of_features(features, texts, batch_size)
    gold, predicted = [example.label for example in examples], [prediction.label for prediction in predictions]
    return Scored(
        predictions=predictions,
        scores=task.scores(gold, predicted),
        cut=len({feature.text for feature in features if feature.was_cut}),
        degenerate=task.has_one_answer(gold, predicted),
    )
