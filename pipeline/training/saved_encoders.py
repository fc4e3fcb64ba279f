"""Encoder folders on the way through a pretraining, at numbers of words seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import lightning

from pipeline.console.messages import inform
from pipeline.models.base import Encoder
from pipeline.storage.folders import remove
from pipeline.tracking.words_seen import FOLDER, Points, name_of, points_between, saved_in
from pipeline.training.hardware import device_name
from pipeline.training.run import Run
from pipeline.training.step_callbacks import StepCallback

Card = Callable[..., str]  # of an encoder and a TrainingRecord


class SavedEncoders(StepCallback):
    """Writes `OUT/encoders/1M-words` and so on, each at the first step by which so many words have been seen.

    A word counts each time that it is read, as the BabyLM Challenge counts; see `Objective.words_per_token`. Which step
    that is depends on the tokens seen alone, which a checkpoint has. A resumed run repeats the steps since its
    checkpoint; folders of these are removed, and written again. Those of steps before are whole, since each is written
    before the checkpoint of its step. It changes no weight, so a run with folders ends as one without. A folder holds
    the mean of the weights, where the run has one by then.

    Args:
        points: numbers of words.
        card: makes the card of a folder.
    """

    def __init__(self, run: Run, points: Points, card: Card) -> None:
        self.run, self.points, self.card = run, points, card

    def on_train_start(self, trainer: lightning.Trainer, module: Any) -> None:
        self.seen: float = module.words_seen
        if trainer.is_global_zero:
            for saved in saved_in(self.run.out / FOLDER):
                if saved.words > self.seen:
                    remove(saved.folder)

    def on_step_end(self, trainer: lightning.Trainer, module: Any) -> None:
        before, self.seen = self.seen, module.words_seen
        for words in points_between(self.points, before, self.seen) if trainer.is_global_zero else ():
            self._save(trainer, module, words)

    def on_train_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.is_global_zero and not saved_in(self.run.out / FOLDER):
            inform(
                f"Warning: the run saw {round(self.seen):,} words, fewer than the first number of save_at_words: no "
                "encoder was saved on its way."
            )

    def _save(self, trainer: lightning.Trainer, module: Any, words: int) -> None:
        module.note_untrained()
        encoder: Encoder = module.encoder
        metrics = {
            "parameters": module.parameter_count,
            "steps": module.global_step,
            "tokens": int(module.tokens_seen),
            "words": round(self.seen),
            "seconds": module.seconds,
            "precision": str(trainer.precision),
            "device": device_name(trainer.strategy.root_device),
            "seed": self.run.record.seed,
        }

        name, about = name_of(words), {"words": words, "step": module.global_step}
        card = partial(self.card, encoder, place=name)
        with module.mean.put_into(module):
            self.run.keep("encoder", encoder.save, card, metrics, name=f"{FOLDER}/{name}", about=about)
