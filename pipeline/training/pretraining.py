"""Pretraining as a LightningModule: an encoder, an objective, and what is logged about them."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.inputs import Batch, flatten_pairs
from pipeline.models.losses import Loss
from pipeline.objectives.base import Objective
from pipeline.objectives.ppmi_init import begin_with_cooccurrences
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import digest
from pipeline.tokenization.base import Tokenizer
from pipeline.tracking.loggers import History
from pipeline.training import checkpoints
from pipeline.training import optimizers as optim
from pipeline.training.corpus_data import CorpusData
from pipeline.training.hardware import check_size
from pipeline.training.optimizers import Optimization

SHARDED = "_fsdp_wrapped_module."  # in the names of parameters whose module is a unit of its own


class Training(lightning.LightningModule):
    """What both stages share: token-correct losses, per-step seeds, a guard against non-finite losses."""

    stage: str
    kept: tuple[str, ...] = ()  # what a checkpoint must have beside what all have (see checkpoints.PARTS)
    tokens_seen: Tensor

    def __init__(self, *, seed: int) -> None:
        super().__init__()
        self.seed, self.last_loss, self.checkpoint_file = seed, torch.tensor(math.nan), Path()
        self.weights: dict[str, float] = {}  # of losses, where they are not 1
        self.identity: dict[str, Any] = {}  # configuration and data, to be found again in a checkpoint
        self.seconds_before, self.started = 0.0, time.monotonic()  # of the parts of a resumed run
        self.figures: dict[str, float] = {}  # of the last validation, as checkpoints keep them
        self.register_buffer("tokens_seen", torch.zeros((), dtype=torch.int64))
        self.between_steps: Callable[[lightning.Trainer], None] = lambda trainer: None
        # Figures of losses since they were last logged: as they come, so that no step waits for a GPU, and added up.
        self._counted: list[tuple[str, Tensor]] = []
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])

    def note_matrices(self) -> None:
        """Which parameters are matrices, by name, while they have their shape; `build` calls this at its end."""
        self.matrix_names = {name for name, parameter in self.named_parameters() if parameter.dim() > 1}
        self.parameter_count = sum(parameter.numel() for parameter in self.parameters())

    def matrices(self) -> set[int]:
        named = ((name.replace(SHARDED, ""), parameter) for name, parameter in self.named_parameters())
        return {id(parameter) for name, parameter in named if name in self.matrix_names}

    def optimizers_of(
        self, options: Optimization, layers: list[list[nn.Parameter]], rest: Iterable[nn.Parameter]
    ) -> Any:
        """As `configure_optimizers` returns them; see optim.build."""
        half, total = "bf16" in str(self.trainer.precision), self.trainer.max_steps
        return optim.build(options, layers, rest, total=total, matrices=self.matrices(), half=half)

    def on_train_start(self) -> None:
        self._compare_processes()
        self.started, self.tokens_at_start = time.monotonic(), int(self.tokens_seen)
        if self.trainer.ckpt_path:  # a checkpoint brings its rates along: those of the configuration hold
            optim.restate(self.trainer.optimizers[0], self.trainer.lr_scheduler_configs[0].scheduler, self)

    @property
    def seconds(self) -> float:
        """Of training up to now, in all parts of the run."""
        return self.seconds_before + time.monotonic() - self.started

    def _compare_processes(self) -> None:
        """Each machine may have trained a tokenizer of its own, and its token ids would mean other things.

        Raises:
            UserError: processes have other data or another configuration than the first one.
        """
        if self.trainer.world_size > 1:
            mine = torch.tensor(int(digest(self.identity)[:12], 16), device=self.trainer.strategy.root_device)
            if len(self.trainer.strategy.all_gather(mine).unique()) > 1:
                raise UserError(
                    "The processes have not the same data and configuration. On several machines, let PIPELINE_CACHE "
                    "be a folder that all of them share, so that they share tokenizer and token store."
                )

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.batches_of_step: list[Batch] = []
            self._counted_before = len(self._counted)
        # Dropout is a function of the micro-batch, so a resumed run draws what the uninterrupted one would.
        torch.manual_seed(((self.seed * 1_000_003 + batch_idx) * 1_009 + self.global_rank) % (1 << 63))

    def weighted(self, losses: dict[str, Loss], batch: Batch) -> Tensor:
        """Each loss over the predictions of the whole optimiser step; undoes the means that Lightning and DDP take."""
        parts = self.trainer.accumulate_grad_batches * self.trainer.world_size
        means = [self.weights.get(name, 1) * loss.sum / batch[f"total/{name}"] for name, loss in losses.items()]
        total = torch.stack(means).sum() * parts
        self.last_loss = total.detach()
        self.batches_of_step.append(batch)
        self._count("train", losses, batch)
        return total

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        limit = gradient_clip_val or math.inf  # 0 is no clipping, as Lightning has it
        if is_sharded(self.trainer):  # no process has the whole gradient
            norm = self.trainer.model.clip_grad_norm_(limit)  # type: ignore[union-attr, operator]
        else:
            norm = nn.utils.clip_grad_norm_([p for p in self.parameters() if p.grad is not None], limit)
        # Of several processes one alone may not stop: the gradient tells all of them at once.
        alone = self.trainer.world_size == 1
        if not math.isfinite(norm + self.last_loss if alone else norm):
            self._not_finite("gradient" if math.isfinite(self.last_loss) else "loss")

    def _not_finite(self, what: str) -> None:
        # No weight has changed in this step, so what is saved here is from before it: counters and sums too, where
        # the step has several parts.
        parts, progress = self.trainer.accumulate_grad_batches, self.trainer.fit_loop.epoch_loop.batch_progress
        for counts in (progress.total, progress.current):
            begin = counts.completed - counts.completed % parts
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, begin)
        del self._counted[self._counted_before :]
        self.trainer.save_checkpoint(self.checkpoint_file)
        file = self.checkpoint_file.parent.parent / "not_finite.json"
        rows = [row for batch in self.batches_of_step for row in batch["rows"].tolist()]
        found = {"step": self.global_step, "what": what, "rows": rows}
        if self.global_rank == 0:
            texts = [text for batch in self.batches_of_step for text in self.texts_of(batch)]
            write_atomically(file, json.dumps({**found, "texts": texts}, indent=2) + "\n")
        raise UserError(
            f"The {what} is not finite at step {self.global_step}; the state before this step is in "
            f"{self.checkpoint_file}, the rows of its batch in {file}. Lower model.optimization.learning_rate or "
            "lengthen the warm-up, and go on with RESUME=1."
        )

    def texts_of(self, batch: Batch) -> list[str]:
        """The texts of a batch as the encoder is given them, to look at."""
        encoder = next(module for module in self.modules() if isinstance(module, Encoder))
        texts = encoder.texts_of(flatten_pairs(batch))
        if batch["mask"].ndim == 3:
            return [f"{first} | {second}" for first, second in zip(texts[::2], texts[1::2], strict=True)]
        return texts

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._add_up()  # what is not yet logged
        sums = {name: torch.tensor(values, dtype=torch.float64) for name, values in self._sums.items()}
        if self.trainer.world_size > 1:
            device, reduce = self.trainer.strategy.root_device, self.trainer.strategy.reduce
            sums = {name: reduce(values.to(device), reduce_op="sum") for name, values in sums.items()}
        checkpoint["sums"] = {name: values.tolist() for name, values in sums.items()}
        checkpoint["identity"], checkpoint["seconds"] = self.identity, self.seconds
        self.figures |= {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        checkpoint["figures"] = dict(self.figures)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seconds_before, self.figures = checkpoint.get("seconds", 0.0), dict(checkpoint.get("figures", {}))
        mine = self.global_rank == 0  # one process keeps what all had counted
        self._sums.update({name: values if mine else [0.0] * 4 for name, values in checkpoint["sums"].items()})
        checkpoints.move(checkpoint, self.checkpoint_file.parent)

    def _count(self, split: str, losses: dict[str, Loss], batch: Batch) -> None:
        for name, loss in losses.items():
            nothing = batch[f"total/{name}"] == math.inf  # see corpus.nothing_of
            self._counted.append((f"{split}/{name}", loss.statistics().masked_fill(nothing, 0)))

    def _add_up(self) -> None:
        if self._counted:
            names, figures = zip(*self._counted, strict=True)
            for name, values in zip(names, torch.stack(figures).tolist(), strict=True):
                self._sums[name] = [a + b for a, b in zip(self._sums[name], values, strict=True)]
            self._counted.clear()

    def _figures(self, split: str) -> dict[str, float]:
        """Means since the last call, over all processes: NAME_loss, and NAME_accuracy and NAME_spelling if known.

        Raises:
            UserError: a loss of a validation is not finite; that of training is seen at its step.
        """
        self._add_up()
        figures: dict[str, float] = {}
        for key in [key for key in self._sums if key.startswith(f"{split}/")]:
            device = self.trainer.strategy.root_device  # the module is back on the CPU when a test has ended
            sums = torch.tensor(self._sums.pop(key), dtype=torch.float64, device=device)
            total, count, correct, spelling = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
            if split == "val" and not math.isfinite(total):
                raise UserError(
                    f"The loss on the validation part is not finite at step {self.global_step}. Lower "
                    "model.optimization.learning_rate or lengthen the warm-up, and start anew with OVERWRITE=1."
                )
            means = {"loss": total, "accuracy": correct, "spelling": spelling}
            figures |= {f"{key}_{name}": value / max(1, count) for name, value in means.items() if value == value}
        return figures

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        step, every = self.global_step, self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        whole = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        if step == self.trainer.max_steps:
            self.trainer.should_stop = True  # the last step is validated, whatever the interval
        if whole:
            self.tokens_seen += batch["total/tokens"]
        if whole and (step % every == 0 or step == self.trainer.max_steps):
            figures = self._figures("train")
            losses = [
                self.weights.get(name.removeprefix("train/").removesuffix("_loss"), 1) * value
                for name, value in figures.items()
                if name.endswith("_loss")
            ]
            speed = (int(self.tokens_seen) - self.tokens_at_start) / (time.monotonic() - self.started)
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            figures |= {"train/loss": sum(losses), "train/learning_rate": rate}
            self.log_all({**figures, "tokens": float(self.tokens_seen), "tokens_per_second": speed})
        if whole:
            self.between_steps(self.trainer)

    def log_all(self, figures: dict[str, float]) -> None:
        for logger in self.loggers:
            logger.log_metrics(figures, step=self.global_step)

    @property
    def history(self) -> History:
        return next(logger for logger in self.loggers if isinstance(logger, History))


def is_sharded(trainer: lightning.Trainer) -> bool:
    """Whether each process holds a part of the weights only."""
    return isinstance(trainer.strategy, FSDPStrategy)


class Pretraining(Training):
    """Pretrains an encoder.

    Args:
        encoder: class and sizes; it is built when the tokenizer is known.
        objective: what it learns.
        embeddings: how those of tokens begin: `random` as the rest, or `cooccurrence` (see cooccurrence.py).
        optimization: rate, schedule and the rest.
        seed: of the initial weights and dropout.
    """

    stage = "pretrain"
    kept = ("memory",)

    def __init__(
        self,
        *,
        encoder: Callable[[Tokenizer], Encoder],
        objective: Objective,
        embeddings: Literal["random", "cooccurrence"],
        optimization: Optimization,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.make_encoder, self.objective, self.optimization = encoder, objective, optimization
        self.embeddings = embeddings
        self.encoder: Encoder
        self.floors: dict[str, float] = {}
        self.warned = False

    def build(self, data: CorpusData) -> None:
        """Makes the encoder for the tokenizer, and the floors that the loss must fall below.

        Raises:
            UserError: settings of encoder, batches and corpus do not go together.
        """
        make = partial(self.make_encoder, data.tokenizer, **data.maker.encoder_options)
        check_size(make, "model.encoder.init_args")
        torch.manual_seed(self.seed)
        self.encoder = make()
        if (rows := self.encoder.config["vocab_size"]) < len(data.tokenizer):
            raise UserError(
                f"model.encoder.init_args.vocab_size is {rows:,}, but the tokenizer has {len(data.tokenizer):,} tokens."
            )
        if getattr(self.encoder, "state", "reset") == "carry":
            raise UserError(
                "state: carry is for imported weights; to carry in pretraining set data.batches.init_args.carry."
            )
        if data.length > self.encoder.max_length:
            raise UserError(
                f"data.length is {data.length}, but the encoder has only {self.encoder.max_length} positions; "
                "lower data.length or raise model.encoder.init_args.max_length."
            )
        embedding = getattr(self.encoder, "word_embedding", None)
        if self.embeddings == "cooccurrence" and not isinstance(embedding, nn.Embedding):
            raise UserError("model.embeddings: cooccurrence needs an encoder with a vector for each token; set random.")
        self.encoder.config["training_length"] = data.length
        uniform, unigram = data.maker.floors(data.train, data.tokenizer)
        self.floors = {"floor/uniform": uniform, "floor/unigram": unigram}
        self.note_matrices()
        self.per_byte = data.maker.predictions_per_byte(data.maker.windows(data.valid, data.tokenizer, data.length, 0))

    def begin(self, data: CorpusData) -> None:
        """What a run that is not resumed does before its first step."""
        if self.embeddings == "cooccurrence":
            print("embeddings  begin with co-occurrences, which are being counted", flush=True)
            weight = self.encoder.get_parameter("word_embedding.weight")
            begin_with_cooccurrences(weight, data.train, special=data.tokenizer.special_ids, seed=self.seed)

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.optimization.warmup_steps >= self.trainer.max_steps:
            self.print(
                f"Warning: the warm-up of {self.optimization.warmup_steps:,} steps does not end before the run "
                f"({self.trainer.max_steps:,}); lower model.optimization.warmup_steps."
            )
        if self.global_step == 0:
            self.log_all(self.floors)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["memory"] = self.encoder.memory

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.encoder.memory = checkpoint["memory"]

    def on_validation_epoch_start(self) -> None:  # validation has a memory of its own
        self.set_aside, self.encoder.memory = self.encoder.memory, None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.memory_before = self.encoder.memory
        return self.weighted(self.objective(self.encoder, batch), batch)

    def _not_finite(self, what: str) -> None:
        self.encoder.memory = self.memory_before
        super()._not_finite(what)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._count("val", self.objective(self.encoder, batch), batch)

    def on_validation_epoch_end(self) -> None:
        figures = self._figures("val")
        losses = [value for name, value in figures.items() if name.endswith("_loss")]
        named = {name.removeprefix("val/"): value for name, value in figures.items()}
        extra = self.objective.report(named, per_byte=self.per_byte)
        figures |= {"val/loss": sum(losses), **{f"val/{name}": value for name, value in extra.items()}}
        self.log_dict(figures, logger=False)
        if not self.trainer.sanity_checking:
            self.log_all({**figures, "tokens": float(self.tokens_seen)})
            self._warn_at_floor(losses[0])
            self.history.save()
        self.encoder.memory = self.set_aside

    def _warn_at_floor(self, loss: float) -> None:
        patience = max(2 * self.optimization.warmup_steps, self.trainer.max_steps // 5)
        floor = self.floors["floor/unigram"]
        if not self.warned and self.global_step >= patience and loss > floor - 0.1:
            self.warned = True
            self.print(
                f"Warning: at step {self.global_step:,} the loss ({loss:.2f}) still sits at the unigram floor "
                f"({floor:.2f}): the model guesses by frequency alone. Likely causes: a learning rate too high or "
                "too low, a warm-up too short, many repeated lines in the corpus (see `make data`), too few steps."
            )

    def trained_encoder(self) -> Encoder:
        """The encoder with all its weights; from the last checkpoint where no process holds them all."""
        if self._trainer is None or not is_sharded(self.trainer):
            return self.encoder
        whole = type(self.encoder).from_config(self.encoder.config, self.encoder.tokenizer)
        whole.config |= self.encoder.config
        state = checkpoints.read(self.checkpoint_file)["state_dict"]
        ours = {name.removeprefix("encoder."): value for name, value in state.items() if name.startswith("encoder.")}
        whole.load_state_dict(ours)
        return whole

    def configure_optimizers(self) -> Any:
        groups = self.encoder.layer_groups()
        inside = {id(parameter) for group in groups for parameter in group}
        heads = [parameter for parameter in self.encoder.parameters() if id(parameter) not in inside]
        return self.optimizers_of(self.optimization, groups, heads)
