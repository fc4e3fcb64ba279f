"""One training run in its folder: trainer, loggers, checkpoints, final figures."""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from pipeline import former_names
from pipeline.errors import Interrupted, UserError
from pipeline.storage.atomic import write_atomically
from pipeline.storage.checksums import damage, sha256
from pipeline.storage.folders import write_folder
from pipeline.storage.validation import read_json
from pipeline.tracking import lineage
from pipeline.tracking import loggers as tracking
from pipeline.tracking.loggers import History, Progress, is_main
from pipeline.training import checkpoints
from pipeline.training.base_module import Training
from pipeline.training.checkpoints import Latest, WholeCheckpoints
from pipeline.training.hardware import announce_nodes, keep_memory
from pipeline.training.run_folder import begun, clear
from pipeline.version import __version__

# What may differ when a run goes on; anything else makes another run. Of files the content is compared, not the name.
FREE = (
    *("version", "model.optimization.", "model.warmup_share", "model.frozen_learning_rate"),
    *("trainer.", "precision", "valid", "patience", "log_text"),
    *("data.workers", "data.verify", "data.epochs", "data.files", "data.hub.", "data.tokenizer."),
)
FIXED = ("trainer.accumulate_grad_batches", "model.optimization.optimizer")
BEFORE = {  # of checkpoints that do not say it
    "model.embeddings": "random",
    "model.optimization.optimizer": "adamw",
    "version": "0.7.0 or before",
}


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Nested configuration -> dotted names."""
    if not isinstance(config, dict) or not config:
        return {prefix[:-1]: config}
    return {name: value for key, part in config.items() for name, value in flat(part, f"{prefix}{key}.").items()}


def check_same_run(file: Path, now: dict[str, Any], before: dict[str, Any]) -> None:
    """Compares the configuration and data of a checkpoint with those of the run that would go on from it.

    Raises:
        UserError: it is of another run: what differs is named.
    """
    before = former_names.current(before)
    for name in sorted({*now, *before}, key=lambda name: (name.startswith("content of"), name)):
        old, new = (found.get(name, BEFORE.get(name, now.get(name))) for found in (before, now))
        if old == new:
            continue
        if name.startswith(FREE) and name not in FIXED:
            print(f"Note: {name} is {new} now, and was {old}.")
            continue
        if name.startswith("content of"):
            old, new = str(old)[:12], str(new)[:12]  # hashes
        back = "Leave the change out" if name in before else f"Set ARGS=--{name}={old}"  # the default has changed
        raise UserError(
            f"{file} is of a run with {name} {old}, not {new}: a resumed run keeps its configuration and data. {back}, "
            "or set OVERWRITE=1 to start anew."
        )


# What a RuntimeError says of memory: the processor's, CUDA's outside of torch's allocator, that of its products.
NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "STATUS_ALLOC_FAILED")
UNKNOWN_FIGURE = ("Early stopping conditioned on metric", "`ModelCheckpoint(monitor=")  # as Lightning says it


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Says in plain words when the machine has not the memory for a network.

    Raises:
        UserError: it is so.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not any(s in str(error) for s in NO_MEMORY):
            raise
        found = re.search(r"tried to allocate ([\d.]+ ?\w+)", str(error))
        asked = f" (at once {found[1]})" if found else ""
        raise UserError(f"There is not enough memory for {what}{asked}; make it smaller.") from None


class Run:
    """One training run in its folder: trainer, loggers, checkpoints, final figures.

    Args:
        cli: the parsed configuration.
        out: the run folder.
        stages: where its input comes from (see lineage).
        uses: the encoder folder that it begins with.
    """

    def __init__(
        self,
        cli: Any,
        out: Path,
        options: argparse.Namespace,
        *,
        job_type: str,
        group: str,
        tags: list[str],
        stages: list[lineage.Stage],
        uses: Path | None = None,
    ) -> None:
        self.cli, self.out = cli, out
        self.log_text = cli.datamodule.files is None or cli.config_init.log_text  # may texts go to W&B?
        self.module: Training = cli.model
        self.last = out / "checkpoints" / checkpoints.LAST
        self.module.checkpoint_file = self.last
        config = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
        content = {f"content of the {stage['stage']}": stage["sha256"] for stage in stages if "sha256" in stage}
        # As a checkpoint holds it, and as it is read from one.
        self.module.identity = json.loads(json.dumps({"version": __version__, **flat(config), **content}))
        self.resume_step = 0
        self.ended = False  # a run that had trained to its end when it was resumed
        self.resume_from: Path | None = None
        self.state: dict[str, Any] = {}  # of the checkpoint that is resumed
        resume = options.resume and not options.overwrite
        if resume and (found := checkpoints.newest(self.last.parent, self._check)):
            self.resume_from, self.state = found
            self.resume_step = int(self.state["global_step"])
        elif resume:
            if made := [name for name in ("metrics.json", "encoder", "model") if (out / name).exists()]:
                raise UserError(f"{out} has {made[0]} and no checkpoint to resume; set OVERWRITE=1 to start anew.")
            print(f"Nothing to resume in {out}: starting from the beginning.")
        # Texts, and what a vocabulary tells of them, go to W&B only if those of the encoder's pretraining may.
        self.public = self.log_text and (lineage.is_public(stages) or cli.config_init.log_text)
        # What cannot be made is refused before anything is cleared.
        self._make_trainer(callbacks=[Latest(self.last)], logger=False)
        self.history = History(out)
        self.wandb: tracking.ContinuedWandb | None = None
        if not is_main():
            return
        if self.resume_from is None:
            clear(out)
        self.history.restore(self.resume_step)
        about = {"seed": options.seed, "config": flat(config), "public": self.public}
        run_stage = partial(lineage.run_stage, job_type, out, **about)
        plain, config["lineage"] = yaml.safe_dump(config, sort_keys=False), stages
        lineage.write(out, [*stages, run_stage()])  # now the folder is known for a run's
        write_atomically(out / "config.yaml", plain)
        self.wandb = tracking.wandb_logger(out, job_type=job_type, group=group, tags=tags, config=config)
        self.stages = [*stages, run_stage()]  # with its id in W&B
        lineage.write(out, self.stages)
        if self.wandb is not None and self.resume_from is not None:
            self.wandb.go_on(self.history)
        if uses is not None and self.wandb is not None:
            tracking.use_artifact(self.wandb, uses)

    def _check(self, file: Path, state: dict[str, Any]) -> None:
        """Raises: UserError, a checkpoint is of another run, or damaged."""
        check_same_run(file, self.module.identity, state.get("identity", self.module.identity))
        checkpoints.check_fits(file, state, self.module)

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

        Returns:
            Whether there is anything to do: not where a finished run is resumed.

        Args:
            best: a figure of validations, and whether its `min` or `max` is kept as `best.ckpt`; None: no such file.
            patience: stop after so many validations without a better one; None: go on to the end.
            watching: further callbacks, which change nothing.
        """
        settings = self.cli.config_init.trainer
        steps = max_steps or settings.max_steps
        every = min(validate_every or self.cli.config_init.validate_every, steps)
        callbacks: list[lightning.Callback] = [*watching, *(settings.callbacks or [])]
        if settings.enable_progress_bar is not False:
            callbacks.append(Progress())
        if best is not None:
            monitor, mode = best
            if patience is not None:
                callbacks.append(EarlyStopping(monitor, mode=mode, patience=patience))
            place = self.last.parent
            self.best = ModelCheckpoint(place, "best", monitor=monitor, mode=mode, enable_version_counter=False)
            callbacks.append(self.best)
        self.trainer = self._make_trainer(
            callbacks=[*callbacks, Latest(self.last)],
            logger=[logger for logger in (self.history, self.wandb) if logger is not None],
            max_steps=steps,
            val_check_interval=every * settings.accumulate_grad_batches,
        )
        waited = checkpoints.callback_value(self.state, "wait_count") if self.state and patience is not None else None
        self.ended = self.resume_step >= steps or (waited or 0) >= (patience or math.inf)
        if not self.ended:
            self.state = {}  # its tensors would keep a file that is removed on the disk
            self._train(steps)
            self.seconds = self.module.seconds
        elif (made := self._finished()) is not None:
            print(f"The run in {self.out} is finished: nothing left to do.")
            if is_main():
                lineage.write(self.out, lineage.read(made))
            return False
        else:
            print(f"The run in {self.out} has nothing left to train.")
            self.trainer.strategy.connect(self.module)
            self.module.load_state_dict(self.state["state_dict"])
            self.module.on_load_checkpoint(self.state)
            self.seconds = self.module.seconds_before
        return True

    def _finished(self) -> Path | None:
        """What the run has made, if all is there; says what is damaged, and written again from the checkpoint."""
        made = next((self.out / name for name in ("encoder", "model") if (self.out / name).exists()), None)
        if made is None or not (self.out / "metrics.json").exists():
            return None
        try:
            read_json(self.out / "metrics.json", dict[str, Any])
            lineage.read(made)
            why = damage(made, sha256)
        except UserError as error:
            why = str(error)
        if why is not None:
            print(f"Warning: {why} It is written again from the checkpoint.")
            return None
        return made

    def _make_trainer(self, **options: Any) -> lightning.Trainer:
        """The trainer of the configuration.

        Raises:
            UserError: there is no such device, or the like.
        """
        settings = self.cli.config_init.trainer
        strategy = copy.deepcopy(settings.strategy)  # an object belongs to one trainer
        if (str(settings.devices) != "1" or settings.num_nodes > 1) and strategy in ("auto", "ddp"):
            # Heads of pretraining are not used in fine-tuning, rare words not by every process. Buffers are the same
            # everywhere; to send them at each step would hang where one process has fewer batches than another.
            strategy = DDPStrategy(find_unused_parameters=True, broadcast_buffers=False)
        make = partial(
            self.cli.instantiate_trainer,
            plugins=[*(settings.plugins or []), WholeCheckpoints(partial(begun, self.out))],
            strategy=strategy,
            use_distributed_sampler=False,  # batches are cut to processes where they are made
            max_epochs=-1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            default_root_dir=self.out,
            **options,
        )
        try:
            return make()
        except (MisconfigurationException, ModuleNotFoundError, RuntimeError, TypeError, ValueError) as error:
            said = str(error) or type(error).__name__  # there is no such device, or the like
            raise UserError(f"The trainer cannot be made: {said.splitlines()[0].rstrip('.')}.") from None

    def _train(self, steps: int) -> None:
        keep_memory()
        announce_nodes(self.trainer)
        if self.resume_step:
            print(f"Resuming {self.out} at step {self.resume_step:,} of {steps:,}.")
            if is_main():  # a run that goes on is not finished
                (self.out / "metrics.json").unlink(missing_ok=True)
        try:
            self.trainer.fit(self.module, self.cli.datamodule, ckpt_path=self.resume_from, weights_only=True)
        except BaseException as error:
            interrupted = isinstance(error, Interrupted)  # for which all processes stop
            if self.wandb is not None:
                with tracking.tolerated():
                    self.wandb.close(whole=interrupted)
            if not interrupted:
                self._stop_the_others()
            plain = self._in_plain_words(error)
            if plain is None:
                raise
            print(file=sys.stderr)  # a process that dies can stop the bar in the middle of its line
            raise plain from None

    def _stop_the_others(self) -> None:
        """Processes that this one has started would wait for it for ever."""
        kill = getattr(self.trainer.strategy.launcher, "kill", None)
        if kill is not None:
            kill(signal.SIGKILL)

    @property
    def steps(self) -> int:
        return self.resume_step if self.ended else self.trainer.global_step

    @property
    def best_score(self) -> float | None:
        """The best figure of a validation."""
        found = self.best.best_model_score
        if self.ended:
            found = checkpoints.callback_value(self.state, "best_model_score")
        return None if found is None else float(found)

    def _in_plain_words(self, error: BaseException) -> UserError | None:
        """What the user can do about an error of the machine; None for one of the program."""
        said, step = str(error), self.trainer.global_step
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in said for sign in NO_MEMORY):
            data = self.cli.datamodule
            return UserError(
                f"Memory ran out at step {step:,}, with {data.batch_size} rows in a batch. Raise "
                "trainer.accumulate_grad_batches (the same gradient in smaller parts), or lower data.batch_size or "
                "the length of rows, and start anew with OVERWRITE=1."
            )
        if "DataLoader worker" in said and ("killed by signal" in said or "exited unexpectedly" in said):
            return UserError(
                f"A process that makes batches died at step {step:,}, most often for lack of memory. Go on with "
                "RESUME=1 from the last checkpoint, with a lower data.workers."
            )
        if said.startswith(UNKNOWN_FIGURE):
            named = f"; there are {', '.join(figures)}" if (figures := sorted(self.trainer.callback_metrics)) else ""
            return UserError(f"One of trainer.callbacks monitors a figure that there is not: {_monitor(said)}{named}.")
        return None

    def figures(self) -> dict[str, Any]:
        """Final figures, as they stand in `metrics.json`."""
        figures = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        tokens = int(self.module.tokens_seen)
        if self.ended:
            figures = self.figures_of(self.state)
        return {
            **figures,
            "seconds": round(self.seconds, 2),
            "tokens": tokens,
            "tokens_per_second": round(tokens / self.seconds, 1) if self.seconds else 0.0,
            "parameters": self.module.parameter_count,
            "steps": self.steps,
            "precision": str(self.trainer.precision),
        }

    def figures_of(self, state: dict[str, Any]) -> dict[str, float]:
        """The figures of the validation at which a checkpoint was written; of one that has not got them, as logged."""
        if "figures" in state:
            return dict(state["figures"])
        rows = [row for step, row in sorted(self.history.rows.items()) if step <= state["global_step"]]
        return {name: float(value) for row in rows for name, value in row.items() if name.startswith("val/")}

    def keep(self, kind: str, save: Callable[[Path], None]) -> Path:
        """Writes what the run has made, an `encoder` or a `model`, with where it comes from; returns its folder."""

        def write(folder: Path) -> None:
            save(folder)
            lineage.write(folder, [*self.stages, lineage.made(kind, folder)])

        write_folder(self.out / kind, write)
        lineage.write(self.out, lineage.read(self.out / kind))
        return self.out / kind

    def finish(
        self,
        figures: dict[str, Any],
        *,
        artifact: tuple[str, Path],
        tables: dict[str, tuple[list[str], list[list[Any]]]] | None = None,
    ) -> None:
        """Writes what is left; `metrics.json` last: a run folder with it is finished.

        Args:
            artifact: kind and folder of what the run made.
            tables: name -> columns and rows of texts, logged where texts may be.
        """
        self.history.save()
        self.last.with_name(checkpoints.PREVIOUS).unlink(missing_ok=True)
        if self.wandb is not None:
            import wandb

            with tracking.last_words(self.wandb) as run:
                run.summary.update({name: value for name, value in figures.items() if not _is_nan(value)})
                for picture in self.out.glob("*.png"):
                    run.log({picture.stem: wandb.Image(str(picture))})
                for name, (columns, rows) in (tables or {}).items() if self.log_text else ():
                    run.log({name: wandb.Table(columns=list(columns), data=rows)})
                if self.public:
                    tracking.log_artifact(run, *artifact)
        tracking.write_metrics(self.out, figures)


def _monitor(said: str) -> str:
    """The name of the figure in a complaint of Lightning's."""
    found = re.search(r"conditioned on metric `(.*?)`|monitor='(.*?)'", said)
    return (found[1] or found[2]) if found else said.splitlines()[0]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
