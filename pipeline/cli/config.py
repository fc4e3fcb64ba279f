"""YAML files and flags -> the configuration of a run. LightningCLI parses (`run=False`)."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from pydoc import locate
from typing import Any, Literal, get_args

import torch
import yaml
from jsonargparse import ArgumentError
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from pipeline import former_names
from pipeline.cli.continued import TEACHER, check_class, check_kept, kept_settings, kept_tokenizer, student_settings
from pipeline.cli.encoder_folders import (
    begins_anew,
    counts,
    encoder_folder,
    encoder_settings,
    made_in,
    tokenizer_settings,
)
from pipeline.cli.parse_errors import key_in, plain, sentence
from pipeline.cli.validate import check_asked, check_settings
from pipeline.console import typed
from pipeline.console.messages import Level, inform, level
from pipeline.errors import UserError
from pipeline.presets import (
    CLASSES,
    CONFIGS,
    COUNTING,
    FROZEN,
    SHARED,
    content_of,
    flat,
    known,
    named_config,
    task_file,
    trained_task,
    unknown,
)
from pipeline.storage.paths import path_of
from pipeline.tracking.wandb import WandbOptions
from pipeline.tracking.words_seen import Points
from pipeline.training import loggers
from pipeline.training.configuration import Configuration
from pipeline.training.corpus_data import OF_TASK, CorpusData
from pipeline.training.counting import Counting
from pipeline.training.finetuning import FineTuning
from pipeline.training.from_scratch import FromScratch
from pipeline.training.hardware import best_precision, prepare_nodes, set_rank_of_node
from pipeline.training.naive_bayes import NaiveBayes
from pipeline.training.pretraining import Pretraining
from pipeline.training.requests import (
    OF_STEPS,
    OF_UPDATES,
    CorpusRequest,
    FineTuneRequest,
    PretrainRequest,
    by_setting,
    overrides_of,
    settings_in,
)
from pipeline.training.task_data import TaskData

PRECISION = "auto: bf16-mixed where it is native, else 16-mixed on a CUDA GPU and 32-true on a processor"
COMPILE = "compile the Transformer blocks (torch.compile)"
RECOMPUTE = "keep less in memory, and compute the Transformer blocks twice"
LOG_TEXT = "texts of local files may go to Weights & Biases"
SAVE_AT_WORDS = "save an encoder folder at these numbers of words seen too; babylm: 1M, 2M, ..., 10M, 20M, ..."
PRECISIONS = Literal["auto", "bf16-mixed", "16-mixed", "32-true"]


def add_computing(parser: Any) -> None:
    """What both stages have: how a run computes, which changes no result but by rounding."""
    parser.add_argument("--precision", type=PRECISIONS, required=True, help=PRECISION)
    parser.add_argument("--compile", type=bool, default=False, help=COMPILE)
    parser.add_argument("--activation_checkpointing", type=bool, default=False, help=RECOMPUTE)


class CLI(LightningCLI):
    """Parses; the trainer is made later, when the data are known."""

    parser_class: type[LightningArgumentParser] = LightningArgumentParser

    def __init__(self, model: type, data: type, args: list[str]) -> None:
        super().__init__(
            model,
            data,
            run=False,
            args=args,
            save_config_callback=None,
            seed_everything_default=False,
            auto_configure_optimizers=False,
            parser_class=self.parser_class,
            parser_kwargs={
                "exit_on_error": False,
                "prog": "python -m pipeline",
                "default_env": False,
                "allow_abbrev": False,
            },
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        try:
            super().parse_arguments(parser, args)
        except ArgumentError as error:
            error.keys = [action.dest for action in parser._actions]  # type: ignore[attr-defined]
            raise

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        add_computing(parser)
        parser.add_argument("--validate_every", type=int, required=True, help="optimizer steps between validations")
        parser.add_argument("--save_at_words", type=Points, default=None, help=SAVE_AT_WORDS)
        parser.link_arguments("model.objective", "data.objective", apply_on="instantiate")
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)
        parser.add_class_arguments(WandbOptions, "wandb")

    def before_instantiate_classes(self) -> None:
        if self.config.trainer.precision is not None:
            raise UserError(f"Set precision ({', '.join(get_args(PRECISIONS))}), not trainer.precision.")
        trainer, precision = self.config.trainer, self.config.precision
        if trainer.accelerator == "auto" and not torch.cuda.is_available():
            trainer.accelerator = "cpu"  # Lightning would take Apple's GPU, which has no float64
        trainer.precision = best_precision(trainer.accelerator) if precision == "auto" else precision
        if precision == "16-mixed" and trainer.accelerator not in ("gpu", "cuda", "auto"):
            raise UserError(
                f"precision 16-mixed needs a CUDA GPU, not {trainer.accelerator}; set bf16-mixed or 32-true."
            )
        set_rank_of_node(trainer.num_nodes)

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


class _WithoutEncoder(LightningArgumentParser):
    """FineTuning takes the folder of its encoder for `Trainer.fit` alone: commands have FROM= for it."""

    def add_class_arguments(self, theclass: type, *args: Any, **options: Any) -> list[str]:
        skip = {"skip": {"encoder"}} if theclass is FineTuning else {}
        return super().add_class_arguments(theclass, *args, **options, **skip)


class CountingCLI(CLI):
    """Fine-tuning by counting."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        add_computing(parser)
        parser.add_argument("--log_text", type=bool, required=True, help=LOG_TEXT)
        parser.add_class_arguments(WandbOptions, "wandb")


