"""LightningCLI as a parser (`run=False`): configuration files and flags -> a configuration."""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import pipeline.presets.parsing  # noqa: F401  # how YAML files are read
from pipeline.cli.parse_errors import key_in, plain, sentence
from pipeline.cli.validate import check_settings
from pipeline.console.messages import Level, inform, level
from pipeline.errors import UserError
from pipeline.presets import former_names
from pipeline.presets.files import CLASSES, content_of, flat
from pipeline.storage.atomic import first_line
from pipeline.storage.paths import path_of
from pipeline.tracking.wandb import WandbOptions
from pipeline.tracking.words_seen import Points
from pipeline.training import loggers
from pipeline.training.base_module import Training
from pipeline.training.configuration import Configuration
from pipeline.training.finetuning import FineTuning
from pipeline.training.hardware import best_precision
from pipeline.training.nodes import prepare_nodes, set_rank_of_node
from pipeline.training.requests import by_setting

PRECISION = "auto: bf16-mixed where it is native, else 16-mixed on a CUDA GPU and 32-true on a processor"
COMPILE = "compile the Transformer blocks (torch.compile)"
RECOMPUTE = "keep less in memory, and compute the Transformer blocks twice"
LOG_TEXT = "texts of local files may go to Weights & Biases"
SAVE_AT_WORDS = "save an encoder folder at these numbers of words seen too; babylm: 1M, 2M, ..., 10M, 20M, ..."
PRECISIONS = Literal["auto", "bf16-mixed", "16-mixed", "32-true"]


def add_shared(parser: LightningArgumentParser) -> None:
    """What both stages have: how a run computes, which changes no result but by rounding, and what is tracked."""
    parser.add_argument("--precision", type=PRECISIONS, required=True, help=PRECISION)
    parser.add_argument("--compile", type=bool, default=False, help=COMPILE)
    parser.add_argument("--activation_checkpointing", type=bool, default=False, help=RECOMPUTE)
    parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)
    parser.add_class_arguments(WandbOptions, "wandb")


def add_pretraining(parser: LightningArgumentParser) -> None:
    parser.add_argument("--validate_every", type=int, required=True, help="optimizer steps between validations")
    parser.add_argument("--save_at_words", type=Points, default=None, help=SAVE_AT_WORDS)
    parser.link_arguments("model.objective", "data.objective", apply_on="instantiate")


def add_finetuning(parser: LightningArgumentParser) -> None:
    parser.add_argument("--validations", type=int, required=True, help="how often the validation part is scored")
    patience = "stop after this many validations without improvement; 0: never"
    parser.add_argument("--patience", type=int, required=True, help=patience)


class _WithoutEncoder(LightningArgumentParser):
    """FineTuning takes the folder of its encoder for `Trainer.fit` alone: commands have FROM= for it."""

    def add_class_arguments(self, theclass: type, *args: Any, **options: Any) -> list[str]:
        skip = {"skip": {"encoder"}} if theclass is FineTuning else {}
        return super().add_class_arguments(theclass, *args, **options, **skip)


_PARSERS: dict[tuple[type, type], LightningArgumentParser] = {}


class CLI(LightningCLI):
    """Parses; the trainer is made later, when the data are known."""

    def __init__(self, model: type[Training], data: type, args: list[str]) -> None:
        self.module, self.stage = model, (model, data)
        super().__init__(
            model,
            data,
            run=False,
            args=args,
            save_config_callback=None,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_class=_WithoutEncoder,
            parser_kwargs={
                "exit_on_error": False,
                "prog": "python -m pipeline",
                "default_env": False,
                "allow_abbrev": False,
            },
        )

    def setup_parser(self, *args: Any) -> None:
        """The parser of a stage is made once: a grid reads configurations several times a run."""
        if self.stage not in _PARSERS:
            super().setup_parser(*args)
            _PARSERS[self.stage] = self.parser
        self.parser = _PARSERS[self.stage]

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            error.keys = [action.dest for action in parser._actions]  # type: ignore[attr-defined]
            raise

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_shared(parser)
        if not issubclass(self.module, FineTuning):
            add_pretraining(parser)
        elif not self.module.is_counting:
            add_finetuning(parser)

    def before_instantiate_classes(self) -> None:
        trainer, precision = self.config.trainer, self.config.precision
        if trainer.accelerator == "auto" and not torch.cuda.is_available():
            trainer.accelerator = "cpu"  # Lightning would take Apple's GPU, which has no float64
        chosen = best_precision(trainer.accelerator) if precision == "auto" else precision
        if trainer.precision not in (None, chosen):  # a config.yaml of versions before 0.17 has both
            raise UserError(f"Set precision ({', '.join(get_args(PRECISIONS))}), not trainer.precision.")
        trainer.precision = chosen
        if precision == "16-mixed" and trainer.accelerator not in ("gpu", "cuda", "auto"):
            raise UserError(
                f"precision 16-mixed needs a CUDA GPU, not {trainer.accelerator}; set bf16-mixed or 32-true."
            )
        set_rank_of_node(trainer.num_nodes)

    def _dump_config(self) -> None:
        """For `save_hyperparameters`, which nothing here asks for: checkpoints have a configuration of their own."""
        self.config_dump: dict[str, Any] = {}

    def instantiate_classes(self) -> None:
        """All but the user's loggers, which write into the run folder: the run makes them when it has one."""
        trainer = self.config.trainer
        named, trainer.logger = trainer.logger, None
        super().instantiate_classes()
        trainer.logger = named

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        if not kwargs:
            return None
        trainer = super().instantiate_trainer(**kwargs)
        prepare_nodes(trainer)
        return trainer


