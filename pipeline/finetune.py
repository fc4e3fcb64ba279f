"""Fine-tuning as a LightningModule: a saved encoder, a head, and three arms to compare.

`full` trains encoder and head, `frozen` the head alone, `scratch` the same network from fresh weights: what
pretraining gained is full minus scratch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pipeline import optim
from pipeline.classifier import Classifier
from pipeline.encoders.base import Batch
from pipeline.encoders.elmo import Elmo
from pipeline.labeled import LabeledData
from pipeline.objectives import Loss, classification_loss
from pipeline.optim import Optimization
from pipeline.pretrain import Training


class FineTuning(Training):
    """Trains an encoder with a head on labelled texts.

    Args:
        optimization: rate, schedule and the rest; `warmup_steps` is set from `warmup_share`.
        warmup_share: share of all steps that warms up.
        frozen_learning_rate: the peak for `frozen`: a head alone takes, and needs, a larger one.
        dropout: in the encoder and before the head's linear layer.
        mix_dropout: rate at which a layer is left out of the scalar mix.
        arm: `full`, `frozen` or `scratch`.
        seed: of fresh weights and dropout.
    """

    stage = "finetune"

    def __init__(
        self,
        *,
        optimization: Optimization,
        warmup_share: float,
        frozen_learning_rate: float,
        dropout: float,
        mix_dropout: float,
        arm: str = "full",
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.optimization, self.warmup_share, self.arm = optimization, warmup_share, arm
        self.dropout, self.mix_dropout = dropout, mix_dropout
        if arm == "frozen":
            self.optimization.learning_rate = frozen_learning_rate
        self.model: Classifier
        self.test_logits: list[tuple[Tensor, Tensor]] = []

    def build(self, data: LabeledData) -> None:
        torch.manual_seed(self.seed)
        frozen = self.arm == "frozen"
        data.encoder.set_dropout(self.dropout)
        if isinstance(data.encoder, Elmo):
            data.encoder.forget_between_batches()  # rows of a task have nothing to do with each other
        self.model = Classifier(
            data.encoder,
            labels=data.task.label_names,
            dropout=self.dropout,
            mix=frozen,
            max_length=data.room,
            mix_dropout=self.mix_dropout,
            pairs=isinstance(data.examples["train"][0].text, tuple),
        )
        self.model.encoder.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> FineTuning:
        super().train(mode)
        if hasattr(self, "model") and self.arm == "frozen":
            self.model.encoder.eval()  # frozen features: no dropout inside either
        return self

    def loss(self, batch: Batch) -> tuple[Loss, Tensor]:
        logits = self.model(batch)
        return classification_loss(logits, batch["labels"]), logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        return self.weighted({"task": self.loss(batch)[0]}, batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._count("val", {"task": self.loss(batch)[0]})

    def on_validation_epoch_end(self) -> None:
        figures = self._figures("val")
        figures = {"val/loss": figures["val/task_loss"], "val/accuracy": figures["val/task_accuracy"]}
        self.log_dict(figures, logger=False)
        if (mix := self.model.head.mix) is not None:
            figures |= {f"mix/{name}": value for name, value in mix.shares().items()}
        self.log_all(figures)
        self.history.save()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.test_logits.append((batch["rows"].cpu(), self.loss(batch)[1].float().cpu()))

    def configure_optimizers(self) -> Any:
        self.optimization.warmup_steps = round(self.warmup_share * self.trainer.max_steps)
        groups = self.model.encoder.layer_groups()
        return optim.build(self.optimization, groups, self.model.head.parameters(), self.trainer.max_steps)
