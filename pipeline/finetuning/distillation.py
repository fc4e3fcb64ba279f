"""Distillation of a fine-tuned model: a student learns its teacher's probabilities, beside the labels.

Source: Hinton et al. 2015, https://arxiv.org/abs/1503.02531; in fine-tuning also Sanh et al. 2019, 3.

Shapes: B rows, W words, C labels.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.finetuning.model import FineTunedModel, load
from pipeline.models.inputs import Inputs
from pipeline.models.losses import Loss, divergence
from pipeline.objectives.distillation import SoftTargets, about_teacher

PAIR = "model.recipe.pair"


class TaskTeacher:
    """A fine-tuned model whose probabilities a student learns. It is in no checkpoint, and never changes.

    Raises:
        UserError: no folder of a fine-tuned model, or one that cannot teach this student.
    """

    def __init__(self, options: SoftTargets, student: FineTunedModel) -> None:
        self.options, self.folder = options, Path(options.teacher)
        with about_teacher():
            self.model = load(self.folder).requires_grad_(False)
        crf = student.options.crf or self.model.options.crf
        if "class_weights" not in student.head.takes or crf:
            raise UserError("Distillation is for classes, and for tags without a CRF: leave the teacher out.")
        self._check(student)

    def _check(self, student: FineTunedModel) -> None:
        """Raises: UserError, student and teacher read texts differently, or have other labels."""
        ours, theirs = student.encoder, self.model.encoder
        if type(ours) is not type(theirs) or not ours.tokenizer.reads_as(theirs.tokenizer):
            raise UserError(
                f"The teacher in {self.folder} must be a {student.encoder.model_type} with the student's tokenizer: "
                "they read the same batches."
            )
        if student.labels != self.model.labels or type(student.head) is not type(self.model.head):
            raise UserError(f"The teacher in {self.folder} has another task, or its labels in another order.")
        reading, other = student.options.pair, self.model.options.pair
        if reading != other:
            raise UserError(f"The teacher in {self.folder} reads pairs {other}, the student {reading}: set {PAIR}.")
        if self.model.encoder.max_length < student.options.max_length:
            raise UserError(
                f"data.max_length is {student.options.max_length}, but the teacher in {self.folder} has "
                f"{self.model.encoder.max_length} positions."
            )

    def loss(self, batch: Inputs, outputs: Tensor, labels: Tensor) -> Loss:
        """Of the student's outputs, (B, C) or by word (B, W, C), where there are labels."""
        if (device := outputs.device) != self.model.encoder.device:
            self.model.to(device)
        with torch.no_grad():
            truth = self.model(batch, whole=False)[0]
        asked = (labels if outputs.ndim == 2 else labels[:, : outputs.shape[1]]) >= 0  # of a part of a batch
        return divergence(outputs[asked], truth[asked], temperature=self.options.temperature)

    def __str__(self) -> str:
        return f"{self.folder}; temperature {self.options.temperature:g}, weight {self.options.teacher_weight:g}"
