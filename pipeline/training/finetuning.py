"""Fine-tuning as a LightningModule: a saved encoder, a head, and arms to compare.

`full` trains encoder and head, `frozen` the head alone, `scratch` the same network from fresh weights: what
pretraining gained is full minus scratch. `random` is a head alone on an encoder of fresh weights.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.finetuning.heads import Decision
from pipeline.finetuning.metrics import Answers, gathered, scores
from pipeline.finetuning.model import HeadOptions, TunedModel
from pipeline.models.base import Encoded, Encoder
from pipeline.models.gpt import Gpt
from pipeline.models.losses import Loss
from pipeline.objectives.batch import Batch
from pipeline.presets import FROZEN, ArmName
from pipeline.training import optimizers as optim
from pipeline.training.base_module import Training
from pipeline.training.hardware import check_size
from pipeline.training.optimizers import Optimization
from pipeline.training.task_data import LabeledData


@dataclass
class Craft:
    """How a fine-tune differs from plain training.

    Args:
        dropout: in the encoder and before the head's linear layer.
        mix_dropout: rate at which a layer is left out of the frozen arm's scalar mix.
        lstm: cells of a biLSTM in each direction between encoder and head; 0: none.
        words: what of a word a tagger sees: its `first` piece, or the `mean` of its pieces.
        crf: let a tagger score whole sequences of tags.
        class_weights: `balanced` weighs classes by the inverse of their frequency.
        label_smoothing: share of the probability that is spread over all classes.
        lm_weight: weight of GPT's auxiliary LM loss on the task's texts (Radford et al. 2018, equation 5).
        unfreeze_share: share of the run over which layers join the training one after another, from the top
            (Howard and Ruder 2018, 3.3); 0: all from the start, above 1: the lowest never do.
    """

    dropout: float
    mix_dropout: float
    lstm: int
    words: Literal["first", "mean"]
    crf: bool
    class_weights: Literal["none", "balanced"]
    label_smoothing: float
    lm_weight: float
    unfreeze_share: float

    def __post_init__(self) -> None:
        if not 0 <= self.mix_dropout < 1:
            raise UserError(f"model.craft.mix_dropout is {self.mix_dropout}; it is a rate, from 0 to below 1.")
        if not 0 <= self.label_smoothing <= 1:
            raise UserError(f"model.craft.label_smoothing is {self.label_smoothing}; it is a share, from 0 to 1.")
        for name in ("lstm", "unfreeze_share", "lm_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"model.craft.{name} is {getattr(self, name)}; it must be at least 0.")


class FineTuning(Training):
    """Trains an encoder with a head on labelled texts.

    Args:
        optimization: rate, schedule and the rest; `warmup_steps` is set from `warmup_share`.
        warmup_share: share of all steps that warms up.
        craft: see Craft.
        arm: how much of the network is trained, and from which weights.
        seed: of fresh weights and dropout.
    """

    stage = "finetune"

    def __init__(
        self,
        *,
        optimization: Optimization,
        warmup_share: float,
        craft: Craft,
        arm: ArmName = "full",
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        if not 0 <= warmup_share <= 1:
            raise UserError(f"model.warmup_share is {warmup_share}; it is a share, from 0 to 1.")
        self.optimization, self.warmup_share, self.arm, self.craft = optimization, warmup_share, arm, craft
        self.frozen, self.weights = arm in FROZEN, {"lm": craft.lm_weight}
        self.model: TunedModel
        self.data: LabeledData
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", None, persistent=False)
        self.answers: list[tuple[int, Decision]] = []

    def build(self, data: LabeledData) -> None:
        """Puts a head on the encoder of the data, as arm and craft say.

        Raises:
            UserError: the craft does not go with this encoder or task.
        """
        torch.manual_seed(self.seed)
        craft, encoder, task = self.craft, data.encoder, data.task
        if craft.lm_weight and not isinstance(encoder, Gpt):
            raise UserError("model.craft.lm_weight is GPT's: other encoders have no causal LM.")
        if self.frozen and (craft.lm_weight or craft.unfreeze_share or self.optimization.layer_decay != 1):
            raise UserError(
                "model.craft.lm_weight, unfreeze_share and model.optimization.layer_decay are about how an encoder is "
                f"trained; the arm '{self.arm}' does not train it."
            )
        if craft.mix_dropout and not self.frozen:
            raise UserError(f"model.craft.mix_dropout is for a mix of frozen layers; the arm '{self.arm}' has none.")
        if not data.by_word and (craft.crf or craft.words != "first"):
            raise UserError("model.craft.crf and words are for tagging: a single label has neither sequence nor words.")
        if craft.crf and (craft.class_weights != "none" or craft.label_smoothing):
            raise UserError("A CRF scores whole sequences: it has neither class weights nor label smoothing.")
        encoder.set_dropout(craft.dropout)
        roles = task.roles or [role for role in task.columns if role not in ("label", "tags")]
        options = HeadOptions(
            by_word=data.by_word,
            pairs=isinstance(data.examples["train"][0].text, tuple),
            spans=task.metric == "span_f1",
            columns={role: task.columns.get(role, role) for role in roles},
            mix=self.frozen,
            mix_dropout=craft.mix_dropout,
            lstm=craft.lstm,
            dropout=craft.dropout,
            words=craft.words,
            crf=craft.crf,
            max_length=data.room,
            cut=data.cut,
        )
        make = partial(TunedModel, encoder, labels=task.label_names, options=options)
        check_size(make, "model.craft")
        self.model, self.data = make(), data
        self.model.encoder.requires_grad_(not self.frozen)
        self.train()  # a loaded encoder is in eval mode, and the trainer leaves each module in its own
        if self.frozen:
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")  # as it should be
        self.record_decay_names()
        if craft.class_weights == "balanced":
            self.class_weights = balanced(data)

    def train(self, mode: bool = True) -> FineTuning:
        super().train(mode)
        if hasattr(self, "model") and self.frozen:
            self.model.encoder.eval()  # frozen features: no dropout inside either
        return self

    @property
    def trained(self) -> Encoder:
        return self.model.encoder

    def loss(self, batch: Batch) -> tuple[Loss, Tensor, Encoded]:
        logits, encoded = self.model(batch.inputs | batch.shared)
        options: dict[str, Any] = {}
        if self.training:
            options = {"weights": self.class_weights, "smoothing": self.craft.label_smoothing}
        return self.model.head.loss(logits, batch.targets["task"].labels, **options), logits, encoded

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, _, encoded = self.loss(batch)
        losses = {"task": loss}
        if self.craft.lm_weight:
            losses["lm"] = self._lm_loss(encoded)
        return self.weighted(losses, batch)

    def _lm_loss(self, encoded: Encoded) -> Loss:
        encoder = self.model.encoder
        assert isinstance(encoder, Gpt)
        asked = encoded.mask[:, 1:]
        hidden, labels = encoded.layers[-1][:, :-1][asked], encoded.input_ids[:, 1:][asked]
        return encoder.token_loss(hidden, labels)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Layers that are not yet unfrozen have no gradient, so the optimiser leaves them and their moments alone."""
        groups = self.model.encoder.layer_groups()
        for depth, parameters in enumerate(reversed(groups)):
            begins = optim.unfreezes_at(depth, len(groups), self.trainer.max_steps, self.craft.unfreeze_share)
            if self.global_step < begins:
                for parameter in parameters:
                    parameter.grad = None

    def on_validation_epoch_start(self) -> None:
        self.answers.clear()
        self.sums.expect("val", ["task"])  # in a process without a batch too

    on_test_epoch_start = on_validation_epoch_start

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        loss, logits, _ = self.loss(batch)
        self.sums.add("val", {"task": loss}, empty=batch.empty)
        decisions = self.model.head.decide(logits, batch.inputs)
        for row, (labels, probabilities) in zip(batch.rows.tolist(), decisions, strict=True):
            self.answers.append((row, (labels.cpu(), probabilities.cpu())))

    test_step = validation_step

    def answered(self, split: str) -> Answers:
        """The decisions of all processes about a part, text by text."""
        return gathered(self.answers, self.data.items[split], self.data.examples[split], by_word=self.data.by_word)

    def on_validation_epoch_end(self) -> None:
        figures = {"val/loss": self.mean_losses("val")["val/task_loss"]}
        found = scores(self.answered("valid"), self.data.task)
        figures |= {f"val/{name}": value for name, value in found.figures.items()}
        self.log_dict(figures, logger=False)
        if (mix := self.model.head.mix) is not None:
            figures |= {f"mix/{name}": value for name, value in mix.shares().items()}
        self.log_all({**figures, "tokens": float(self.tokens_seen)})
        self.save_history()

    def configure_optimizers(self) -> Any:
        self.optimization.warmup_steps = round(self.warmup_share * self.trainer.max_steps)
        return self.optimizers_of(self.optimization, self.model.encoder.layer_groups(), self.model.head.parameters())


def balanced(data: LabeledData) -> Tensor:
    """(C,): N / (C n_c), of C classes that the training part has: its mean weight is 1 (King and Zeng 2001)."""
    counts: Counter[int] = Counter()
    for example in data.examples["train"]:
        counts.update(example.labels)
    mean = counts.total() / len(counts)
    # 0 of a class that is never there: label smoothing gives it a share, which a weight would blow up.
    weights = [mean / counts[index] if counts[index] else 0.0 for index in range(len(data.task.label_names))]
    return torch.tensor(weights)
