"""What both stages of training share: losses per prediction of the whole step, seeds per step, logging, checkpoints."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn

from pipeline.console import typed
from pipeline.errors import Diverged, UserError
from pipeline.models.base import Encoder
from pipeline.models.inputs import flatten_pairs
from pipeline.models.losses import Loss
from pipeline.objectives.batch import Batch
from pipeline.storage.checksums import digest
from pipeline.tracking.history import History
from pipeline.training import checkpoints, optimizers
from pipeline.training.energy import Energy
from pipeline.training.hardware import keep_memory
from pipeline.training.loss_sums import EMPTY, LossSums
from pipeline.training.nodes import appears
from pipeline.training.optimizers import Optimization
from pipeline.training.schedules import apply_configured_rates
from pipeline.training.step_callbacks import NonFiniteGuard, StepCallback
from pipeline.training.weight_mean import WeightMean

SHARDED = "_fsdp_wrapped_module."  # in the names of parameters whose module is sharded by itself


class Training(lightning.LightningModule, ABC):
    """The base of both stages.

    Args:
        seed: of fresh weights and dropout.

    Attributes:
        stage: its name on the command line.
        is_counting: whether it counts instead of training: no gradient, no steps, no checkpoints.
        optimization: rate, schedule and the rest.
        kept: what a checkpoint must have beside what all have (see checkpoints.PARTS).
        weights: of losses, where they are not 1.
        last_loss: of the last micro-batch, with the scale of its gradient.
        gradient_norm: of the last optimizer step, before clipping.
        rate: its learning rate.
        last_losses: its parts by name, without their weights.
        shown: metrics of a validation that the console shows; empty: all but details.
        loss_baseline: names of losses -> what guessing by frequency costs, where that is known.
        sums: losses since the last log line.
        tokens_seen: by the whole run, over all processes.
        checkpoint_file: where a run saves its state; None: outside of a run folder.
        best_key: under which checkpoints have the state of the callback that keeps the run's best one; empty: none.
        identity: configuration and data of the run, which a checkpoint repeats.
        mean: of the weights, where `optimization.average_share` asks for one.
        figures: metrics of the last validation, as checkpoints keep them.
    """

    stage: str
    is_counting: ClassVar[bool] = False
    optimization: Optimization
    shown: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    tokens_seen: Tensor

    def __init__(self, *, seed: int) -> None:
        super().__init__()
        self.seed, self.last_loss = seed, torch.tensor(math.nan)
        self.gradient_norm = torch.tensor(math.nan)
        self.rate = math.nan
        self.last_losses: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.sums, self.mean = LossSums(), WeightMean()
        self.checkpoint_file: Path | None = None
        self.best_key = ""
        self.identity: dict[str, Any] = {}
        self.figures: dict[str, float] = {}
        self.seconds_before, self.started = 0.0, time.monotonic()  # of the parts of a resumed run
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.int64))

    @property
    def loss_baseline(self) -> dict[str, float]:
        return {}

    @property
    @abstractmethod
    def trained(self) -> Encoder:
        """The encoder that is trained."""

    def configure_callbacks(self) -> list[lightning.Callback]:
        return [NonFiniteGuard()]

    # ------------------------------------------------------------------ steps

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout is a function of the micro-batch, so a resumed run draws what the uninterrupted one would. Lightning
        # counts batches from 0 in each epoch, and steps over all of them.
        parts = self.trainer.accumulate_grad_batches
        number = self.global_step * parts + batch_idx % parts
        seed_generators(((self.seed * 1_000_003 + number) * 1_009 + self.global_rank) % (1 << 63), self.device)

    def weighted(self, losses: dict[str, Loss], batch: Batch) -> Tensor:
        """The losses of a micro-batch, each divided by its predictions in the whole optimizer step.

        Scaled up by what Lightning (micro-batches) and DDP (processes) divide by.
        """
        parts = self.trainer.accumulate_grad_batches * self.trainer.world_size
        share = 0.0 if batch.empty else 1.0
        means = [
            self.weights.get(name, 1) * share * loss.sum / batch.targets[name].count for name, loss in losses.items()
        ]
        total = torch.stack(means).sum() * parts
        self.last_losses = {
            name: parts * loss.sum.detach() / batch.targets[name].count for name, loss in losses.items()
        }
        self.last_loss = total.detach()
        self.sums.add("train", losses, empty=batch.empty)
        return total

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        limit = gradient_clip_val or math.inf  # 0 is no clipping, as Lightning has it
        if is_sharded(self.trainer):  # no process has the whole gradient
            norm = self.trainer.model.clip_grad_norm_(limit)  # type: ignore[union-attr, operator]
        else:
            norm = nn.utils.clip_grad_norm_([p for p in self.parameters() if p.grad is not None], limit)
        self.gradient_norm = norm.detach()
        self.rate = self.trainer.optimizers[0].param_groups[0]["lr"]  # behind the step the schedule has the next one's
        for callback in self.step_callbacks:
            callback.on_gradient_norm(self.trainer, self, norm)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        if self.global_step == self.trainer.max_steps:
            self.trainer.should_stop = True  # the last step is validated, whatever the interval
        if (batch_idx + 1) % self.trainer.accumulate_grad_batches:
            return
        self.tokens_seen += batch.tokens
        if self.averaged_steps:
            self.mean.add(self)
        every = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if self.global_step % every == 0 or self.global_step == self.trainer.max_steps:
            self._log_step()
        for callback in self.step_callbacks:
            callback.on_step_end(self.trainer, self)

    def on_validation_start(self) -> None:
        self.mean.swap(self)

    def on_validation_end(self) -> None:
        if self.mean.in_module:
            self.mean.swap(self)

    def on_train_end(self) -> None:
        self.mean.swap(self)

    def restore_before_step(self) -> None:
        """Undoes the changes of the current step; no weight has changed yet."""

    @property
    def step_callbacks(self) -> list[StepCallback]:
        return [callback for callback in self.trainer.callbacks if isinstance(callback, StepCallback)]  # type: ignore[attr-defined]

    def texts_of(self, batch: Batch) -> list[str]:
        """The texts of a batch as the encoder reads them, for people."""
        texts = self.trained.texts_of(flatten_pairs(batch.inputs | batch.shared))
        if batch.mask.ndim == 3:
            return [f"{first} | {second}" for first, second in zip(texts[::2], texts[1::2], strict=True)]
        return texts

    # ------------------------------------------------------------------ logging

    def _log_step(self) -> None:
        metrics = self.mean_losses("train")
        speed = (int(self.tokens_seen) - self.tokens_at_start) / (time.monotonic() - self.started)
        metrics |= {
            "train/loss": self.weighted_sum(metrics),
            "train/learning_rate": self.rate,
            "train/grad_norm": float(self.gradient_norm),
        }
        self.log_all({**metrics, "tokens": float(self.tokens_seen), "tokens_per_second": speed})

    def mean_losses(self, split: str) -> dict[str, float]:
        """Means since the last call, over all processes: NAME_loss, and NAME_accuracy and NAME_spelling if known.

        Raises:
            Diverged: a loss of a validation or test is not finite; that of training is noticed at its step.
        """
        strategy = self.trainer.strategy
        device = strategy.root_device  # the module is back on the CPU when a test has ended
        alone = self.trainer.world_size == 1  # then nothing goes to the device: Apple's GPUs have no float64
        results = self.sums.take(
            split, lambda sums: sums if alone else strategy.reduce(sums.to(device), reduce_op="sum")
        )
        if split != "train" and not all(math.isfinite(total) for total, _ in results.values()):
            part = {"val": "validation"}.get(split, split)
            raise Diverged(
                f"The loss on the {part} part is not finite at step {self.global_step}. Lower "
                f"model.optimization.learning_rate or lengthen the warm-up, and start over with "
                f"{typed.flag('overwrite')}."
            )
        return {f"{key}_{name}": value for key, (_, means) in results.items() for name, value in means.items()}

    def weighted_sum(self, metrics: Mapping[str, float]) -> float:
        """The sum of the mean losses PART/NAME_loss, with their weights."""
        losses = {
            name.partition("/")[2].removesuffix("_loss"): value
            for name, value in metrics.items()
            if name.endswith("_loss")
        }
        return sum(self.weights.get(name, 1) * value for name, value in losses.items())

    def log_all(self, metrics: dict[str, float]) -> None:
        """Gives metrics to all loggers of the trainer."""
        for logger in self.loggers:
            logger.log_metrics(metrics, step=self.global_step)

    def save_history(self) -> None:
        """Writes the metric history, where the run keeps one."""
        for logger in self.loggers:
            if isinstance(logger, History):
                logger.save()

    # ------------------------------------------------------------------ parameters

    def record_decay_names(self) -> None:
        """Notes which parameters are matrices, by name, while they have their shape; `build` calls this at its end."""
        self.decay_names = {name for name, parameter in self.named_parameters() if parameter.dim() > 1}

    def decay_parameters(self) -> set[int]:
        """Ids of the parameters that decay: matrices."""
        named = ((name.replace(SHARDED, ""), parameter) for name, parameter in self.named_parameters())
        return {id(parameter) for name, parameter in named if name in self.decay_names}

    def warmup_steps(self, total: int) -> int:
        """Steps of warm-up in a run of that many steps."""
        return self.optimization.warmup_steps

    def optimizers_of(
        self, options: Optimization, layers: list[list[nn.Parameter]], rest: Iterable[nn.Parameter]
    ) -> Any:
        """As `configure_optimizers` returns them; see optimizers.build."""
        half, fused = "bf16" in str(self.trainer.precision), self.trainer.precision != "16-mixed"
        decay, total = self.decay_parameters(), self.total_steps
        return optimizers.build(options, layers, rest, total=total, decay_parameters=decay, half=half, fused=fused)

    # ------------------------------------------------------------------ the run and its checkpoints

    def learn(self, trainer: lightning.Trainer, data: lightning.LightningDataModule, checkpoint: Path | None) -> None:
        """Trains to the last step, from a checkpoint if there is one."""
        keep_memory()
        trainer.fit(self, data, ckpt_path=checkpoint, weights_only=True)

    def begin_counting(self, trainer: lightning.Trainer) -> None:
        """What `Trainer.fit` begins, for a run without steps: loggers, the clock, and the counters of energy."""
        for logger in trainer.loggers:
            getattr(logger, "experiment", None)  # the start of W&B is no part of the run's time
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, Energy):
                callback.on_train_start(trainer, self)
        self.started = time.monotonic()

    def on_train_start(self) -> None:
        self._compare_processes()
        if self.optimization.average_share and is_sharded(self.trainer):
            raise UserError("model.optimization.average_share needs whole weights in each process, as with ddp.")
        span = [self.optimization.average_share, self.total_steps]
        if self.mean.count != self.averaged_steps and self.mean.span != span:  # other steps or another share
            self.print(f"Note: the mean of the weights begins anew at step {self.global_step:,}.")
            self.mean = WeightMean()
        self.mean.span = span
        self.started, self.tokens_at_start = time.monotonic(), int(self.tokens_seen)
        if self.trainer.ckpt_path:  # a checkpoint restores its rates, but those of the configuration apply
            apply_configured_rates(self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler, self)

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run, also of a trainer that counts epochs."""
        steps = self.trainer.max_steps
        return steps if steps > 0 else int(self.trainer.estimated_stepping_batches)

    @property
    def averaged_steps(self) -> int:
        """How many of the steps so far are in the mean of the weights."""
        if not (share := self.optimization.average_share):
            return 0
        return max(0, self.global_step - self.total_steps + max(1, round(self.total_steps * share)))

    @property
    def seconds(self) -> float:
        """Seconds of training, in all parts of the run."""
        return self.seconds_before + time.monotonic() - self.started

    def _compare_processes(self) -> None:
        """Each machine may have trained its own tokenizer, whose token ids mean something else, or lack a checkpoint.

        Raises:
            UserError: processes have other data or another configuration than the first one, begin at another step, or
                do not see its run folder.
        """
        if self.trainer.world_size == 1:
            return
        strategy, file = self.trainer.strategy, self.checkpoint_file
        there = self.trainer.num_nodes == 1 or file is None or appears(file.parents[1])
        own = [int(digest(self.identity)[:12], 16), self.global_step, int(there)]
        every = strategy.all_gather(torch.tensor(own, device=strategy.root_device)).view(-1, len(own))
        if len(every[:, 0].unique()) > 1:
            raise UserError(
                "The processes have different data or configurations. On several machines, let PIPELINE_CACHE "
                "be a folder that all of them share, so that they share tokenizer and token store."
            )
        if len(every[:, 1].unique()) > 1 or not every[:, 2].all():
            raise UserError(
                "The machines do not see the same run folder: let it be in a folder that all of them share."
            )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = {name: torch.tensor(values, dtype=torch.float64) for name, values in self.sums.local().items()}
        if self.trainer.world_size > 1:
            device, reduce = self.trainer.strategy.root_device, self.trainer.strategy.reduce
            sums = {name: reduce(values.to(device), reduce_op="sum") for name, values in sums.items()}
        checkpoint["sums"] = {name: values.tolist() for name, values in sums.items()}
        self.mean.save(checkpoint)
        checkpoint["identity"], checkpoint["seconds"] = self.identity, self.seconds
        self.figures |= {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        checkpoint["figures"] = dict(self.figures)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.mean.load(checkpoint)
        self.seconds_before, self.figures = checkpoint.get("seconds", 0.0), dict(checkpoint.get("figures", {}))
        first = self.global_rank == 0  # one process continues the sums of all
        self.sums.sums.update({name: values if first else list(EMPTY) for name, values in checkpoint["sums"].items()})
        if self.checkpoint_file is not None:
            checkpoints.move(checkpoint, self.checkpoint_file.parent, self.best_key)


def seed_generators(seed: int, device: torch.device) -> None:
    """Seeds the generators of the CPU and of `device`, as `torch.manual_seed` does.

    That one seeds all kinds of devices, and for those that are not in use keeps a stack trace each: 0.5 to 1 ms a step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def is_sharded(trainer: lightning.Trainer) -> bool:
    """Whether each process holds a part of the weights only."""
    return isinstance(trainer.strategy, FSDPStrategy)
