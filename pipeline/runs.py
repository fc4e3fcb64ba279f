"""One training run in its folder: trainer, loggers, checkpoints, final figures."""

from __future__ import annotations

import argparse
import math
import shutil
import time
from pathlib import Path
from typing import Any

import lightning
import torch
import yaml
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from pipeline import UserError, tracking
from pipeline.pretrain import Training
from pipeline.text import file_hash
from pipeline.tracking import History, Progress, StopCleanly

# What a run writes: OVERWRITE=1 removes these and nothing else.
RUN_FILES = (
    *("config.yaml", "metrics.json", "metrics.csv", "checkpoints", "wandb", "encoder", "model"),
    *("predictions.jsonl", "curves.png", "confusion.png", "types.png", "mix.png", "data.txt", "receipt.txt"),
)


def check_run_folder(out: Path, options: argparse.Namespace) -> None:
    """Refuses to write over a run; makes sure that the folder can be written."""
    if not options.overwrite and not options.resume:
        for sign, state in (("metrics.json", "a finished run"), ("checkpoints/last.ckpt", "an interrupted run")):
            if (out / sign).exists():
                raise UserError(
                    f"{out} holds {state}; set RESUME=1 to go on with it, OVERWRITE=1 to start anew, or another OUT=."
                )
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / ".writable").touch()
        (out / ".writable").unlink()
    except OSError as error:
        raise UserError(f"The run folder {out} cannot be written: {error.strerror}.") from None


class Run:
    """One training run in its folder: trainer, loggers, checkpoints, final figures."""

    def __init__(
        self,
        cli: Any,
        out: Path,
        options: argparse.Namespace,
        *,
        job_type: str,
        group: str,
        tags: list[str],
        uses: Path | None = None,
    ) -> None:
        self.cli, self.out, self.options = cli, out, options
        self.module: Training = cli.model
        self.last = out / "checkpoints" / "last.ckpt"
        self.module.checkpoint_file = self.last
        resumed = options.resume and self.last.exists()
        self.resume_step = _checkpoint_step(self.last) if resumed else 0
        if options.resume and not resumed:
            print(f"Nothing to resume in {out}: starting from the beginning.")
        if not resumed:
            for name in RUN_FILES:
                path = out / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        config = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
        (out / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        self.history = History(out)
        if resumed:
            self.history.restore(self.resume_step)
        if uses is not None:
            config["encoder"] = {"folder": str(uses), "sha256": file_hash(uses / "model.safetensors")}
        self.wandb = tracking.wandb_logger(out, job_type=job_type, group=group, tags=tags, config=config)
        if uses is not None and self.wandb is not None:
            tracking.use_artifact(self.wandb, uses)

    def fit(
        self,
        *,
        monitor: str,
        mode: str,
        max_steps: int | None = None,
        validate_every: int | None = None,
        patience: int | None = None,
    ) -> None:
        """Trains to the last step, from the checkpoint when resumed; then `last.ckpt` and `best.ckpt` are there.

        Args:
            monitor: the figure of a validation that chooses `best.ckpt`; `mode`: whether its `min` or `max` is best.
            patience: stop after so many validations without a better one; None: go on to the end.
        """
        best = ModelCheckpoint(self.last.parent, "best", monitor=monitor, mode=mode, enable_version_counter=False)
        latest = LatestCheckpoint(self.last)
        settings = self.cli.config_init.trainer
        steps, parts = max_steps or settings.max_steps, settings.accumulate_grad_batches
        every = min(validate_every or self.cli.config_init.validate_every, steps)
        self.best = best
        strategy = settings.strategy
        if str(settings.devices) != "1" and strategy in ("auto", "ddp"):
            # Heads of pretraining are not used in fine-tuning, rare words not by every process.
            strategy = "ddp_find_unused_parameters_true"
        self.trainer: lightning.Trainer = self.cli.instantiate_trainer(
            callbacks=[
                Progress(),
                *([] if patience is None else [EarlyStopping(monitor, mode=mode, patience=patience)]),
                *(best, latest, StopCleanly(self.last)),
            ],
            logger=[logger for logger in (self.history, self.wandb) if logger is not None],
            strategy=strategy,
            use_distributed_sampler=False,  # batches are cut to processes where they are made
            max_steps=steps,
            max_epochs=-1,
            val_check_interval=every * parts,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            default_root_dir=self.out,
        )
        started = time.monotonic()
        if self.resume_step >= steps:
            self.trainer.strategy.connect(self.module)
            state = torch.load(self.last, weights_only=True, map_location="cpu")["state_dict"]
            self.module.load_state_dict(state)
            print(f"The run in {self.out} is finished: nothing left to train.")
        else:
            if self.resume_step:
                print(f"Resuming {self.out} at step {self.resume_step:,} of {steps:,}.")
            self.trainer.fit(
                self.module, self.cli.datamodule, ckpt_path=self.last if self.resume_step else None, weights_only=True
            )
        self.seconds = time.monotonic() - started

    def figures(self) -> dict[str, Any]:
        """Final figures, as they stand in `metrics.json`."""
        figures = {name: float(value) for name, value in self.trainer.callback_metrics.items()}
        tokens = int(self.module.tokens_seen)
        trained = tokens - getattr(self.module, "tokens_at_start", 0)
        return {
            **figures,
            "seconds": round(self.seconds, 2),
            "tokens": tokens,
            "tokens_per_second": round(trained / max(1e-9, self.seconds), 1),
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "steps": self.trainer.global_step,
            "precision": str(self.trainer.precision),
        }

    def finish(self, figures: dict[str, Any], *, artifact: tuple[str, Path] | None = None) -> None:
        self.history.save()
        if self.wandb is not None:
            import wandb

            run = self.wandb.experiment
            run.summary.update({name: value for name, value in figures.items() if not _is_nan(value)})
            for picture in self.out.glob("*.png"):
                run.log({picture.stem: wandb.Image(str(picture))})
            if artifact:
                run.log_artifact(tracking.folder_artifact(*artifact))
            wandb.finish()
        tracking.write_metrics(self.out, figures)


class LatestCheckpoint(lightning.Callback):
    """`last.ckpt` after each validation and at the end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_validation_end(self, trainer: lightning.Trainer, module: Any) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            trainer.save_checkpoint(self.file)


def _checkpoint_step(file: Path) -> int:
    try:
        return int(torch.load(file, weights_only=True, map_location="cpu", mmap=True)["global_step"])
    except Exception as error:
        raise UserError(
            f"The checkpoint {file} cannot be read ({type(error).__name__}); set OVERWRITE=1 to start anew."
        ) from None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
