"""`python -m pipeline COMMAND`: a parser made of the files in commands/, and what runs one of them."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import warnings
from types import ModuleType

from pipeline.cli import commands
from pipeline.cli.arguments import Parser, split_arguments
from pipeline.errors import UserError
from pipeline.version import __version__


def command_modules() -> dict[str, ModuleType]:
    """The command of each file in commands/, by name: try_.py is `try`, verify_resume.py is `verify-resume`."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    return {
        name.rstrip("_").replace("_", "-"): importlib.import_module(f"{commands.__name__}.{name}") for name in names
    }


def parser() -> Parser:
    """The variables of the Makefile as flags; all other flags go to the configuration."""
    top = Parser(
        prog="python -m pipeline",
        epilog="python -m pipeline COMMAND --help lists the flags of a command; `make help` the same as variables of "
        "make.",
    )
    top.add_argument("--version", action="version", version=__version__)
    top.register("type", None, str)  # its one value is the command with all that follows
    choices = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in command_modules().items():
        command = choices.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return top


def main(args: list[str]) -> None:
    """Runs one command.

    Raises:
        UserError: whatever the user can put right.
    """
    _quiet()
    options, flags = parser().parse_known_args(split_arguments(args))
    if "overrides" in options:
        options.overrides = tuple(flags)
    elif flags:
        raise UserError(
            f"{options.command} does not know the flag {flags[0]}; see python -m pipeline {options.command} --help."
        )
    from pipeline.training import run_folder  # torch and Lightning take seconds, so only now

    try:
        options.run(options)
    finally:
        run_folder.release()


def _quiet() -> None:
    """Only what a user can act on: the tips of libraries drown the metrics."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*isn't.*leaf.*", ".*litlogger.*", ".*LightningCLI's args.*"):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", message=".*Checkpoint directory.*exists and is not empty.*")
    warnings.filterwarnings(
        "ignore", message=".*resuming from a checkpoint that ended before.*"
    )  # the sampler is exact
    warnings.filterwarnings("ignore", message=".*val_check_interval.*|.*max_epochs.*|.*sync_dist=True.*")
    warnings.filterwarnings("ignore", category=FutureWarning)