class FineTuneCLI(CountingCLI):
    """Fine-tuning in steps."""

    parser_class = _WithoutEncoder

    def add_arguments_to_parser(self, parser: Any) -> None:
        super().add_arguments_to_parser(parser)
        parser.add_argument("--validations", type=int, required=True, help="how often the validation part is scored")
        parser.add_argument(
            "--patience",
            type=int,
            required=True,
            help="stop after this many validations without improvement; 0: never",
        )


LOGGER = "trainer.logger"
CLASS_OF_OTHERS = re.compile(r"Problem with given class_path '(lightning[^']+)'")  # callbacks, plugins, ...


def parse(
    model: type, data: type, files: list[Path], flags: list[str], cli_class: type[CLI] | None = None
) -> Configuration:
    """Configuration files in order, then flags.

    Raises:
        UserError: an unknown key, a wrong type or a value out of range, named, with the file that it is in.
    """
    flags = former_names.flags(flags)
    given = {file: content_of(file) for file in [*files, *files_in(flags)]}
    args = [part for file in files for part in ("--config", str(file))] + [*flags, *places_of_logger(given, flags)]
    try:
        cli = (cli_class or CLI)(model, data, args)
    except RecursionError:
        raise UserError("The configuration is nested too deeply.") from None
    except (ArgumentError, TypeError, ValueError, OSError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            if isinstance(cause, ModuleNotFoundError) and (named := CLASS_OF_OTHERS.search(str(error))):
                raise UserError(f"{named[1]} needs a package: {str(cause).splitlines()[0]}") from None
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
    resolved = yaml.safe_load(cli.parser.dump(cli.config, skip_none=False))
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


def corpus_config(corpus: str, data: str | None, model: str) -> tuple[list[Path], list[str]]:
    """CORPUS= and DATA= -> configuration files and flags; `corpora/NAME/MODEL.yaml` is what a model takes for it.

    Raises:
        UserError: no preset and no path, or two paths.
    """
    if corpus.startswith(OF_TASK):
        task = corpus.removeprefix(OF_TASK)
        task_file(task, kind="translation" if reads_translations(model) else None, data=data)
        return [], [f"--data.task={task}", *([] if data is None else ["--data.files", data])]
    preset = named_config("corpora", corpus)
    if preset is None and not _is_path(corpus):
        raise UserError(f"{unknown('corpus', corpus, 'corpora')} A path would do too, or task:NAME.")
    if preset is None and data is not None:
        raise UserError(
            f"{typed.flag('corpus', corpus)} and {typed.flag('data', data)} both say where the text is: leave one out. "
            f"{typed.flag('data')} takes the place "
            f"of the hub's text of a preset ({known('corpora')})."
        )
    own = named_config(f"corpora/{corpus}", model)
    files = [file for file in (preset, own) if file]
    location = data if data is not None else None if preset else corpus
    if location is None:
        return files, []
    return files, ["--data.files", location, "--data.hub=null", "--data.sample_documents=null"]


def reads_translations(model: str) -> bool:
    """Whether MODEL, a preset, is pretrained on texts and their translations."""
    file = named_config("pretrain", model)
    objective = None if file is None else locate(classes_of([content_of(file)], []).get("model.objective", ""))
    return getattr(objective, "parallel", False)


def _is_path(corpus: str) -> bool:
    path = Path(corpus)
    return bool(corpus) and ("/" in corpus or any(c in corpus for c in "*?[") or path.exists() or bool(path.suffix))


def pretraining(request: CorpusRequest) -> Configuration:
    """A model's way of pretraining on a corpus; nothing is built or read yet.

    Raises:
        UserError: there is no such model or corpus, or a setting is not valid.
    """
    model_file = named_config("pretrain", request.model)
    if model_file is None:
        raise UserError(unknown("model", request.model, "pretrain"))
    corpus_files, corpus_flags = corpus_config(request.corpus, request.data, request.model)
    seeds = [f"--model.seed={request.seed}", f"--data.seed={request.seed}"]
    files = [CONFIGS / "base.yaml", model_file, *corpus_files]
    flags = [*corpus_flags, *seeds, *request.overrides]
    module = module_for(files, flags)
    if not isinstance(request, PretrainRequest) or (request.encoder is None and request.teacher is None):
        configuration = parse(module, CorpusData, files, flags)
        check_asked(configuration.encoder_class, configuration.module.objective)
        return configuration
    if module is Counting:
        raise UserError(f"{request.model} counts its text anew: leave FROM and TEACHER out.")
    taught = {} if request.teacher is None else {TEACHER: made_in(request.teacher)}
    configuration = parse(module, CorpusData, files, [*overrides_of(taught), *flags])
    if request.encoder is not None:
        folder = encoder_folder(request.model, request.encoder)
        check_class(configuration, folder)
        taken = fixed = kept_settings(folder, configuration.module.objective)
        why = f"a run that goes on from {folder} keeps its tokenizer and sizes"
    else:
        folder = taught[TEACHER]
        taken, fixed = student_settings(folder, configuration, request.overrides), kept_tokenizer(folder)
        why = f"a student of {folder} keeps its tokenizer"
    flags = [*corpus_flags, *overrides_of({**taught, **taken}), *seeds, *request.overrides]
    configuration = parse(module, CorpusData, files, flags)
    check_asked(configuration.encoder_class, configuration.module.objective)
    check_kept(configuration, fixed, request.overrides, folder, why)
    if taught and configuration.module.distillation is None:
        teacher = typed.flag("teacher", folder)
        raise UserError(f"model.distillation is null, and {teacher} sets it: leave one of them out.")
    return configuration


def module_for(files: Sequence[Path], flags: Sequence[str]) -> type[Pretraining]:
    """Training, or counting, as the encoder learns that files and flags name."""
    named = classes_of([content_of(file) for file in [*files, *files_in([*flags])]], [*flags])
    encoder: Any = locate(named.get("model.encoder", ""))
    return Counting if getattr(encoder, "learning", None) == "counting" else Pretraining


def check_updates(request: CorpusRequest) -> None:
    """Raises: UserError, a setting of updates is typed for a model that counts."""
    typed_here = settings_in(request.overrides)
    if counts(request.model) and (useless := [name for name in OF_UPDATES if name in typed_here]):
        raise UserError(f"{useless[0]} has no effect: {request.model} counts the corpus once. Leave it out.")


def check_steps(request: CorpusRequest) -> None:
    """Raises: UserError, the model has no steps."""
    if isinstance(pretraining(request).module, Counting):
        raise UserError(f"{request.model} counts: it has no steps that could be resumed or profiled.")


def finetuning(request: FineTuneRequest) -> Configuration:
    """Fine-tuning on a task; nothing is built or read yet.

    Raises:
        UserError: there is no such task, or a setting is not valid.
    """
    file = task_file(request.task)
    trained_task(request.task)
    seeds = [f"--model.seed={request.seed}", f"--data.seed={request.seed}"]
    data = [] if request.data is None else ["--data.files", request.data]
    flags = [*data, *seeds, f"--model.arm={request.arm}", *request.overrides]
    fresh = begins_anew(request.model, request.encoder, request.arm)
    if TEACHER in settings_in(request.overrides) and (fresh or counts(request.model)):
        raise UserError(
            "A student needs the tokenizer of its teacher, and is trained in steps: leave the teacher out, or set "
            f"{typed.flag('from')} to an encoder with that tokenizer."
        )
    if counts(request.model):
        check_counting(request)
        settings = encoder_settings(request.model, request.encoder)
        flags = [*overrides_of(settings), *flags]
        return parse(NaiveBayes, TaskData, [COUNTING, file], flags, cli_class=CountingCLI)
    files = [SHARED[0], file, *SHARED[1:]] if request.arm in FROZEN else [SHARED[0], file]
    if fresh:
        settings = encoder_settings(request.model, None) | tokenizer_settings(request.model)
        own = named_config(f"tasks/{file.stem}", request.model)
        settings |= {} if own is None else flat(content_of(own))
        flags = [*overrides_of(settings), *flags]
        return parse(FromScratch, TaskData, files, flags, cli_class=FineTuneCLI)
    return parse(FineTuning, TaskData, files, flags, cli_class=FineTuneCLI)


def check_counting(request: FineTuneRequest) -> None:
    """Raises: UserError, the arm or a setting means nothing to a model that counts."""
    if request.arm != "full":
        raise UserError(
            f"{request.model} counts the texts of the task, and neither weights nor vectors of pretraining: there is "
            f"nothing that {typed.flag('arm', request.arm)} could leave out or freeze."
        )
    if useless := sorted(name for name in settings_in(request.overrides) if name.startswith(OF_STEPS)):
        raise UserError(f"{useless[0]} has no effect: {request.model} counts the texts once, on the processor.")
