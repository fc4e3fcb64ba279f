"""`completion`: the script by which a shell completes commands and flags."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser

HELP = "a script for tab completion in bash, zsh or tcsh"
SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shell", choices=SHELLS, help='as in: eval "$(pretrain-finetune completion bash)"')


def run(options: argparse.Namespace) -> None:
    import shtab

    from pipeline.cli.parser import parser

    top = parser()
    top.prog = "pretrain-finetune"  # a shell completes a program, not `python -m`
    print(shtab.complete(top, options.shell))
