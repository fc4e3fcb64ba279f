"""One training run in its folder: checks, start, fit, and the files written at the end."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger

from pipeline.cards.sections import TrainingRecord
from pipeline.console.messages import inform
from pipeline.console.rank import is_main
from pipeline.errors import Interrupted
from pipeline.presets.files import flat
from pipeline.storage.atomic import write_atomically
from pipeline.storage.folders import write_folder
from pipeline.tracking import lineage
from pipeline.tracking.history import LOCAL, History, write_metrics
from pipeline.tracking.public import public
from pipeline.tracking.wandb import ResumableWandb, WandbOptions, end_run
from pipeline.tracking.wandb_artifacts import log_artifact, use_artifact
from pipeline.tracking.wandb_environment import tolerated
from pipeline.training import checkpoints, loggers
from pipeline.training.blocks import CompiledBlocks, RecomputedBlocks, check_blocks
from pipeline.training.checkpoints import Latest
from pipeline.training.configuration import Configuration, Record
from pipeline.training.energy import Energy
from pipeline.training.hardware import device_name
from pipeline.training.header import header
from pipeline.training.nodes import announce_nodes
from pipeline.training.opening import SETTINGS, open_run
from pipeline.training.progress import Progress
from pipeline.training.resume import finished_product, is_finished, newest_checkpoint
from pipeline.training.run_folder import discard_old, set_aside
from pipeline.training.trainer import make_trainer, plain_error
from pipeline.training.weight_mean import final_weights
from pipeline.version import __version__


class Run:
    """One training run in its folder. The constructor checks that it is possible; `begin` clears the folder.

    Args:
        configuration: with a module that is built and data that are prepared.
        out: the run folder.
        resume: continue from the newest checkpoint, where there is one.

    Raises:
        UserError: the checkpoint is damaged or of another run; there is no such device.
    """

    def __init__(self, configuration: Configuration, out: Path, record: Record, *, resume: bool) -> None:
        self.resume = resume
        self.configuration, self.out, self.record = configuration, out, record
        self.module, self.data = configuration.module, configuration.data
        self.settings = configuration.settings
        self.last = out / "checkpoints" / checkpoints.LAST
        self.history = History(out)
        self.wandb: ResumableWandb | None = None
        self.named: list[Logger] = []  # beside these, by trainer.logger
        self.energy = Energy()
        self.stopping: checkpoints.EarlyStopping | None = None
        self.ended = False  # a run that had trained to its end when it was resumed
        self.before: dict[Path, str] = {}  # the settings of the run that is resumed

        stages = record.stages
        content = {f"content of the {stage['stage']}": stage["sha256"] for stage in stages if "sha256" in stage}
        identity = {"version": __version__, **flat(configuration.resolved), **content}
        self.module.identity = json.loads(json.dumps(identity))  # in the types that a checkpoint gives
        self.module.checkpoint_file = self.last
        self.log_text = self.data.is_public or self.settings.log_text  # may texts go to W&B?
        # Texts, and words of them in a vocabulary, go to W&B only if the texts of pretraining may.
        self.public = self.log_text and (lineage.is_public(stages) or self.settings.log_text)

        counts = self.module.is_counting
        newest = newest_checkpoint(out, self.module, self.module.identity) if resume and not counts else None
        self.finished = resume and counts and is_finished(out, self.module.identity)
        self.resume_from: Path | None
        self.state: dict[str, Any]  # of the checkpoint that is resumed
        self.resume_from, self.state = newest if newest is not None else (None, {})
        self.resume_step = int(self.state["global_step"]) if self.state else 0
        settings = self.settings
        check_blocks(self.module.trained, compiled=settings.compile, recomputed=settings.activation_checkpointing)
        self._make_trainer(callbacks=[Latest(self.last)], logger=False)  # refused before anything is cleared

    def _make_trainer(self, **options: Any) -> lightning.Trainer:
        return make_trainer(self.configuration.make_trainer, self.settings.trainer, self.out, **options)

    # ------------------------------------------------------------------ before training

    def begin(self) -> None:
        """Sets aside the files of an earlier run, unless it is resumed; writes config and lineage; opens W&B."""
        if not is_main() or self.finished:
            return
        if self.resume and self.resume_from is None:
            why = "Counting writes no checkpoints" if self.module.is_counting else f"Nothing to resume in {self.out}"
            inform(f"{why}: starting from the beginning.")
        if self.resume_from is None:
            set_aside(self.out)
        self.history.restore(self.resume_step)
        self.before = {file: file.read_text() for file in (self.out / name for name in SETTINGS) if file.is_file()}
        record, config = self.record, self.configuration.repeatable
        options = WandbOptions(**vars(self.settings.wandb))
        self.wandb, self.stages = open_run(self.out, record, config, public=self.public, options=options)
        self.named = loggers.make_loggers(config["trainer"]["logger"], self.out)
        loggers.log_configuration(self.named, flat(public(config)))
        if self.wandb is not None and self.resume_from is not None:
            self.wandb.send_missing(self.history)
        if self.wandb is not None:
            for folder in record.uses:
                use_artifact(self.wandb, folder)

    # ------------------------------------------------------------------ training

    def fit(
        self,
        *,
        best: tuple[str, str] | None = None,
        max_steps: int | None = None,
        validate_every: int | None = None,
        patience: int | None = None,
        watching: Sequence[lightning.Callback] = (),
    ) -> bool:
        """Trains to the last step, from the checkpoint when resumed; then `last.ckpt` is there.

        Args:
            best: a metric of validations, and whether its `min` or `max` is kept as `best.ckpt`; None: no such file.
            max_steps: instead of that of the configuration.
            validate_every: instead of that of the configuration, in steps.
            patience: stop after this many validations without improvement; None: train to the end.
            watching: further callbacks, which change nothing.

        Returns:
            Whether anything was to do: not where a finished run is resumed.
        """
        if self.finished:
            print(f"The run in {self.out} is finished: nothing left to do.")
            return False
        trainer = self.settings.trainer
        if self.wandb is not None and best is not None:
            self.wandb.best = dict([best])
        steps = max_steps or trainer.max_steps
        every = min(validate_every or self.settings.validate_every, steps)
        self.trainer = self._make_trainer(
            callbacks=[*watching, *self._callbacks(best, patience), Latest(self.last)],
            logger=[logger for logger in (self.history, self.wandb, *self.named) if logger is not None],
            max_steps=steps,
            val_check_interval=every * trainer.accumulate_grad_batches,
        )
        waited = 0
        if self.stopping is not None:
            waited = checkpoints.callback_value(self.state, self.stopping, "wait_count") or 0
        self.ended = self.resume_step >= steps or waited >= (patience or math.inf)
        if self.ended:
            return self._take_up_the_end()
        self.state = {}  # its tensors would keep a file that is removed on the disk
        self._train(steps)
        self.seconds = self.module.seconds
        return True

    def _take_up_the_end(self) -> bool:
        """Takes the final weights of a run that had trained to its end; returns whether anything was left to write."""
        if (made := finished_product(self.out)) is not None:
            print(f"The run in {self.out} is finished: nothing left to do.")
            if is_main():
                lineage.write(self.out, lineage.read(made))
                for file, text in self.before.items():  # other settings have made nothing
                    write_atomically(file, text)
            return False
        print(f"The run in {self.out} has nothing left to train.")
        self.energy.load_state_dict(self.state["callbacks"].get(self.energy.state_key, {}))
        self.trainer.strategy.connect(self.module)
        self.module.load_state_dict(final_weights(self.state))
        self.module.on_load_checkpoint(self.state)
        self.seconds = self.module.seconds_before
        return True

    def _callbacks(self, best: tuple[str, str] | None, patience: int | None) -> list[lightning.Callback]:
        """The callbacks: those of the configuration, the progress bar, early stopping, the best checkpoint."""
        trainer = self.settings.trainer
        callbacks: list[lightning.Callback] = [*(trainer.callbacks or []), self.energy]
        if trainer.enable_progress_bar is not False:
            callbacks.append(Progress())
        if self.settings.compile:
            callbacks.append(CompiledBlocks())
        if self.settings.activation_checkpointing:
            callbacks.append(RecomputedBlocks())
        if best is not None:
            monitor, mode = best
            if patience is not None:
                self.stopping = checkpoints.EarlyStopping(monitor, mode=mode, patience=patience)
                callbacks.append(self.stopping)
            place = self.last.parent
            self.best = ModelCheckpoint(place, "best", monitor=monitor, mode=mode, enable_version_counter=False)
            self.module.best_key = self.best.state_key
            callbacks.append(self.best)
        return callbacks

    def _train(self, steps: int) -> None:
        announce_nodes(self.trainer)
        inform(header(self.trainer, self.module, self.data.batch_size, self.out, self.wandb))
        if self.resume_step:
            inform(f"Resuming {self.out} at step {self.resume_step:,} of {steps:,}.")
            if is_main():  # a run that is resumed is not finished
                (self.out / "metrics.json").unlink(missing_ok=True)
        try:
            self.module.learn(self.trainer, self.data, self.resume_from)
        except BaseException as error:
            interrupted = isinstance(error, Interrupted)  # for which all processes stop
            if not interrupted:
                self._stop_the_others()
            if self.wandb is not None:
                with tolerated():
                    self.wandb.close(whole=interrupted)
            plain = plain_error(error, self.trainer, batch_size=self.data.batch_size)
            if plain is None:
                raise
            print(file=sys.stderr)  # a process that dies can stop the bar in the middle of its line
            raise plain from None

    def _stop_the_others(self) -> None:
        """Kills the processes that this one has started: they would wait for it forever.

        Lightning looks every few seconds for one that has failed, and then kills this one too. So it is to find none:
        this one has still to say why.
        """
        running = getattr(self.trainer.strategy.launcher, "procs", [])
        started = list(running)
        running.clear()
        for process in started:
            process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows has no SIGKILL

    # ------------------------------------------------------------------ after training

    @property
    def steps(self) -> int:
        return self.resume_step if self.ended else self.trainer.global_step

    @property
    def best_score(self) -> float | None:
        """The best metric of a validation."""
        score = self.best.best_model_score
        if self.ended:
            score = checkpoints.callback_value(self.state, self.best, "best_model_score")
        return None if score is None else float(score)

    def metrics(self) -> dict[str, Any]:
        """Final metrics, as they stand in `metrics.json`, and what they depend on."""
        if self.ended:
            metrics = self.metrics_of(self.state)
        else:
            metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        tokens = int(self.module.tokens_seen)
        return {
            **metrics,
            "seconds": round(self.seconds, 2),
            "tokens": tokens,
            "tokens_per_second": round(tokens / self.seconds, 1) if self.seconds else 0.0,
            "parameters": self.module.parameter_count,
            "steps": self.steps,
            "precision": str(self.trainer.precision),
            "device": device_name(self.trainer.strategy.root_device),
            "seed": self.record.seed,
            "version": __version__,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **self.energy.metrics(),
        }

    def metrics_of(self, state: dict[str, Any]) -> dict[str, float]:
        """Metrics of the validation at which a checkpoint was written; as logged, where it does not have them."""
        if "figures" in state:
            return dict(state["figures"])
        rows = [row for step, row in sorted(self.history.rows.items()) if step <= state["global_step"]]
        return {name: float(value) for row in rows for name, value in row.items() if name.startswith("val/")}

    def keep(
        self,
        kind: str,
        save: Callable[..., None],
        card: Callable[[TrainingRecord], str],
        metrics: dict[str, Any],
        *,
        name: str | None = None,
        pictures: Sequence[str] = (),
        about: Mapping[str, Any] | None = None,
    ) -> Path:
        """Writes what the run has made, an `encoder` or a `model`, with its lineage and card; returns its folder.

        Args:
            save: writes a folder with a card.
            card: makes the card.
            name: of the folder, of something made on the way; None: its kind, and the lineage of the run ends with it.
            pictures: files of the run folder that the card shows, the curves first.
            about: further facts for its stage in the lineage.
        """

        def write(folder: Path) -> None:
            save(folder, card="")
            stages = [*self.stages, {**lineage.made(kind, folder), **(about or {})}]
            lineage.write(folder, stages)
            for picture in pictures:
                shutil.copyfile(self.out / picture, folder / picture)
            config = self.configuration.repeatable
            record = TrainingRecord(card_name(stages, self.record.tags), metrics, config, stages, pictures)
            (folder / "README.md").write_text(card(record), encoding="utf-8")

        made = self.out / (name or kind)
        made.parent.mkdir(exist_ok=True)
        write_folder(made, write)
        if name is None:
            lineage.write(self.out, lineage.read(made))
        return made

    def finish(
        self,
        metrics: dict[str, Any],
        *,
        artifact: tuple[str, Path],
        tables: dict[str, tuple[list[str], list[list[Any]]]] | None = None,
        charts: dict[str, Any] | None = None,
        texts: Collection[str] = (),
    ) -> None:
        """Writes the rest; `metrics.json` last: a run folder with it is finished.

        Args:
            artifact: kind and folder of what the run made.
            tables: name -> columns and rows of texts, logged where texts may be.
            charts: name -> a chart of W&B, without texts.
            texts: files of plots that show texts, logged where texts may be.
        """
        self.history.save()
        self.last.with_name(checkpoints.PREVIOUS).unlink(missing_ok=True)
        if self.wandb is not None:
            self._send(self.wandb, metrics, artifact=artifact, tables=tables or {}, charts=charts or {}, texts=texts)
        loggers.log_final(self.named, metrics, self.steps)
        write_metrics(self.out, metrics)
        discard_old(self.out)

    def _send(
        self,
        logger: ResumableWandb,
        metrics: dict[str, Any],
        *,
        artifact: tuple[str, Path],
        tables: dict[str, tuple[list[str], list[list[Any]]]],
        charts: dict[str, Any],
        texts: Collection[str],
    ) -> None:
        """Gives W&B what `finish` takes, and ends the run there."""

        def send(run: Any) -> None:
            import wandb

            plain = {name: v for name, v in metrics.items() if v == v and name not in LOCAL}  # no NaN
            run.summary.update({**plain, **logger.summary_of(self.history)})
            own = {name: value for name, value in metrics.items() if name.startswith("baseline/")}
            for step in (0, self.steps) if artifact[0] == "model" else ():  # two points make a line
                run.log({**own, "trainer/global_step": step})
            run.log(charts)
            for picture in self.out.glob("*.png"):
                if self.log_text or picture.name not in texts:
                    run.log({picture.stem: wandb.Image(str(picture))})
            for name, (columns, rows) in tables.items() if self.log_text else ():
                run.log({name: wandb.Table(columns=list(columns), data=rows)})
            if self.public:
                log_artifact(run, *artifact, plain, self.record.tags[2:])

        end_run(logger, send)


def card_name(stages: Sequence[lineage.Stage], tags: Sequence[str]) -> str:
    """The name of what a run makes: model, corpus, task and another arm than full, as bert-sample-sentiment-scratch.

    Args:
        tags: of the run; the third is the arm.
    """
    names = lineage.names_of(stages, "corpus", "task")
    arms = [arm for arm in tags[2:3] if arm != "full"]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([*tags[:1], *names, *arms]))[:96]
