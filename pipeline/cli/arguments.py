"""Arguments of commands: a parser whose errors are plain sentences, types of values, and the flags that many share."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pipeline.cli.short_names import Stage, add_short_names
from pipeline.console import typed
from pipeline.console.messages import WIDTH
from pipeline.console.similar import did_you_mean
from pipeline.errors import UserError
from pipeline.presets.files import DEFAULT_CORPUS, DEFAULT_MODEL, DEFAULT_TASK, LARGEST_SEED, known
from pipeline.storage.paths import path_of
from pipeline.tracking.words_seen import UNITS

COLUMN = 34  # where descriptions begin
INPUT, OUTPUT, SETTINGS, COMMON = "input", "output", "short names of settings", "messages"  # groups of flags
T = TypeVar("T")


class Formatter(argparse.HelpFormatter):
    """Help with the default of each flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=COLUMN, width=WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str:
        hidden = (argparse.SUPPRESS, None, False, ())
        shown = all(action.default is not value for value in hidden)  # 0 equals False
        text = action.help or ""
        return f"{text} [%(default)s]" if shown and not text.endswith("]") else text


class Help(argparse.Action):
    """--help, which comes last on the command line: the flags before it choose whose settings are listed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0, "default": argparse.SUPPRESS})

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.given = namespace
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that takes neither abbreviations nor empty values; its errors are plain sentences."""

    stage: Stage | None = None  # whose configuration further flags set: --help lists it
    given: argparse.Namespace | None = None  # the flags beside --help

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=Formatter, **options)
        self.register("type", None, filled)
        self.add_argument("-h", "--help", action=Help, help="this help")

    def group(self, title: str) -> Any:
        """The group of flags of that title."""
        found = [group for group in self._action_groups if group.title == title]
        return found[0] if found else self.add_argument_group(title)

    def flags(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raises: UserError."""
        message = re.sub(r"(--[a-z-]+)(/--[a-z-]+)+", r"\1", message)  # a flag is called by its first name
        if argument := re.fullmatch(r"argument ([^:]+): (.*)", message, flags=re.DOTALL):
            flag, problem = argument.groups()
            if choice := re.fullmatch(r"invalid choice: (.+) \(choose from (.+)\)", problem, flags=re.DOTALL):
                wrong, known = (part.replace("'", "") for part in choice.groups())
                if flag == "COMMAND":
                    meant = did_you_mean(wrong, known.split(", "))
                    raise UserError(f"There is no command {wrong}; there are {known}.{meant} {self._see()}")
                problem = f"is {wrong}; it must be one of {known}.{did_you_mean(wrong, known.split(', '))}".rstrip(".")
            message = f"{flag} {problem}"
        message = typed.shown(message)
        raise UserError(f"{message[0].upper()}{message[1:]}{'' if message.endswith('?') else '.'} {self._see()}")

    def _see(self) -> str:
        return "See make help." if typed.under_make() else f"See {self.prog} --help."

    def print_help(self, file: Any = None) -> None:
        super().print_help(file)
        if self.stage is not None:
            from pipeline.cli.settings import settings_of  # imports torch

            print(f"\n{settings_of(self.stage, self.given)}", file=file)


def whole_number(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= LARGEST_SEED):
        raise argparse.ArgumentTypeError(
            f"is {text or 'empty'}; it must be a whole number from {least} to {LARGEST_SEED:,}"
        )
    return int(text)


def natural(text: str) -> int:
    """A number of at least 0, and small enough for a seed."""
    return whole_number(text, least=0)


def positive(text: str) -> int:
    """A number of at least 1."""
    return whole_number(text, least=1)


def number(text: str) -> float:
    """A number with or without a point."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"is {text or 'empty'}; it must be a number") from None


def numbers_of_words(text: str) -> str:
    """`babylm`, or numbers as 1000,500k,2M; as the configuration has it."""
    if text == "babylm":
        return text
    parts = [re.fullmatch(r"([1-9]\d{0,11})([Mk]?)", part.strip()) for part in text.strip("[]").split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"is {text}; it must be babylm, or numbers of words as 1000,500k,2M")
    return str([int(part[1]) * UNITS[part[2]] for part in parts if part])


def filled(text: str) -> str:
    """A value that is not empty: as a path it would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give it a value, or leave it out")
    return text


def place(text: str) -> Path:
    """A path that is not empty."""
    return path_of(filled(text))


def split_arguments(given: list[str]) -> list[str]:
    """The command line; a last `--args=TEXT`, as the Makefile gives, is further flags in one text.

    They are split as a shell would, quotes and all, but nothing in them is expanded or run.

    Raises:
        UserError: a quote is not closed, or an argument is not valid UTF-8.
    """
    if given and given[-1].startswith("--args="):
        text = given[-1].removeprefix("--args=")
        try:
            given = [*given[:-1], *shlex.split(text)]
        except ValueError as error:
            raise UserError(f"ARGS cannot be split into flags: {str(error).lower()}.") from None
    for argument in given:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(f"The argument {argument!a} is not valid UTF-8; type or name it otherwise.") from None
    return given


# ---------------------------------------------------------------------- flags that many commands share


class Implied(str):
    """The value of a flag that was not given, where others may tell more."""


def add_model(parser: Parser) -> None:
    """See `encoder_folders.implied_model`."""
    group = parser.group(INPUT)
    about = f"one of {', '.join(known('pretrain'))} [{DEFAULT_MODEL}, or that of --from]"
    group.add_argument("--model", default=Implied(DEFAULT_MODEL), help=about)
    group.add_argument("--data", default=None, help="local folder, file or pattern instead of a hub name")
    group.add_argument("--seed", type=natural, default=0, help="of weights, order, masks and dropout")


def add_corpus(parser: Parser) -> None:
    about = "a name in configs/corpora, a path, or task:NAME, the training texts of a task"
    parser.group(INPUT).add_argument("--corpus", default=DEFAULT_CORPUS, help=about)


def add_task(parser: Parser, default: str | None = DEFAULT_TASK) -> None:
    """With None the command itself takes `DEFAULT_TASK` where no task is named."""
    about = "a name in configs/tasks, or a path to a YAML file"
    parser.group(INPUT).add_argument("--task", default=default, help=about if default else f"{about} [{DEFAULT_TASK}]")


ENCODER = "encoder folder, or a fine-tuned run [runs/pretrain/MODEL/encoder]"


def add_encoder(parser: Parser, about: str = ENCODER) -> None:
    parser.group(INPUT).add_argument(
        "--from",
        dest="encoder",
        type=place,
        default=None,
        help=about,
    )


def add_teacher(parser: Parser, about: str) -> None:
    parser.group(INPUT).add_argument("--teacher", type=place, default=None, help=about)


def add_out(parser: Parser) -> None:
    group = parser.group(OUTPUT)
    group.add_argument("--out", type=place, default=None, help="run folder [runs/COMMAND/NAME]")
    group.add_argument("--overwrite", action="store_true", help="start over in a run folder that holds a run")


def add_resume(parser: Parser) -> None:
    parser.group(OUTPUT).add_argument("--resume", action="store_true", help="continue the run in the run folder")


def add_overrides(parser: Parser, stage: Stage | None = None, *, only: Collection[str] | None = None) -> None:
    """Lets all other flags set the configuration: they arrive as `options.overrides`.

    Args:
        only: the short names that the command heeds; None: all of the stage.
    """
    parser.set_defaults(overrides=())
    parser.epilog = "Further flags set the configuration: --trainer.max_steps=100, --config FILE.yaml, ..."
    parser.stage = stage
    if stage is not None:
        whole = ("steps", "batch-size", "accumulate", "length", "vocab-size", "validate-every", "train-rows")
        numbers = ("epochs", "learning-rate", "warmup-share")
        kinds: dict[str, Callable[[str], Any]] = {**dict.fromkeys(whole, positive), **dict.fromkeys(numbers, number)}
        kinds |= {"warmup-steps": natural, "save-at-words": numbers_of_words}
        add_short_names(parser.group(SETTINGS), stage, kinds, only=only)


def add_common(parser: Parser) -> None:
    """Flags of every command."""
    group = parser.group(COMMON)
    group.add_argument("--quiet", action="store_true", help="results, warnings and errors only")
    group.add_argument("--verbose", action="store_true", help="also what libraries say, and where errors come from")


def request_of(kind: type[T], options: argparse.Namespace, **others: Any) -> T:
    """A request: its fields take the values of the flags of the same names."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{**{name: value for name, value in vars(options).items() if name in names}, **others})


def check_free(*files: Path | None) -> None:
    """Raises: UserError, one of the files to be written is there already, or cannot be."""
    from pipeline.training.run_folder import check_place

    for file in files:
        if file is None:
            continue
        if [other for other in files if other is not None].count(file) > 1:
            raise UserError(f"{file} is the name of two files to be written; give {typed.flag('out')} another ending.")
        check_place(file)
        if file.resolve().exists():  # `new/..` is there, before `new` is
            raise UserError(f"{file} is there already; choose another {typed.flag('out')}.")