LOGGER = "trainer.logger"
CLASS_OF_OTHERS = re.compile(r"Problem with given class_path '(lightning[^']+)'")  # callbacks, plugins, ...


def parse(model: type[Training], data: type, files: list[Path], flags: list[str]) -> Configuration:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named, with the file that it is in.
    """
    flags = former_names.flags(flags)
    given = {file: content_of(file) for file in [*files, *files_in(flags)]}
    args = [part for file in files for part in ("--config", str(file))] + [*flags, *places_of_logger(given, flags)]
    try:
        cli = CLI(model, data, args)
    except RecursionError:
        raise UserError("The configuration is nested too deeply.") from None
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            if isinstance(cause, ModuleNotFoundError) and (named := CLASS_OF_OTHERS.search(str(error))):
                raise UserError(f"{named[1]} needs a package: {first_line(cause)}.") from None
            cause = cause.__cause__ or cause.__context__
        if not isinstance(error, ArgumentError):
            raise
        name = key_in(str(error))
        message = plain(str(error), getattr(error, "keys", ()), classes_of([*given.values()], flags))
        place = next((file for file in reversed(given) if _sets(given[file], name, flags)), None)
        raise UserError(f"{place} is not valid: {message}" if place else sentence(message)) from None
    if level() == Level.VERBOSE:
        inform(*(f"read        {file}" for file in given))
    else:
        logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    check_settings(cli.config)
    # As JSON, which is read faster, and not validated a second time.
    resolved = json.loads(cli.parser.dump(cli.config, format="json", skip_none=False, skip_validation=True))
    loggers.check_loggers(resolved["trainer"]["logger"])
    return Configuration(
        module=cli.model,
        data=cli.datamodule,
        resolved=resolved,
        settings=cli.config_init,
        make_trainer=cli.instantiate_trainer,
        given=files_in(flags),
        descriptions={action.dest: action.help or "" for action in cli.parser._actions},
    )


def places_of_logger(given: Mapping[Path, dict[str, Any]], flags: list[str]) -> list[str]:
    """Flags that have a logger of Lightning write into the run folder, unless files or flags say where."""
    settings = {name: value for content in given.values() for name, value in flat(content).items()}
    settings |= {name: " ".join(words).partition("=")[2] or words[-1] for name, words in by_setting(flags)}
    named = [settings[name] for name in ("trainer.logger.class_path", LOGGER) if isinstance(settings.get(name), str)]
    chosen = loggers.places(named[-1]) if named else {}
    own = {name.rpartition(".")[2] for name in settings if name.startswith(f"{LOGGER}.")}
    return [] if own & {"save_dir", *chosen} else [f"--{LOGGER}.{name}={place}" for name, place in chosen.items()]


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


def _sets(content: Any, key: str | None, flags: list[str]) -> bool:
    """Whether a file, and no flag, sets the key that an error is about."""
    if key is None:
        return False
    name, waiting = key.rpartition(".")[2], [content]
    if any(flag.partition("=")[0].rpartition(".")[2].lstrip("-") == name for flag in flags):
        return False
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if name in value:
                return True
            waiting += value.values()
    return False


def classes_of(contents: list[dict[str, Any]], flags: list[str]) -> dict[str, str]:
    """Key -> the class that files and flags give it last."""
    classes = {}
    for content in contents:
        for name, value in flat(content).items():
            if isinstance(value, str) and name.endswith(".class_path"):
                classes[name.removesuffix(".class_path")] = value
    typed_here = (flag.removeprefix("--").partition("=") for flag in flags)
    return classes | {key: path for key, _, path in typed_here if key in CLASSES}
