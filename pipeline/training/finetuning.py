"""Fine-tuning as a LightningModule: a saved encoder, a head, and arms of a comparison.

`full` trains encoder and head, `frozen` the head alone, `scratch` the same network from fresh weights: what
pretraining gained is full minus scratch. `random` is a head alone on an encoder of fresh weights.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline import encoders
from pipeline.errors import UserError
from pipeline.finetuning.distillation import TaskTeacher
from pipeline.finetuning.heads.base import REFUSED, Head
from pipeline.finetuning.model import FineTunedModel, reading_of
from pipeline.finetuning.options import HeadOptions, Pair
from pipeline.finetuning.predictions import Numbered, of_all_processes, predictions_of
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import set_language
from pipeline.models.losses import Loss
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.objectives.batch import Batch
from pipeline.objectives.distillation import SoftTargets
from pipeline.presets.arms import FRESH, FROZEN, ArmName
from pipeline.training import schedules
from pipeline.training.base_module import Training
from pipeline.training.fresh_layers import refresh
from pipeline.training.hardware import check_size
from pipeline.training.optimizers import Optimization
from pipeline.training.recipe import Recipe
from pipeline.training.task_data import TaskData
from tasks.base import Prediction


class FineTuning(Training):
    """Trains an encoder with a head on labeled texts.

    Args:
        optimization: rate, schedule and the rest; `warmup_steps` follows from `warmup_share`.
        warmup_share: share of all steps that warms up.
        recipe: see Recipe.
        arm: how much of the network is trained, and from which weights.
        seed: of fresh weights and dropout.
        distillation: a fine-tuned teacher, as TEACHER= sets it, with `temperature` and `teacher_weight`; null: none.
        encoder: its folder, for `Trainer.fit` alone: commands load the encoder of FROM= themselves.
    """

    stage = "finetune"

    def __init__(
        self,
        *,
        optimization: Optimization,
        warmup_share: float,
        recipe: Recipe,
        arm: ArmName = "full",
        seed: int = 0,
        distillation: SoftTargets | None = None,
        encoder: str | None = None,
    ) -> None:
        super().__init__(seed=seed)
        if not 0 <= warmup_share <= 1:
            raise UserError(f"model.warmup_share is {warmup_share}; it is a share, from 0 to 1.")
        self.optimization, self.warmup_share, self.arm, self.recipe = optimization, warmup_share, arm, recipe
        self.distillation, self.encoder_folder = distillation, encoder
        self.teacher: TaskTeacher | None = None
        self.frozen, self.weights = arm in FROZEN, {"lm": recipe.lm_weight}
        self.model: FineTunedModel
        self.data: TaskData
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", None, persistent=False)
        self.language_note: str | None = None  # where an encoder of several languages is not told which
        self.refreshed: list[str] = []  # modules of the encoder that have begun with fresh weights, see `refresh`
        self.predictions: list[Numbered] = []
        self.test_loss = math.nan

    @property
    def pair(self) -> Pair | None:
        """How pairs are to be read; None: as the encoder does by itself."""
        return None if self.recipe.pair == "auto" else self.recipe.pair

    def mixes(self, data: TaskData) -> bool:
        """Whether the head sees a mix of all layers."""
        if self.recipe.layers != "auto":
            return self.recipe.layers == "mix"
        return self.frozen or (data.has_pairs and reading_of(data.encoder, self.pair, data.head) == "attended")

    # ------------------------------------------------------------------ before the first step

    def load_encoder(self) -> Encoder:
        """The encoder of the folder, with fresh weights if the arm has them.

        Raises:
            UserError: there is no such folder.
        """
        if self.encoder_folder is None:
            raise UserError("FineTuning(encoder=...) needs the folder of an encoder.")
        return self.open_encoder(Path(self.encoder_folder))[0]

    def open_encoder(self, folder: Path | None, data: TaskData | None = None) -> tuple[Encoder, LoadReport]:
        """The encoder of a folder, as arm and recipe take it, and what was loaded.

        Args:
            folder: None: there is none, for models that need none.
            data: the task, for a tokenizer that is trained on its texts.

        Raises:
            UserError: there is no such folder, or the recipe does not go with this encoder.
        """
        torch.manual_seed(self.seed)  # of fresh weights
        encoder, report = self.source(folder, data)
        if self.pair is not None:
            encoder.join_pairs(self.pair == "joined")
        if self.recipe.reinit_layers:
            if self.arm != "full":
                why = f"the arm '{self.arm}' has none"
                raise UserError(f"model.recipe.reinit_layers is for pretrained layers that are trained; {why}.")
            self.refreshed = refresh(encoder, self.recipe.reinit_layers)
        return encoder, report

    def source(self, folder: Path | None, data: TaskData | None) -> tuple[Encoder, LoadReport]:
        """As `open_encoder`, before the recipe."""
        assert folder is not None
        return encoders.load_with_report(folder, weights=self.arm not in FRESH)

    def configure_model(self) -> None:
        """Builds the network when Lightning asks for it, unless `build` has been called."""
        if not hasattr(self, "model"):
            self.build(self.trainer.datamodule)  # type: ignore[attr-defined]

    def build(self, data: TaskData) -> None:
        """Puts the task's head on the encoder of the data, as arm and recipe say.

        Raises:
            UserError: the recipe does not go with this encoder or task.
        """
        torch.manual_seed(self.seed)
        recipe, encoder, task = self.recipe, data.encoder, data.task
        self.check_recipe(encoder, data)
        self.language_note = None if task.parallel else set_language(encoder, task.language)
        encoder.set_dropout(recipe.dropout)
        roles = task.roles or [role for role in task.columns if role not in ("label", "tags")]
        options = HeadOptions(
            name=data.head_name,
            pairs=data.has_pairs,
            pair=self.pair,
            columns={role: task.columns.get(role, role) for role in roles},
            mix=self.mixes(data),
            mix_dropout=recipe.mix_dropout,
            lstm=recipe.lstm,
            dropout=recipe.dropout,
            words=recipe.words,
            crf=recipe.crf,
            max_length=data.longest,
            cut=data.cut,
            **task.head_options,
        )
        make = partial(FineTunedModel, encoder, labels=task.outputs, options=options)
        check_size(make, "model.recipe")
        self.model, self.data = make(), data
        if self.distillation is not None:
            self.teacher = TaskTeacher(self.distillation, self.model)
            self.weights["teacher"] = self.distillation.teacher_weight
        self.model.encoder.requires_grad_(not self.frozen)
        self.train()  # a loaded encoder is in eval mode, and the trainer leaves each module in its own
        if self.frozen:
            warnings.filterwarnings("ignore", message=".*in eval mode at the start of training.*")  # as it should be
        if self.predicts_tokens:
            encoder.untrained = frozenset()
        else:  # a pooler of fresh weights, for instance
            encoder.count_as_trained(parameter for group in self.layers() for parameter in group)
        self.record_decay_names()
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())
        if recipe.class_weights == "balanced":
            self.class_weights = balanced(data)

    def check_recipe(self, encoder: Encoder, data: TaskData) -> None:
        """Raises: UserError, a setting means nothing to this encoder, task or arm."""
        recipe = self.recipe
        if recipe.lm_weight and encoder.scoring != "causal":
            raise UserError(
                "model.recipe.lm_weight needs an encoder that predicts from left to right, as GPT; "
                f"{encoder.model_type} does not."
            )
        if self.frozen and (
            recipe.lm_weight
            or recipe.unfreeze_share
            or (self.optimization.layer_decay, self.optimization.encoder_rate) != (1, 1)
        ):
            raise UserError(
                "model.recipe.lm_weight, unfreeze_share and model.optimization.layer_decay and encoder_rate are about "
                f"how an encoder is trained; the arm '{self.arm}' does not train it."
            )
        if recipe.mix_dropout and not self.mixes(data):
            raise UserError(
                "model.recipe.mix_dropout is for a mix of layers; this head sees the top one (model.recipe.layers)."
            )
        self.check_head(data.head, pairs=data.has_pairs)
        if data.has_pairs and self.pair is not None and self.pair not in data.head.readings:
            known = " or ".join(data.head.readings)
            raise UserError(f"model.recipe.pair is {self.pair}, which this task's head does not read: set {known}.")
        if recipe.reinit_layers and data.head.requires is not None:
            raise UserError(
                "model.recipe.reinit_layers is for heads on an encoder's layers; this task needs the decoder too."
            )

    def check_head(self, head: type[Head], *, pairs: bool = True) -> None:
        """Refuses what means nothing to a kind of task, which can be told before its data are read.

        Args:
            pairs: whether its texts are pairs, or may be.

        Raises:
            UserError: there is such a setting.
        """
        takes = head.takes if pairs else head.takes - {"pair"}
        if refused := [name for name in self.recipe.particular if name not in takes]:
            raise UserError(f"model.recipe.{REFUSED[refused[0]]}")
        if self.recipe.crf and (self.recipe.class_weights != "none" or self.recipe.label_smoothing):
            raise UserError("A CRF scores whole sequences: it has neither class weights nor label smoothing.")

    def train(self, mode: bool = True) -> FineTuning:
        super().train(mode)
        if hasattr(self, "model") and self.frozen:
            self.model.encoder.eval()  # frozen features: no dropout inside either
        return self

    # ------------------------------------------------------------------ what is trained

    @property
    def predicts_tokens(self) -> bool:
        """Whether the loss reads the encoder's own probabilities."""
        return self.model.head.requires is not None or self.recipe.lm_weight > 0

    def layers(self) -> list[list[nn.Parameter]]:
        """Parameters of the encoder's layers from the embeddings up, as far as the loss reads them."""
        encoder = self.model.encoder
        groups = encoder.layer_groups()
        return groups if self.predicts_tokens else groups[: encoder.num_layers]

    def above(self) -> list[nn.Parameter]:
        """Parameters above the layers: output layers, where the loss reads them, and the head's."""
        return [*(self.model.encoder.above_layers() if self.predicts_tokens else ()), *self.model.head.parameters()]

    # ------------------------------------------------------------------ steps

    @property
    def trained(self) -> Encoder:
        return self.model.encoder

    def loss(self, batch: Batch) -> tuple[Loss, Tensor, Encoded]:
        """The head's loss and outputs of a batch, and what the encoder returned."""
        outputs, encoded = self.model(batch.inputs | batch.shared, whole=self.training and self.recipe.lm_weight > 0)
        options: dict[str, Any] = {}
        if self.training:
            options = {"weights": self.class_weights, "smoothing": self.recipe.label_smoothing}
        return self.model.head.loss(outputs, batch.targets["task"].labels, **options), outputs, encoded

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss, outputs, encoded = self.loss(batch)
        losses = {"task": loss}
        if self.teacher is not None:
            target = batch.targets["teacher"] = batch.targets["task"]
            losses["teacher"] = self.teacher.loss(batch.inputs | batch.shared, outputs, target.labels)
        if self.recipe.lm_weight:
            predicting = encoded.mask[:, 1:]
            hidden, labels = encoded.layers[-1][:, :-1][predicting], encoded.input_ids[:, 1:][predicting]
            losses["lm"] = self.model.encoder.token_loss(hidden, labels)
        return self.weighted(losses, batch)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Layers that are not yet unfrozen have no gradient, so the optimizer leaves them and their moments alone."""
        groups = self.layers()
        for depth, parameters in enumerate(reversed(groups)):
            begins = schedules.unfreezes_at(depth, len(groups), self.total_steps, self.recipe.unfreeze_share)
            if self.global_step < begins:
                for parameter in parameters:
                    parameter.grad = None

    def warmup_steps(self, total: int) -> int:
        return round(self.warmup_share * total)

    def configure_optimizers(self) -> Any:
        options = replace(self.optimization, warmup_steps=self.warmup_steps(self.total_steps))
        return self.optimizers_of(options, self.layers(), self.above())

    # ------------------------------------------------------------------ validation and test

    def _begin_evaluation(self, split: str) -> None:
        self.predictions.clear()
        self.model.head.thorough = split == "test"
        self.sums.expect(split, ["task"])  # also in a process without a batch

    def on_validation_epoch_start(self) -> None:
        self._begin_evaluation("val")

    def on_test_epoch_start(self) -> None:
        self._begin_evaluation("test")

    def _evaluate(self, split: str, batch: Batch) -> None:
        loss, outputs, _ = self.loss(batch)
        self.sums.add(split, {"task": loss}, empty=batch.empty)
        decoded = self.model.head.decode(outputs, batch.inputs)
        self.predictions += zip(batch.rows.tolist(), decoded, strict=True)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("test", batch)

    def gathered(self, split: str) -> list[Prediction]:
        """The predictions of all processes about a part, text by text."""
        features, texts = self.data.features[split], [example.text for example in self.data.examples[split]]
        return predictions_of(of_all_processes(self.predictions), features, texts, join=self.model.head.join)

    def on_validation_epoch_end(self) -> None:
        metrics = {"val/loss": self.mean_losses("val")["val/task_loss"]}
        if self.trainer.sanity_checking:  # of some rows only
            return
        metrics |= {f"val/{name}": value for name, value in self.scores("valid").items()}
        self.log_dict(metrics, logger=False)
        if (mix := self.model.head.mix) is not None:
            metrics |= {f"mix/{name}": value for name, value in mix.shares().items()}
        self.log_all({**metrics, "tokens": float(self.tokens_seen)})
        self.save_history()

    def on_test_epoch_end(self) -> None:
        self.test_loss = self.mean_losses("test")["test/task_loss"]
        scores = {f"test/{name}": value for name, value in self.scores("test").items()}
        self.log_dict({"test/loss": self.test_loss, **scores}, logger=False)

    def scores(self, split: str) -> dict[str, float]:
        """The metrics of the task on a part."""
        gold = [example.label for example in self.data.examples[split]]
        return self.data.task.scores(gold, [prediction.label for prediction in self.gathered(split)]).figures


def balanced(data: TaskData) -> Tensor:
    """(C,): N / (C n_c), of C classes that the training part has: its mean weight is 1 (King and Zeng 2001)."""
    counts = Counter(int(index) for example in data.examples["train"] for index in np.ravel(example.label))
    mean = counts.total() / len(counts)
    # 0 for a class that never occurs: label smoothing gives it a share, which a weight would blow up.
    weights = [mean / counts[index] if counts[index] else 0.0 for index in range(len(data.task.label_names))]
    return torch.tensor(weights)
