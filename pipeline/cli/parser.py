"""`python -m pipeline COMMAND`: a parser made of the files in commands/, and what runs one of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

from pipeline.cli import commands
from pipeline.cli.arguments import Implied, Parser, add_common, split_arguments
from pipeline.cli.short_names import in_full, overrides
from pipeline.console import typed
from pipeline.console.messages import Level, set_level
from pipeline.console.similar import did_you_mean
from pipeline.errors import UserError
from pipeline.version import __version__
from tasks.discovery import modules_of


def command_modules() -> dict[str, ModuleType]:
    """The command of each file in commands/, by name: try_.py is `try`, verify_resume.py is `verify-resume`."""
    modules = {module.__name__.rpartition(".")[2]: module for module in modules_of(commands.__name__)}
    return {name.rstrip("_").replace("_", "-"): module for name, module in sorted(modules.items())}


def parser() -> Parser:
    """The variables of the Makefile as flags; all other flags go to the configuration."""
    top = Parser(
        prog=typed.program(),
        description="Pretrain small language models on raw text, fine-tune them, and see what pretraining gained.",
        epilog=f"{typed.program()} COMMAND --help lists the flags of a command, `make help` the variables of make.",
    )
    top.add_argument("--version", action="version", version=__version__, help="the version")
    top.register("type", None, str)  # its one value is the command with all that follows
    choices = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in command_modules().items():
        command = choices.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        add_common(command)
        command.set_defaults(run=module.run, parser=command)
    return top


def main(args: list[str]) -> None:
    """Runs one command.

    Raises:
        UserError: whatever the user can put right.
    """
    if "--verbose" not in args:
        _quiet()
    options, flags = parser().parse_known_args(help_last(split_arguments(args)))
    if options.quiet and options.verbose:
        raise UserError("--quiet and --verbose say the opposite; leave one of them out.")
    set_level(Level.QUIET if options.quiet else Level.VERBOSE if options.verbose else Level.NORMAL)
    if isinstance(options.__dict__.get("model"), Implied) and isinstance(options.__dict__.get("encoder"), Path):
        from pipeline.cli.encoder_folders import implied_model

        options.model = implied_model(options.encoder, options.model)
    if "overrides" in options:
        options.overrides = overrides(getattr(options, "settings", ()), list(map(in_full, flags)))
    elif flags:
        name = flags[0].partition("=")[0]
        meant = did_you_mean(name, options.parser.flags()) if name.startswith("-") else ""
        what = "the flag" if name.startswith("-") else "what is behind its flags:"
        raise UserError(f"{options.command} does not know {what} {flags[0]}.{meant} See {options.parser.prog} --help.")
    from pipeline.training import run_folder  # torch takes seconds, so only now

    try:
        options.run(options)
    finally:
        run_folder.release()


def help_last(args: list[str]) -> list[str]:
    """--help behind all other flags of a command, whose settings it lists."""
    help_flags = [arg for arg in args[1:] if arg in ("-h", "--help")]
    return [*(arg for arg in args if arg not in help_flags), help_flags[0]] if help_flags else args


def _quiet() -> None:
    """Only what a user can act on: the tips of libraries drown the metrics."""
    for message in (
        ".*does not have many workers.*",
        ".*isn't.*leaf.*",
        ".*litlogger.*",
        ".*smaller than the logging interval.*",
        ".*LightningCLI's args.*",
        "Glyph .* missing from font.*",  # of a plot, once for each character
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*resuming from a checkpoint that ended before.*",  # the sampler is exact
        ".*val_check_interval.*|.*max_epochs.*|.*sync_dist=True.*",
    ):
        warnings.filterwarnings("ignore", message=message)
    warnings.filterwarnings("ignore", category=FutureWarning)
