"""Settings that are refused, and what to do instead."""

from __future__ import annotations

import inspect
import math
import os
from typing import Any

import lightning

from pipeline.errors import UserError
from pipeline.presets.files import LARGEST_SEED
from pipeline.training.configuration import Configuration
from tasks.discovery import located

STEPS, INTERVAL = "set trainer.max_steps", "set validate_every, or validations of a fine-tune"
INSTEAD = {  # options of Lightning's trainer that the pipeline sets itself, or that would end a run too early
    **dict.fromkeys(("max_epochs", "max_time", "limit_train_batches", "overfit_batches"), STEPS),
    **dict.fromkeys(("min_epochs", "min_steps"), f"{STEPS}, and patience of a fine-tune"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch", "num_sanity_val_steps"), INTERVAL),
    **dict.fromkeys(("limit_val_batches", "limit_test_batches", "fast_dev_run"), "set a smaller corpus or task"),
    "enable_checkpointing": f"a checkpoint is written at each validation: {INTERVAL}, to change how often",
    "gradient_clip_algorithm": "set trainer.gradient_clip_val, a limit of the norm",
    "logger": "set WANDB_MODE",
    "default_root_dir": "leave it out: it is the run folder",
    "use_distributed_sampler": "leave it out: the pipeline splits batches over processes itself",
}
# Far above any in use: a slip of the hand would take hours, all memory, or every process of the machine.
MOST_PIECES, MOST_LAYERS, MOST_DOCUMENTS = 10_000_000, 1_000, 10_000_000
MOST_MEGABYTES = 1_000_000_000
MOST_WORKERS, MOST_PROCESSES = 256, max(16, os.cpu_count() or 1)
Range = tuple[Any, float, float]  # a value, the least and the most that it may be


def check_settings(config: Any) -> None:
    """Refuses settings with which a run would train nothing, or not what they say.

    Raises:
        UserError: which setting, and what it may be.
    """
    trainer, plain = config.trainer, inspect.signature(lightning.Trainer.__init__).parameters
    for name, instead in INSTEAD.items():
        named = name == "logger" and not isinstance(trainer[name], bool)  # a logger beside the run's own
        if trainer[name] != plain[name].default and not named:
            raise UserError(f"trainer.{name} is not used here; {instead}.")
    if getattr(trainer.logger, "class_path", "").endswith("WandbLogger"):
        raise UserError(
            "trainer.logger is WandbLogger, but each run has its own already: set WANDB_MODE, WANDB_PROJECT."
        )
    ranges = shared_ranges(config)
    if "validate_every" in config:
        ranges |= pretraining_ranges(config)
    elif "optimization" in config.model:  # what counts has no steps
        if config.model.optimization.warmup_steps:
            raise UserError("model.optimization.warmup_steps is not used in fine-tuning; set model.warmup_share.")
        ranges |= finetuning_ranges(config)
    for name, (value, least, most) in ranges.items():
        if value is None or not value >= least:  # nan is neither
            raise UserError(f"{name} is {'null' if value is None else value}; it must be at least {least}.")
        if value > most:
            raise UserError(f"{name} is {value:,}; it must be at most {most:,}.")


def shared_ranges(config: Any) -> dict[str, Range]:
    trainer, counts = config.trainer, ("log_every_n_steps", "accumulate_grad_batches", "num_nodes")
    ranges: dict[str, Range] = {f"trainer.{name}": (trainer[name], 1, math.inf) for name in counts}
    ranges["trainer.gradient_clip_val"] = (trainer.gradient_clip_val or 0, 0, math.inf)
    ranges |= {f"{part}.seed": (config[part].seed, 0, LARGEST_SEED) for part in ("model", "data")}
    ranges["data.workers"] = (config.data.workers, 0, MOST_WORKERS)
    if trainer.accelerator == "cpu" and str(trainer.devices).isdecimal():
        ranges["trainer.devices"] = (int(trainer.devices), 1, MOST_PROCESSES)
    return ranges


def pretraining_ranges(config: Any) -> dict[str, Range]:
    tokenizer, documents = config.data.tokenizer, config.data.sample_documents
    ranges = ranges_of_sizes(config.model.encoder)
    if isinstance(config.save_at_words, list):
        ranges["save_at_words"] = (min(config.save_at_words, default=0), 1, math.inf)
    if "optimization" in config.model:  # what counts has no steps
        ranges["trainer.max_steps"] = (config.trainer.max_steps, 1, math.inf)
    return {
        **ranges,
        "validate_every": (config.validate_every, 1, math.inf),
        "data.tokenizer.vocab_size": (tokenizer.vocab_size, 1, MOST_PIECES),
        "data.sample_documents": (1 if documents is None else documents, 1, MOST_DOCUMENTS),
        "data.tokenizer.train_megabytes": (tokenizer.train_megabytes, 1e-6, MOST_MEGABYTES),
    }


def ranges_of_sizes(encoder: Any) -> dict[str, Range]:
    """Of the whole numbers among the arguments of a new encoder."""
    kind: Any = located(encoder.class_path)
    return {
        f"model.encoder.init_args.{name}": (
            value,
            0 if name in kind.may_be_zero else 1,
            MOST_LAYERS if "layers" in name else math.inf,  # what fits no memory is refused later
        )
        for name, value in encoder.init_args.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }


def finetuning_ranges(config: Any) -> dict[str, Range]:
    encoder = config.model.get("encoder")  # where no folder holds the network
    ranges = {} if encoder is None else ranges_of_sizes(encoder)
    ranges |= {"validations": (config.validations, 1, math.inf), "patience": (config.patience, 0, math.inf)}
    if config.trainer.max_steps != -1:  # all epochs
        ranges["trainer.max_steps"] = (config.trainer.max_steps, 1, math.inf)
    return ranges


def check_asked(configuration: Configuration) -> None:
    """Raises: UserError, the class of the encoder lacks a method, or what the objective asks of it, or a setting says
    otherwise."""
    encoder, objective = configuration.encoder_class, configuration.module.objective
    if unwritten := sorted(encoder.__abstractmethods__):
        raise UserError(f"{encoder.__module__}.{encoder.__qualname__} has no {', '.join(unwritten)} yet.")
    objective.check_model(encoder)
    known = inspect.signature(encoder).parameters
    if lacking := [name for name in objective.model_options if name not in known]:
        raise UserError(
            f"{type(objective).__name__} sets {lacking[0]} of the model, which {encoder.__name__} does not have: give "
            f"its constructor an argument {lacking[0]}; see model_options of the objective."
        )
    given, own = configuration.resolved["model"]["encoder"]["init_args"], inspect.signature(type(objective)).parameters
    for name in objective.model_options:
        if given[name] != known[name].default:
            instead = f"set model.objective.init_args.{name}" if name in own else "leave it out"
            raise UserError(f"model.encoder.init_args.{name} follows from the objective; {instead}.")
