"""The command line: `python -m pipeline VERB`, the variables of the Makefile as flags."""

from __future__ import annotations

import argparse
import logging
import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pipeline.cli.new_task import KINDS
from pipeline.errors import UserError
from pipeline.presets import ARMS, INPUTS
from pipeline.storage.paths import path_of
from pipeline.version import __version__

FLAGLESS = ("import-elmo", "lm-eval", "new-task", "predict", "sync", "zeroshot")  # nothing to configure


LARGEST = 2**32 - 1  # that seeds may be


class Parser(argparse.ArgumentParser):
    """A parser that takes neither abbreviations nor empty values; its errors are plain sentences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.register("type", None, filled)

    def error(self, message: str) -> NoReturn:
        """Raises: UserError."""
        if argument := re.fullmatch(r"argument ([^:]+): (.*)", message, flags=re.DOTALL):
            flag, said = argument.groups()
            if choice := re.fullmatch(r"invalid choice: (.+) \(choose from (.+)\)", said, flags=re.DOTALL):
                wrong, known = (part.replace("'", "") for part in choice.groups())
                said = f"is {wrong}; it must be one of {known}"
            message = f"{flag} {said}"
        raise UserError(f"{message[0].upper()}{message[1:]}. See {self.prog} --help.")


def whole_number(text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and least <= int(text) <= LARGEST):
        raise argparse.ArgumentTypeError(f"is {text or 'empty'}; it must be a whole number from {least} to {LARGEST:,}")
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


def filled(text: str) -> str:
    """A value that is not empty: as a path it would be the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give it a value, or leave it out")
    return text


def place(text: str) -> Path:
    """A path that is not empty."""
    return path_of(filled(text))


def arguments(given: list[str]) -> list[str]:
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


def parser() -> Parser:
    """The variables of the Makefile as flags; all other flags go to the configuration."""
    top = Parser(
        prog="python -m pipeline",
        epilog="python -m pipeline VERB --help lists the flags of a verb; `make help` the same as variables of make.",
    )
    top.add_argument("--version", action="version", version=__version__)
    top.register("type", None, str)  # its one value is the verb with all that follows
    verb = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    shared = Parser(add_help=False)
    shared.add_argument("--model", default="bert", help="bert, gpt or elmo")
    shared.add_argument("--data", default=None, help="local folder, file or pattern instead of a hub name")
    shared.add_argument("--seed", type=natural, default=0)
    writing = Parser(add_help=False)
    writing.add_argument("--out", type=place, default=None, help="run folder")
    writing.add_argument("--overwrite", action="store_true", help="start anew over a run in the run folder")
    resuming = Parser(add_help=False)
    resuming.add_argument("--resume", action="store_true", help="go on with the run in the run folder")
    pretraining = Parser(add_help=False)
    pretraining.add_argument("--corpus", default="sample", help="a name in configs/corpora or a path")
    rest = "further flags set the configuration: --trainer.max_steps=100, --data.batch_size=16, ..."
    verb.add_parser("data", parents=[shared, pretraining], help="build the token store and report on it", epilog=rest)
    training = [shared, writing, resuming]
    verb.add_parser("pretrain", parents=[*training, pretraining], help="pretrain an encoder on raw text", epilog=rest)
    verb.add_parser(
        "profile", parents=[shared, writing, pretraining], help="where the time of a step goes", epilog=rest
    )
    verb.add_parser(
        "audit", parents=[shared, pretraining], help="check masks, labels and leaks of a model", epilog=rest
    )
    trying = verb.add_parser("try", parents=[shared, pretraining], help="look at what an encoder knows", epilog=rest)
    trying.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    trying.add_argument("--prompt", default=None, help="text to go on with (GPT) or with [MASK] to fill (BERT)")
    trying.add_argument("--word", default=None, help="word whose neighbours are shown (ELMo)")
    trying.add_argument("--score", action="store_true", help="show the log-probability of each token of the prompt")
    trying.add_argument("--tokens", type=positive, default=60, help="most new tokens")
    trying.add_argument("--temperature", type=number, default=0.8, help="0 takes the likeliest token each time")
    trying.add_argument("--top-k", type=natural, default=0, help="draw from the k likeliest tokens; 0: all")
    trying.add_argument("--top-p", type=number, default=0.95, help="draw from the fewest tokens with this share")
    evaluation = verb.add_parser(
        "evaluate", parents=[shared, pretraining], help="losses and bits per byte of an encoder on a text", epilog=rest
    )
    evaluation.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    importing = verb.add_parser("import-elmo", help="published ELMo weights -> an encoder folder")
    importing.add_argument("--options", type=place, required=True, help="options.json")
    importing.add_argument("--weights", type=place, required=True, help="weights.hdf5")
    importing.add_argument("--out", type=place, required=True, help="encoder folder to write")
    importing.add_argument("--state", choices=("reset", "carry"), default="reset", help="begin each text from zero?")
    tuning = verb.add_parser("finetune", parents=training, help="fine-tune an encoder on a task", epilog=rest)
    tuning.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    tuning.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    tuning.add_argument("--arm", choices=ARMS, default="full")
    tuning.add_argument("--seeds", type=natural, default=0, help="run so many seeds, and as many of scratch")
    zero = verb.add_parser("zeroshot", parents=training, help="ask a pretrained encoder by prompts, without training")
    zero.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    zero.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    zero.add_argument("--shots", default="0", help="solved examples in front; several numbers give a curve: 0,1,4")
    zero.add_argument("--limit", type=natural, default=0, help="ask only so many rows")
    zero.add_argument("--log-text", action="store_true", help="texts of DATA may go to Weights & Biases")
    zero.add_argument("--unigram", default=None, help="texts whose words' frequencies alone are a baseline")
    verification = verb.add_parser(
        "verify-resume",
        parents=[shared, writing, pretraining],
        help="does a killed run end as an uninterrupted one?",
        epilog=rest,
    )
    verification.add_argument("--task", default="sentiment", help="what the encoder is fine-tuned on")
    value = verb.add_parser("worth", parents=[shared, writing], help="zero-shot beside fine-tunes on 10 to 1,000 rows")
    value.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    value.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    value.add_argument("--seeds", type=positive, default=3, help="fine-tunes for each number of rows")
    harness = verb.add_parser("lm-eval", help="run lm-evaluation-harness on an encoder (extra lm-eval)")
    harness.add_argument("--tasks", required=True, help="lm-eval's names, with commas between them")
    harness.add_argument("--encoder", type=place, required=True, help="encoder folder: GPT, BERT or ELMo")
    harness.add_argument("--limit", type=natural, default=0, help="ask only so many items of each")
    harness.add_argument("--include-path", type=place, default=None, help="folder with YAML files of further tasks")
    answers = verb.add_parser("predict", help="labels or tags of new texts, as JSON lines")
    answers.add_argument("--model", type=place, required=True, help="model folder of a fine-tune")
    answers.add_argument("--input", default="-", help="file, or - for standard input")
    answers.add_argument("--format", choices=INPUTS, default=None, help="of the input; by its name")
    answers.add_argument("--out", type=place, default=None, help="file; standard output otherwise")
    answers.add_argument("--batch-size", type=positive, default=64)
    sweep = verb.add_parser(
        "sweep", parents=[shared, pretraining], help="a sweep of Weights & Biases over one stage", epilog=rest
    )
    sweep.add_argument("--name", default="finetune", help="a name in configs/sweeps")
    sweep.add_argument("--task", default="sentiment", help="a name in configs/tasks or a path to a YAML file")
    sweep.add_argument("--from", dest="encoder", type=place, default=None, help="encoder folder")
    sweep.add_argument("--count", type=natural, default=20, help="runs here; 0: until it is stopped")
    uploading = verb.add_parser("sync", help="upload offline runs to Weights & Biases")
    uploading.add_argument("--folder", type=place, default=None, help="where runs are; runs and results otherwise")
    new = verb.add_parser("new-task", help="the YAML file of a new data set, and a test of it")
    new.add_argument("--name", required=True)
    new.add_argument("--kind", choices=tuple(KINDS), default="sentence")
    grid = verb.add_parser("compare", help="models x tasks x arms x seeds in one table")
    grid.add_argument("--name", default="sample", help="a name in configs/compare or a path to a YAML file")
    grid.add_argument("--data", default=None, help="folder that holds the data of the tasks")
    grid.add_argument("--from", dest="encoders", default=None, help="encoder folders, with {model} in place of a name")
    grid.add_argument("--out", type=place, default=None)
    for field in ("models", "tasks", "arms"):
        grid.add_argument(f"--{field}", default=None, help="some of them, separated by spaces")
    grid.add_argument("--seeds", type=natural, default=0)
    grid.add_argument("--overwrite", action="store_true", help="run what is finished too")
    return top


