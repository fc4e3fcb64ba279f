"""Pretraining as a LightningModule: an encoder, an objective, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline import encoders
from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss
from pipeline.models.outputs import LoadReport
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch
from pipeline.objectives.distillation import Distillation, Teacher, copy_layers
from pipeline.objectives.initialization import INITIALIZERS, EmbeddingStart
from pipeline.tokenization.base import Tokenizer
from pipeline.training import advice, checkpoints
from pipeline.training.base_module import Training, is_sharded
from pipeline.training.corpus_data import CorpusData
from pipeline.training.hardware import check_size
from pipeline.training.optimizers import Optimization


class Pretraining(Training):
    """Pretrains an encoder.

    Args:
        encoder: class and sizes; it is built when the tokenizer is known.
        objective: what it learns; its data module has the same one.
        embeddings: the vectors of tokens at the start: `random` as the rest, `cooccurrence` or, with texts and their
            translations, `translations` (see ppmi_init.py), or `one-vector` (the same for all: Le et al. 2010).
        optimization: rate, schedule and the rest.
        start: folder of an encoder with the same tokenizer and sizes, whose weights are the first ones; of one with
            more layers, some of them. null: random ones.
        distillation: a teacher, as TEACHER= sets it, with `temperature`, `teacher_weight` and `hidden_weight`; null:
            none.
        seed: of the initial weights and dropout.
    """

    stage = "pretrain"
    kept = ("memory",)

    def __init__(
        self,
        *,
        encoder: Callable[[Tokenizer], Encoder],
        objective: Objective,
        embeddings: EmbeddingStart,
        optimization: Optimization,
        start: str | None = None,
        distillation: Distillation | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self.make_encoder, self.objective, self.optimization = encoder, objective, optimization
        self.embeddings, self.start, self.distillation = embeddings, start, distillation
        self.teacher: Teacher | None = None
        self.loaded: LoadReport | None = None  # of the folder `start`
        self.encoder: Encoder
        self.baselines: dict[str, float] = {}
        self.warned = False
        self.state: Any = None  # recurrent state after the last batch, of objectives that continue it
        self.idle_before: list[str] | None = None  # of the checkpoint that is resumed, see `idle`

    @property
    def trained(self) -> Encoder:
        return self.encoder

    @property
    def shown(self) -> tuple[str, ...]:  # type: ignore[override]
        shown = self.objective.shown
        return (*shown, "teacher_loss", "teacher_accuracy") if shown and self.teacher is not None else shown

    @property
    def loss_baseline(self) -> dict[str, float]:
        unigram = self.baselines.get("baseline/unigram")
        return {} if unigram is None else dict.fromkeys(self.objective.compared_losses(), unigram)

    @property
    def words_seen(self) -> float:
        """Words of the text that the run has read, over all processes; each counts as often as it is read."""
        return int(self.tokens_seen) * self.words_per_token

    # ------------------------------------------------------------------ before the first step

    def configure_model(self) -> None:
        """Builds the network when Lightning asks for it, unless `build` has been called."""
        if hasattr(self, "encoder"):
            return
        data: CorpusData = self.trainer.datamodule  # type: ignore[attr-defined]
        self.build(data)
        if not self.trainer.ckpt_path and (self.trainer.is_global_zero or is_sharded(self.trainer)):
            self.begin(data)

    def build(self, data: CorpusData) -> None:
        """Makes the encoder, unless `make_network` has, and the baselines that the loss must fall below.

        Raises:
            UserError: settings of encoder, objective and corpus do not go together.
        """
        if not hasattr(self, "encoder"):
            self.make_network(data)
        self.weights = self.objective.weights
        if self.distillation is not None:
            self.teacher = Teacher(self.distillation, self.encoder, self.objective, length=data.length)
            self.weights = {**self.weights, **self.teacher.weights}
        if self.start is not None:
            self.loaded = take_over(self.encoder, Path(self.start))
        self.encoder.config["training_length"] = data.length
        self.objective.setup(self.encoder, data.train)
        uniform, unigram = self.objective.baselines(data.train, data.tokenizer)
        self.baselines = {"baseline/uniform": uniform, "baseline/unigram": unigram}
        self.record_decay_names()
        self.parameter_count = sum(p.numel() for p in self.encoder.parameters())  # an objective's own are in no folder
        rows = self.objective.rows(data.valid, data.tokenizer, length=data.length, phase=0, seed=0)
        self.per_byte = rows.predictions_per_byte
        rows = self.objective.rows(data.train, data.tokenizer, length=data.length, phase=0, seed=0)
        self.words_per_token = self.objective.words_per_token(rows, data.train)
        self.rows_there = len(rows)

    def make_network(self, data: CorpusData) -> None:
        """Makes the encoder for the tokenizer. Needs no text: what does not go together is refused before that is read.

        Raises:
            UserError: settings of encoder, objective and corpus do not go together, or the network is too large.
        """
        if data.objective is not self.objective:
            raise UserError("Pretraining and CorpusData must have the same objective.")
        make = partial(self.make_encoder, data.tokenizer, **self.objective.model_options)
        check_size(make, "model.encoder.init_args")
        torch.manual_seed(self.seed)
        self.encoder = make()
        self._check(data)

    def _check(self, data: CorpusData) -> None:
        """Raises: UserError, settings of encoder, objective and corpus do not go together."""
        encoder = self.encoder
        self.objective.check_model(encoder)
        in_layers = [id(parameter) for group in encoder.layer_groups() for parameter in group]
        if len(set(in_layers)) < len(in_layers):
            raise UserError(
                f"A parameter stands in two layers of {type(encoder).__name__}.layer_groups: name weights that layers "
                "share once, with the lowest of these layers, and leave the groups of the others empty."
            )
        if (rows := encoder.config["vocab_size"]) < len(data.tokenizer):
            raise UserError(
                f"model.encoder.init_args.vocab_size is {rows:,}, but the tokenizer has {len(data.tokenizer):,} tokens."
            )
        if encoder.carries:
            raise UserError(
                "state: carry is for imported weights; to carry in pretraining set model.objective.init_args.stateful."
            )
        if data.length > encoder.max_length:
            raise UserError(
                f"data.length is {data.length}, but the encoder has only {encoder.max_length} positions; "
                "lower data.length or raise model.encoder.init_args.max_length."
            )
        if self.embeddings != "random" and self.start is not None:
            raise UserError(f"model.embeddings is {self.embeddings}, but {self.start} has embeddings: set random.")
        if self.embeddings != "random" and encoder.token_embedding is None:
            raise UserError(
                f"model.embeddings: {self.embeddings} needs an encoder with a vector for each token; set random."
            )
        if self.embeddings == "translations" and not self.objective.parallel:
            raise UserError(
                "model.embeddings: translations needs an objective that reads them, as TranslationLM of MODEL=xlm; set "
                "cooccurrence."
            )

    def begin(self, data: CorpusData) -> None:
        """Initializes what does not start at random, in a run that is not resumed."""
        INITIALIZERS[self.embeddings](self.encoder, data.train, self.seed)

    # ------------------------------------------------------------------ steps

    def on_train_start(self) -> None:
        super().on_train_start()
        if self.optimization.warmup_steps >= self.trainer.max_steps:
            self.print(
                f"Warning: the warm-up of {self.optimization.warmup_steps:,} steps does not end before the run "
                f"({self.trainer.max_steps:,}); lower it with --warmup-steps."
            )
        if self.global_step == 0:
            self.log_all(self.baselines)

    def losses_of(self, batch: Batch) -> dict[str, Loss]:
        """The losses of a batch that continues the one before, where the objective does that."""
        batch.state = None if batch.begins else self.state
        if self.teacher is None:
            losses = self.objective(self.encoder, batch)
        else:
            losses = self.teacher.losses(self.objective, self.encoder, batch)
        self.state = batch.state
        return losses

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.state_before = self.state
        return self.weighted(self.losses_of(batch), batch)

    def restore_before_step(self) -> None:
        self.state = self.state_before

    def on_validation_epoch_start(self) -> None:  # validation has its own state
        self.state_in_training, self.state = self.state, None

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.sums.add("val", self.losses_of(batch), empty=batch.empty)

    def on_validation_epoch_end(self) -> None:
        self.state = self.state_in_training
        metrics = self.mean_losses("val")
        named = {name.removeprefix("val/"): value for name, value in metrics.items()}
        if f"{self.objective.main}_loss" not in named:
            raise UserError(
                f"No row of the validation part has a prediction for {self.objective.main}: set data.validation_rows "
                "higher, or give more text for validation."
            )
        extra = self.objective.report(named, per_byte=self.per_byte)
        metrics |= {"val/loss": self.weighted_sum(metrics), **{f"val/{name}": value for name, value in extra.items()}}
        self.log_dict(metrics, logger=False)
        if not self.trainer.sanity_checking:
            self.log_all({**metrics, **self.baselines, "tokens": float(self.tokens_seen)})  # baselines: lines in charts
            if not self.is_counting:  # counts are what they are
                self._warn_at_baseline(metrics[f"val/{self.objective.main}_loss"])
            self.save_history()

    def not_below_baseline(self, metrics: Mapping[str, float]) -> str | None:
        """A warning after a run whose losses are not below their baseline."""
        return advice.losses_above(
            {f"{name}_loss": (metrics.get(f"val/{name}_loss"), best) for name, best in self.loss_baseline.items()}
        )

    def _warn_at_baseline(self, loss: float) -> None:
        patience = max(2 * self.optimization.warmup_steps, self.trainer.max_steps // 5)
        unigram = self.baselines["baseline/unigram"]
        if not self.warned and self.global_step >= patience and loss > unigram - min(0.1, 0.05 * unigram):
            self.warned = True
            self.print(
                f"Warning: at step {self.global_step:,} the loss ({loss:.2f}) still sits at the unigram baseline "
                f"({unigram:.2f}): the model guesses by frequency alone. Likely causes: a learning rate too high or "
                f"too low, a warm-up too short, many repeated lines in the corpus (see `{typed.command('data')}`), "
                "too few steps."
            )

    # ------------------------------------------------------------------ checkpoints and the result

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["memory"] = self.state
        checkpoint["idle"] = self.idle()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.state = checkpoint["memory"]
        self.idle_before = checkpoint.get("idle")

    def idle(self) -> list[str] | None:
        """The parameters of the encoder that no step has changed: no optimizer has a state of them.

        None: it cannot be told, as each process has a part of them.
        """
        if self._trainer is None:  # a run that had trained to its end
            return self.idle_before
        if is_sharded(self.trainer):
            return None
        learned = {id(p) for optimizer in self.trainer.optimizers for p, state in optimizer.state.items() if state}
        return [name for name, parameter in self.encoder.named_parameters() if id(parameter) not in learned]

    def note_untrained(self) -> None:
        """Tells the encoder which tensors of its heads no step has changed: the objective does not use them.

        They are not saved, so that nobody takes them for trained.
        """
        if self.is_counting or (found := self.idle()) is None:
            return
        idle = {self.encoder.get_parameter(name).untyped_storage().data_ptr() for name in found}
        tensors = self.encoder.export_state().items()
        names = {name for name, tensor in tensors if tensor.untyped_storage().data_ptr() in idle}
        if self.loaded is not None:  # what the folder had, was trained before
            names.intersection_update(self.loaded.new)
        self.encoder.untrained = frozenset(name for name in names if name.startswith(self.encoder.pretraining_tensors))

    def trained_encoder(self) -> Encoder:
        """The encoder with all its weights; from the last checkpoint where no process holds them all."""
        if self._trainer is None or not is_sharded(self.trainer):
            self.note_untrained()
            return self.encoder
        assert self.checkpoint_file is not None
        whole = type(self.encoder).from_config(self.encoder.config, self.encoder.tokenizer)
        whole.config |= self.encoder.config
        state = checkpoints.read(self.checkpoint_file)["state_dict"]
        ours = {name.removeprefix("encoder."): value for name, value in state.items() if name.startswith("encoder.")}
        whole.load_state_dict(ours)
        return whole

    def configure_optimizers(self) -> Any:
        inside = {id(parameter) for parameter in self.encoder.parameters()}  # an objective may share some of them
        own = [parameter for parameter in self.objective.parameters() if id(parameter) not in inside]
        above = [*self.encoder.above_layers(), *own]
        return self.optimizers_of(self.optimization, self.encoder.layer_groups(), above)


def take_over(encoder: Encoder, folder: Path) -> LoadReport:
    """Gives an encoder the weights of a folder; what is not there stays new, as the output layer after fine-tuning.

    Raises:
        UserError: no encoder folder, or one with another tokenizer or other sizes.
    """
    other, state = encoders.fresh(folder)
    if not encoder.tokenizer.reads_as(other.tokenizer):
        raise UserError(f"The encoder in {folder} has another tokenizer; set data.tokenizer.file to {folder}.")
    if other.num_layers < encoder.num_layers:
        raise UserError(
            f"The encoder in {folder} has fewer layers ({other.num_layers - 1} below {encoder.num_layers - 1}): set "
            "model.start to null to begin with fresh weights."
        )
    if other.num_layers > encoder.num_layers:
        encoders.copy_tensors(other, state, folder)
        report = copy_layers(encoder, other)
    else:
        report = encoders.copy_tensors(encoder, state, folder)
    encoder.untrained = frozenset()  # they are trained now
    return report
