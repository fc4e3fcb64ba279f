"""YAML files and flags -> what a verb works with. LightningCLI parses (`run=False`)."""

from __future__ import annotations

import argparse
import inspect
import itertools
import math
import os
import re
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import lightning
import torch
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from pipeline import encoders, former_names
from pipeline.errors import UserError
from pipeline.models.base import read_config
from pipeline.presets import CONFIGS, content_of, first_sentence, known, named_config
from pipeline.storage.paths import path_of
from pipeline.training.corpus_data import CorpusData
from pipeline.training.hardware import best_precision, know_node, prepare_nodes
from pipeline.training.pretraining import Pretraining

LOG_TEXT = "texts of local files may go to Weights & Biases"
PRECISIONS = Literal["auto", "bf16-mixed", "32-true"]  # float16 would need its gradients unscaled before clipping


class CLI(LightningCLI):
    """Parses; the trainer is made later, when the data are known."""

    def __init__(self, model: type, data: type, args: list[str]) -> None:
        super().__init__(
            model,
            data,
            run=False,
            args=args,
            save_config_callback=None,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_kwargs={
                "exit_on_error": False,
                "prog": "python -m pipeline",
                "default_env": False,
                "allow_abbrev": False,
            },
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validate_every", type=int, required=True, help="optimiser steps between validations")
        parser.link_arguments("model.objective", "data.objective", apply_on="instantiate")
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)

    def before_instantiate_classes(self) -> None:
        if self.config.trainer.precision is not None:
            raise UserError("Set precision (auto, bf16-mixed or 32-true), not trainer.precision.")
        trainer, precision = self.config.trainer, self.config.precision
        if trainer.accelerator == "auto" and not torch.cuda.is_available():
            trainer.accelerator = "cpu"  # Lightning would take Apple's GPU, which has no float64
        trainer.precision = best_precision(trainer.accelerator) if precision == "auto" else precision
        know_node(trainer.num_nodes)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        if not kwargs:
            return None
        trainer = super().instantiate_trainer(**kwargs)
        prepare_nodes(trainer)
        return trainer


class FineTuneCLI(CLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validations", type=int, required=True, help="how often the validation part is scored")
        parser.add_argument("--patience", type=int, required=True, help="validations without a better one")
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)


