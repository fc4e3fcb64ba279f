"""YAML files and flags -> what a verb works with. LightningCLI parses (`run=False`)."""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import lightning
import torch
import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from pipeline import UserError, encoders
from pipeline.corpus import CorpusData
from pipeline.encoders.base import read_config
from pipeline.folders import digest, file_hash
from pipeline.machine import best_precision
from pipeline.pretrain import Pretraining
from tasks.base import Task

set_parsing_settings(subclasses_enabled=[Task])  # a YAML names the kind of task: a dataclass of its own

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"
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
            parser_kwargs={"exit_on_error": False, "prog": "python -m pipeline", "default_env": False},
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validate_every", type=int, required=True, help="optimiser steps between validations")
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)

    def before_instantiate_classes(self) -> None:
        if self.config.trainer.precision is not None:
            raise UserError("Set precision (auto, bf16-mixed or 32-true), not trainer.precision.")
        trainer, precision = self.config.trainer, self.config.precision
        if trainer.accelerator == "auto" and not torch.cuda.is_available():
            trainer.accelerator = "cpu"  # Lightning would take Apple's GPU, which has no float64
        trainer.precision = best_precision(trainer.accelerator) if precision == "auto" else precision

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return super().instantiate_trainer(**kwargs) if kwargs else None


class FineTuneCLI(CLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_argument("--precision", type=PRECISIONS, required=True)
        parser.add_argument("--validations", type=int, required=True, help="how often the validation part is scored")
        parser.add_argument("--patience", type=int, required=True, help="validations without a better one")
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one."""
    file = CONFIGS / kind / f"{name}.yaml"
    return file if file.is_file() else None


def known(kind: str) -> str:
    return ", ".join(sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml")))


def parse(model: type, data: type, files: list[Path], flags: list[str], cli_class: type[CLI] | None = None) -> CLI:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named.
    """
    args = [part for file in files for part in ("--config", str(file))] + flags
    try:
        cli = (cli_class or CLI)(model, data, args)
    except UnicodeDecodeError:
        raise UserError("A configuration file is not UTF-8 text.") from None
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError):
            raise
        raise UserError(f"The configuration is not valid: {_first_sentence(str(error))}") from None
    check_settings(cli.config)
    return cli


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
SIZES = ("size", "layers", "heads", "inner_size", "projection", "cell", "character_size", "max_length")  # of encoders
DERIVED = {  # what an encoder is told by its batches
    "next_sentence": "set data.batches.init_args.next_sentence",
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
    least: dict[str, tuple[float, float]] = {
        f"trainer.{name}": (trainer[name], 1) for name in ("log_every_n_steps", "accumulate_grad_batches")
    }
    least["trainer.gradient_clip_val"] = (trainer.gradient_clip_val or 0, 0)
    if "validate_every" in config:
        least |= {"trainer.max_steps": (trainer.max_steps, 1), "validate_every": (config.validate_every, 1)}
        tokenizer, sizes = config.data.tokenizer, config.model.encoder.init_args
        least |= {"data.tokenizer.vocab_size": (tokenizer.vocab_size, 1)}
        least |= {"data.tokenizer.train_megabytes": (tokenizer.train_megabytes, 1e-6)}
        least |= {f"model.encoder.init_args.{name}": (sizes[name], 1) for name in SIZES if name in sizes}
        check_parts(config)
    else:
        least |= {"validations": (config.validations, 1), "patience": (config.patience, 0)}
        if config.model.optimization.warmup_steps:
            raise UserError("model.optimization.warmup_steps is not used in fine-tuning; set model.warmup_share.")
        if trainer.max_steps != -1:  # all epochs
            least |= {"trainer.max_steps": (trainer.max_steps, 1)}
    for name, (value, bound) in least.items():
        if not value >= bound:  # nan is neither
            raise UserError(f"{name} is {value}; it must be at least {bound}.")


def check_parts(config: Any) -> None:
    """Refuses an encoder, batches and an objective that do not go together.

    Raises:
        UserError: which of them.
    """
    encoder, *others = (
        locate(part.class_path) for part in (config.model.encoder, config.model.objective, config.data.batches)
    )
    for part in others:
        if not issubclass(encoder, getattr(part, "family", encoder)):  # type: ignore[arg-type]
            raise UserError(f"{part.__name__} belongs to another model than {encoder.__name__}.")  # type: ignore[attr-defined]
    plain = inspect.signature(encoder).parameters  # type: ignore[arg-type]
    for name, instead in DERIVED.items():
        if name in plain and config.model.encoder.init_args[name] != plain[name].default:
            raise UserError(f"model.encoder.init_args.{name} follows from the batches; {instead}.")


def _first_sentence(message: str) -> str:
    message = message[max(0, message.rfind("Parser key")) :]  # what is before it speaks of types in Python
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


def corpus_config(corpus: str, data: str | None, model: str) -> tuple[list[Path], list[str]]:
    """CORPUS= and DATA= -> configuration files and flags; `corpora/NAME/MODEL.yaml` is what a model takes for it.

    Raises:
        UserError: no preset and no path.
    """
    preset = named_config("corpora", corpus)
    if preset is None and not _is_path(corpus):
        raise UserError(f"There is no corpus '{corpus}': neither a preset ({known('corpora')}) nor a path.")
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


def task_file(task: str) -> Path:
    """TASK= -> its YAML file; kinds of task of the user's own may stand beside it.

    Raises:
        UserError: there is no such file.
    """
    file = named_config("tasks", task) or Path(task)
    if not file.is_file():
        raise UserError(f"There is no task '{task}': neither a preset ({known('tasks')}) nor a YAML file.")
    sys.path.append(str(file.parent.resolve()))
    return file


SHARED = (CONFIGS / "finetune.yaml", CONFIGS / "finetune-frozen.yaml")  # before the task's file, and after it


def recipe(file: Path) -> str:
    """A hash of what a task's file and the shared ones say of a fine-tune, and of its kind; prompts do not matter."""
    content, *shared = (yaml.safe_load(path.read_text()) for path in (file, *SHARED))
    kind = content["data"]["task"]  # its name alone, where nothing is set
    if isinstance(kind, dict):
        kind.get("init_args", {}).pop("prompts", None)
    kinds = type(task_of(file)).__mro__[:-1]  # of Python files, which may be the user's
    return digest(repr((shared, content)), *(file_hash(Path(inspect.getfile(kind))) for kind in kinds))


def task_of(file: Path) -> Task:
    """The task alone of its YAML file.

    Raises:
        UserError: the file names no task, or a broken one.
    """
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--task", type=Task, required=True)
    try:
        content = yaml.safe_load(file.read_text())
        if not isinstance(content, dict) or "task" not in (content.get("data") or {}):
            raise UserError(f"{file} names no data: task:, as configs/tasks/sentiment.yaml does.")
        return reader.instantiate(reader.parse_object({"task": content["data"]["task"]})).task
    except (ArgumentError, TypeError, KeyError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file} is not valid: {_first_sentence(str(error))}") from None
