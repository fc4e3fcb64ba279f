"""YAML files and flags -> what a verb works with. LightningCLI parses (`run=False`)."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import itertools
import math
import os
import re
import sys
from pathlib import Path
from pydoc import locate
from typing import Any, Literal

import lightning
import torch
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from pipeline import UserError, encoders
from pipeline.corpus import CorpusData
from pipeline.encoders.base import read_config
from pipeline.folders import digest, file_hash, path_of
from pipeline.machine import best_precision, know_node, prepare_nodes
from pipeline.pretrain import Pretraining
from pipeline.validation import read_yaml
from tasks.base import Task

set_parsing_settings(subclasses_enabled=[Task])  # a YAML names the kind of task: a dataclass of its own

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGED = Path(__file__).resolve().parent / "configs"  # of an installed wheel
CONFIGS = PACKAGED if PACKAGED.is_dir() else REPOSITORY / "configs"
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


def folders_of(kind: str) -> list[Path]:
    """Where configurations of a kind are; tasks may also be of the user's own, in the current folder."""
    own = Path("configs") / kind
    return [CONFIGS / kind, *([own] if kind == "tasks" and own.is_dir() and own.resolve() != CONFIGS / kind else [])]


def named_config(kind: str, name: str) -> Path | None:
    """`configs/KIND/NAME.yaml`, if there is one; of two the pipeline's."""
    return next((file for folder in folders_of(kind) if (file := folder / f"{name}.yaml").is_file()), None)


def known(kind: str) -> str:
    return ", ".join(sorted({path.stem for folder in folders_of(kind) for path in folder.glob("*.yaml")}))


def parse(model: type, data: type, files: list[Path], flags: list[str], cli_class: type[CLI] | None = None) -> CLI:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named, with the file that it is in.
    """
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
        said = _first_sentence(str(error))
        place = next((file for file in reversed(given) if _sets(given[file], said, flags)), "The configuration")
        raise UserError(f"{place} is not valid: {said}") from None
    check_settings(cli.config)
    return cli


# Parts of a configuration that have settings of their own; those in the second line may be the name of a class alone.
SECTIONS = ("trainer", "model", "data", "model.optimization", "model.craft", "data.tokenizer")
CLASSES = ("model.encoder", "model.objective", "data.batches", "data.task")


def content_of(file: Path) -> dict[str, Any]:
    """What a configuration file sets.

    Raises:
        UserError: it is not valid YAML, or a section of it is none.
    """
    content = read_yaml(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{file} is not valid: it must have settings, as `trainer:`, `model:` or `data:`.")
    for section in (*SECTIONS, *(f"{part}{rest}" for part in CLASSES for rest in ("", ".init_args"))):
        *above, name = section.split(".")
        parent: Any = content
        for part in above:
            parent = parent.get(part, {}) if isinstance(parent, dict) else {}
        if isinstance(parent, dict) and name in parent:
            value = parent[name]
            if not isinstance(value, (dict, str) if section in CLASSES else dict):
                shown = "null" if value is None else repr(value)
                raise UserError(f"{file} is not valid: {section} is {shown}; it must be a mapping of settings.")
    return content


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
    message = re.sub(r"\s*Got value: Namespace\(.*", "", message, flags=re.DOTALL)  # the value itself is before it
    lines = [line.strip(" -") for line in message.replace("error: ", "").splitlines() if line.strip()]
    return " ".join(lines)[:400].rstrip(".") + "."


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


def task_file(task: str) -> Path:
    """TASK= -> its YAML file; the kind of task that it names is loaded, where it is one of the user's own.

    Raises:
        UserError: there is no such file, or it names no task.
    """
    file = named_config("tasks", task) or Path(task)
    if not file.is_file():
        raise UserError(f"There is no task '{task}': neither a preset ({known('tasks')}) nor a YAML file.")
    load_kind(file, task_in(file))
    return file


def task_in(file: Path) -> Any:
    """What a YAML file says of its task: the name of a class, or a mapping with it as `class_path`.

    Raises:
        UserError: nothing, or it is not valid YAML.
    """
    content = content_of(file)
    if "task" not in content.get("data", {}):
        raise UserError(f"{file} names no data: task:, as configs/tasks/sentiment.yaml does.")
    return content["data"]["task"]


KINDS: dict[str, Path] = {}  # modules of the user's own -> their files


def load_kind(file: Path, task: Any) -> None:
    """Loads a kind of task whose Python file stands beside the YAML file: `class_path: MODULE.Class` is MODULE.py.

    That file alone, by its path: with its folder on the import path, any other file there could take the place of a
    module that a library imports late.

    Raises:
        UserError: the file is called as another module is, cannot be imported, or has no such class.
    """
    module, _, kind = str(task if isinstance(task, str) else task.get("class_path")).rpartition(".")
    source = (file.parent / f"{module}.py").resolve()
    if not module.isidentifier() or not source.is_file() or KINDS.get(module) == source:
        return
    if module not in KINDS:
        there = sys.modules.get(module) or importlib.util.find_spec(module)
        origin = getattr(there, "__file__", None) or getattr(there, "origin", None)
        if there is not None and (origin is None or Path(origin).resolve() != source):
            raise UserError(f"{source} is called as another module is; rename it, and its class_path in {file}.")
    spec = importlib.util.spec_from_file_location(module, source)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[module])
    except BaseException as error:
        del sys.modules[module]
        if isinstance(error, (ImportError, SyntaxError)):
            raise UserError(f"{source} cannot be imported: {error}.") from None
        raise
    if not hasattr(sys.modules[module], kind):
        del sys.modules[module]
        raise UserError(f"{source} has no {kind}, which {file} names as its kind of task.")
    KINDS[module] = source


SHARED = (CONFIGS / "finetune.yaml", CONFIGS / "finetune-frozen.yaml")  # before the task's file, and after it


def recipe(file: Path) -> str:
    """A hash of what a task's file and the shared ones say of a fine-tune, and of its kind; prompts do not matter."""
    content, *shared = (read_yaml(path) for path in (file, *SHARED))
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
    task = task_in(file)
    load_kind(file, task)
    reader = ArgumentParser(exit_on_error=False)
    reader.add_argument("--task", type=Task, required=True)
    try:
        return reader.instantiate(reader.parse_object({"task": task})).task
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise UserError(f"{file} is not valid: {_first_sentence(str(error))}") from None