def main(args: list[str]) -> None:
    """Runs one verb.

    Raises:
        UserError: whatever the user can put right.
    """
    options, flags = parser().parse_known_args(arguments(args))
    if flags and options.verb in FLAGLESS:
        raise UserError(
            f"{options.verb} does not know the flag {flags[0]}; see python -m pipeline {options.verb} --help."
        )
    from pipeline.cli import (
        many,  # torch and Lightning take seconds, so only now
        verbs,
    )
    from pipeline.training import run_folder

    _quiet()
    several = options.verb == "finetune" and options.seeds
    verb: Callable[[argparse.Namespace, list[str]], None] = {
        "data": verbs.data,
        "pretrain": verbs.pretrain,
        "profile": verbs.profile,
        "finetune": many.several_seeds if several else verbs.finetune,
        "audit": verbs.audit,
        "try": verbs.try_out,
        "evaluate": verbs.evaluate,
        "import-elmo": verbs.import_elmo,
        "compare": many.compare,
        "predict": verbs.predict,
        "zeroshot": verbs.zeroshot,
        "lm-eval": verbs.lm_eval,
        "worth": many.worth,
        "new-task": verbs.make_task,
        "verify-resume": many.verify_resume,
        "sweep": verbs.sweep,
        "sync": verbs.sync,
    }[options.verb]
    try:
        verb(options, flags)
    finally:
        run_folder.release()


def _quiet() -> None:
    """Only what a user can act on: the tips of libraries drown the figures."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*isn't.*leaf.*", ".*litlogger.*", ".*LightningCLI's args.*"):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", message=".*Checkpoint directory.*exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*resuming from a checkpoint that ended before.*")  # FromStep is exact
    warnings.filterwarnings("ignore", message=".*val_check_interval.*|.*max_epochs.*|.*sync_dist=True.*")
    warnings.filterwarnings("ignore", category=FutureWarning)
