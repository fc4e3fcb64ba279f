"""Predictions of batches, processes and windows -> one for each text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pipeline.finetuning.features import Feature
from tasks.base import Prediction

Numbered = tuple[int, Prediction]  # with the number of its feature


def of_all_processes(predictions: list[Numbered]) -> list[Numbered]:
    """The predictions of this process and all others.

    Gathered as objects, once a validation: what a prediction holds is for its kind of task to say (a label, a number,
    tags of any length, spans), and a state of torchmetrics that is gathered by `cat` holds tensors of one shape.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return predictions
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, predictions)
    return [prediction for part in parts for prediction in part]


def predictions_of(
    predictions: Iterable[Numbered],
    features: Sequence[Feature],
    texts: Sequence[Any],
    *,
    join: Callable[[list[Prediction], list[Feature], Any], Prediction],
) -> list[Prediction]:
    """Predictions of features in any order -> one for each text.

    Args:
        join: makes one of those of a text's features (see Head).
    """
    parts: list[tuple[list[Prediction], list[Feature]]] = [([], []) for _ in texts]
    for number, prediction in sorted(predictions, key=lambda numbered: numbered[0]):
        feature = features[number]
        parts[feature.text][0].append(prediction)
        parts[feature.text][1].append(feature)
    return [join(*found, text) for found, text in zip(parts, texts, strict=True)]