def parse(model: type, data: type, files: list[Path], flags: list[str], cli_class: type[CLI] | None = None) -> CLI:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named, with the file that it is in.
    """
    flags = [former_names.current(flag) for flag in flags]
    given = {file: content_of(file) for file in [*files, *files_in(flags)]}
    args = [part for file in files for part in ("--config", str(file))] + flags
    try:
        cli = (cli_class or CLI)(model, data, args)
    except RecursionError:
        raise UserError("The configuration is nested too deeply.") from None
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError):
            raise
        said = first_sentence(str(error))
        place = next((file for file in reversed(given) if _sets(given[file], said, flags)), "The configuration")
        raise UserError(f"{place} is not valid: {said}") from None
    check_settings(cli.config)
    return cli


def files_in(flags: list[str]) -> list[Path]:
    """The YAML files among the values of flags.

    Raises:
        UserError: one after --config is not there.
    """
    words = [word for flag in flags for word in (flag.split("=", 1) if flag.startswith("-") else [flag])]
    configs = [value for name, value in itertools.pairwise(words) if name in ("--config", "-c")]
    for name in configs:
        if not path_of(name).exists():
            raise UserError(f"There is no configuration file at {name}.")
    others = [word for word in words if word.endswith((".yaml", ".yml"))]
    return [path for path in dict.fromkeys(map(path_of, [*others, *configs])) if path.is_file()]


def _sets(content: Any, said: str, flags: list[str]) -> bool:
    """Whether a file, and no flag, sets the key that an error is about."""
    about = re.search(r"(?:key|option|Option) ['\"]([^'\"]+)", said)
    if about is None:
        return False
    name, waiting = about[1].rpartition(".")[2], [content]
    if any(flag.partition("=")[0].rpartition(".")[2].lstrip("-") == name for flag in flags):
        return False
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if name in value:
                return True
            waiting += value.values()
    return False


# What has another name here: Lightning's would be passed over, or end a run that has learned nothing.
ELSEWHERE = {
    **dict.fromkeys(("max_epochs", "max_time", "limit_train_batches", "overfit_batches"), "trainer.max_steps"),
    **dict.fromkeys(("min_epochs", "min_steps"), "trainer.max_steps, and patience of a fine-tune"),
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "validate_every, or validations of a fine-tune"),
    "gradient_clip_algorithm": "trainer.gradient_clip_val, of the norm",
    "logger": "WANDB_MODE",
    "default_root_dir": "OUT",
    **dict.fromkeys(("enable_checkpointing", "num_sanity_val_steps"), "validate_every, or validations of a fine-tune"),
    "use_distributed_sampler": "nothing: batches are cut to processes where they are made",
    **dict.fromkeys(("limit_val_batches", "limit_test_batches", "fast_dev_run"), "a smaller corpus or task"),
}
LARGEST_SEED = 2**32 - 1  # as --seed
# Far above any in use: a slip of the hand would take hours, all memory, or every process of the machine.
MOST_PIECES, MOST_LAYERS, MOST_DOCUMENTS = 10_000_000, 1_000, 10_000_000
MOST_MEGABYTES = 1_000_000_000
MOST_WORKERS, MOST_PROCESSES = 256, max(16, os.cpu_count() or 1)
SIZES = ("size", "layers", "heads", "inner_size", "projection", "cell", "character_size", "max_length")  # of encoders
DERIVED = {  # arguments of an encoder that its objective sets
    "next_sentence": "set model.objective.init_args.next_sentence",
    "max_characters": "words of a corpus are cut where they are stored",
}


def check_settings(config: Any) -> None:
    """Refuses settings of a training with which it would train nothing, or otherwise than they say.

    Raises:
        UserError: which setting, and what it may be.
    """
    trainer, plain = config.trainer, inspect.signature(lightning.Trainer.__init__).parameters
    for name, instead in ELSEWHERE.items():
        if trainer[name] != plain[name].default:
            raise UserError(f"trainer.{name} is not used here; set {instead}.")
    ranges: dict[str, tuple[Any, float, float]] = {
        f"trainer.{name}": (trainer[name], 1, math.inf)
        for name in ("log_every_n_steps", "accumulate_grad_batches", "num_nodes")
    }
    ranges["trainer.gradient_clip_val"] = (trainer.gradient_clip_val or 0, 0, math.inf)
    ranges |= {"model.seed": (config.model.seed, 0, LARGEST_SEED), "data.seed": (config.data.seed, 0, LARGEST_SEED)}
    ranges["data.workers"] = (config.data.workers, 0, MOST_WORKERS)
    if trainer.accelerator == "cpu" and str(trainer.devices).isdecimal():
        ranges["trainer.devices"] = (int(trainer.devices), 1, MOST_PROCESSES)
    if "validate_every" in config:
        tokenizer, sizes = config.data.tokenizer, config.model.encoder.init_args
        documents = config.data.sample_documents
        for name in SIZES:
            if name in sizes:
                most = MOST_LAYERS if name == "layers" else math.inf
                ranges[f"model.encoder.init_args.{name}"] = (sizes[name], 1, most)
        if "highways" in sizes:
            ranges["model.encoder.init_args.highways"] = (sizes.highways, 0, MOST_LAYERS)
        ranges |= {
            "trainer.max_steps": (trainer.max_steps, 1, math.inf),
            "validate_every": (config.validate_every, 1, math.inf),
            "data.tokenizer.vocab_size": (tokenizer.vocab_size, 1, MOST_PIECES),
            "data.sample_documents": (1 if documents is None else documents, 1, MOST_DOCUMENTS),
            "data.tokenizer.train_megabytes": (tokenizer.train_megabytes, 1e-6, MOST_MEGABYTES),
        }
        check_parts(config)
    else:
        ranges |= {"validations": (config.validations, 1, math.inf), "patience": (config.patience, 0, math.inf)}
        if config.model.optimization.warmup_steps:
            raise UserError("model.optimization.warmup_steps is not used in fine-tuning; set model.warmup_share.")
        if trainer.max_steps != -1:  # all epochs
            ranges["trainer.max_steps"] = (trainer.max_steps, 1, math.inf)
    for name, (value, least, most) in ranges.items():
        if value is None or not value >= least:  # nan is neither
            raise UserError(f"{name} is {'null' if value is None else value}; it must be at least {least}.")
        if value > most:
            raise UserError(f"{name} is {value:,}; it must be at most {most:,}.")


def check_parts(config: Any) -> None:
    """Refuses an encoder and an objective that do not go together.

    Raises:
        UserError: what the encoder lacks.
    """
    encoder: Any = locate(config.model.encoder.class_path)
    objective: Any = locate(config.model.objective.class_path)
    if lacking := sorted(objective.requires - encoder.capabilities()):
        raise UserError(
            f"The objective {objective.__name__} needs a {' and '.join(lacking)} model, and {encoder.__name__} is "
            f"{' and '.join(sorted(encoder.capabilities()))}: choose another model.objective."
        )
    plain = inspect.signature(encoder).parameters
    for name, instead in DERIVED.items():
        if name in plain and config.model.encoder.init_args[name] != plain[name].default:
            raise UserError(f"model.encoder.init_args.{name} follows from the objective; {instead}.")


def corpus_config(corpus: str, data: str | None, model: str) -> tuple[list[Path], list[str]]:
    """CORPUS= and DATA= -> configuration files and flags; `corpora/NAME/MODEL.yaml` is what a model takes for it.

    Raises:
        UserError: no preset and no path, or two paths.
    """
    preset = named_config("corpora", corpus)
    if preset is None and not _is_path(corpus):
        raise UserError(f"There is no corpus '{corpus}': neither a preset ({known('corpora')}) nor a path.")
    if preset is None and data is not None:
        raise UserError(
            f"CORPUS={corpus} and DATA={data} both say where the text is: leave one of them out. DATA= takes the place "
            f"of the hub's text of a preset ({known('corpora')})."
        )
    own = named_config(f"corpora/{corpus}", model)
    files = [file for file in (preset, own) if file]
    location = data if data is not None else None if preset else corpus
    if location is None:
        return files, []
    return files, ["--data.files", location, "--data.hub=null", "--data.sample_documents=null"]


def _is_path(corpus: str) -> bool:
    path = Path(corpus)
    return bool(corpus) and ("/" in corpus or any(c in corpus for c in "*?[") or path.exists() or bool(path.suffix))


def pretraining(options: argparse.Namespace, flags: list[str]) -> CLI:
    """MODEL=, CORPUS= and flags -> a LightningModule and its data, not yet built."""
    model_file = named_config("pretrain", options.model)
    if model_file is None:
        raise UserError(f"There is no model '{options.model}'; there are {known('pretrain')}.")
    corpus_files, corpus_flags = corpus_config(options.corpus, options.data, options.model)
    seeds = [f"--model.seed={options.seed}", f"--data.seed={options.seed}"]
    files = [CONFIGS / "base.yaml", model_file, *corpus_files]
    return parse(Pretraining, CorpusData, files, [*corpus_flags, *seeds, *flags])


def encoder_folder(options: argparse.Namespace) -> Path:
    """FROM=, or where MODEL was pretrained; refuses one that holds another model."""
    if named_config("pretrain", options.model) is None:
        raise UserError(f"There is no model '{options.model}'; there are {known('pretrain')}.")
    folder = options.encoder or Path("runs/pretrain") / options.model / "encoder"
    wanted = options.model.split("-")[0]  # elmo-paper is an elmo
    if (model_type := encoders.family(read_config(folder)["model_type"])) != wanted:
        hint = (
            f"set MODEL={model_type}" if model_type in encoders.names() else f"there are {', '.join(encoders.names())}"
        )
        raise UserError(f"{folder} holds a {model_type} encoder, not {wanted}; {hint}.")
    return folder
