"""Callbacks at two moments of an optimizer step for which Lightning has no hook, and the guard that uses the first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import lightning
from torch import Tensor

from pipeline.console import typed
from pipeline.errors import Diverged
from pipeline.storage.atomic import write_json

if TYPE_CHECKING:
    from pipeline.training.base_module import Training


class StepCallback(lightning.Callback):
    """A callback that `Training` calls once for each optimizer step, whatever its number of micro-batches."""

    def on_gradient_norm(self, trainer: lightning.Trainer, module: Training, norm: Tensor) -> None:
        """The gradient is complete and clipped, and no weight has changed; `norm` is from before clipping."""

    def on_step_end(self, trainer: lightning.Trainer, module: Training) -> None:
        """The step is complete and logged: a checkpoint of this moment resumes exactly."""


class NonFiniteGuard(StepCallback):
    """Stops a run whose loss or gradient is not finite, with a checkpoint from before the step and its rows."""

    def on_train_batch_start(self, trainer: lightning.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self.batches: list[Any] = []
            self.num_losses = len(module.sums.pending)
        self.batches.append(batch)

    def on_gradient_norm(self, trainer: lightning.Trainer, module: Training, norm: Tensor) -> None:
        # One of several processes may not stop alone: the gradient is the same on all of them, the loss is not.
        if math.isfinite(norm + module.last_loss if trainer.world_size == 1 else norm):
            return
        losses = [statistics[0] for _, statistics in module.sums.pending[self.num_losses :]]  # of all micro-batches
        finite = trainer.strategy.reduce_boolean_decision(all(map(math.isfinite, losses)), all=True)
        if finite and trainer.precision == "16-mixed":
            return  # the scale of the loss was too large: the scaler skips this step and lowers it
        self._stop(trainer, module, "gradient" if finite else "loss")

    def _stop(self, trainer: lightning.Trainer, module: Training, what: str) -> None:
        """Raises: Diverged, always."""
        remedy = "Lower model.optimization.learning_rate or lengthen the warm-up"
        where = f"The {what} is not finite at step {module.global_step}"
        if module.checkpoint_file is None:
            raise Diverged(f"{where}. {remedy}.")
        self._rewind(trainer, module)
        trainer.save_checkpoint(module.checkpoint_file)
        file = module.checkpoint_file.parent.parent / "not_finite.json"
        rows = [row for batch in self.batches for row in batch.rows.tolist()]
        if trainer.is_global_zero:
            texts = [text for batch in self.batches for text in module.texts_of(batch)]
            content = {"step": module.global_step, "what": what, "rows": rows, "texts": texts}
            write_json(file, content)
        raise Diverged(
            f"{where}; the state before this step is in {module.checkpoint_file}, the rows of its batch in {file}. "
            f"{remedy}, and continue with {typed.flag('resume')}."
        )

    def _rewind(self, trainer: lightning.Trainer, module: Training) -> None:
        """Counters and sums as they were before the micro-batches of this step; no weight has changed since."""
        parts, progress = trainer.accumulate_grad_batches, trainer.fit_loop.epoch_loop.batch_progress
        for counts in (progress.total, progress.current):
            begin = counts.completed - counts.completed % parts
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, begin)
        module.sums.discard_after(self.num_losses)
        module.restore_before_step()
