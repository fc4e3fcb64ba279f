"""Flags and commands in messages as the user types them: OUT=runs/a behind make, --out runs/a on the command line."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FRONT_END = "PIPELINE_FRONT_END"  # the Makefile sets it
SWITCHES = ("resume", "overwrite")
VARIABLES = (  # flags that are variables of the Makefile
    *("model", "corpus", "task", "arm", "seed", "data", "from", "teacher", "out", "resume", "overwrite"),
    *("seeds", "shots", "name", "kind", "models", "tasks", "arms", "prompt", "word", "repo", "recipes"),
)


def under_make() -> bool:
    return os.environ.get(FRONT_END) == "make"


def flag(name: str, value: Any = None) -> str:
    """A flag by its name, with a value if there is one: `flag("out")`, `flag("seed", 3)`, `flag("resume")`."""
    if under_make():
        given = "1" if name in SWITCHES else "" if value is None else shlex.quote(str(value))
        return f"{name.upper()}={given}"
    return f"--{name}" + ("" if value is None else f" {shlex.quote(str(value))}")


def shown(text: str) -> str:
    """A message of a parser: flags that are variables of make are named as such behind make."""
    if not under_make():
        return text
    known = {f"--{name}": name.upper() for name in VARIABLES}
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", lambda found: known.get(found[0], found[0]), text)


def setting(name: str, value: Any) -> str:
    """A key of the configuration with its value: `setting("data.length", 64)`."""
    return settings({name: value})


def settings(values: Mapping[str, Any]) -> str:
    """Several of these."""
    return further(*(f"--{name}={'null' if value is None else value}" for name, value in values.items()))


def further(*flags: str) -> str:
    """Flags that are no variables of make."""
    text = shlex.join(flags)
    return f"ARGS={shlex.quote(text)}" if under_make() else text


def command(name: str, /, *flags: str, **options: Any) -> str:
    """A whole command; options of None or False are left out. `from_` is the flag `from`.

    Args:
        flags: further ones, as they are on the command line.
    """
    given = [
        flag(option.rstrip("_"), None if value is True else value)
        for option, value in options.items()
        if value is not None and value is not False
    ]
    return " ".join([f"{'make' if under_make() else program()} {name}", *given, *([further(*flags)] if flags else [])])


def line(name: str, /, *flags: str, **options: Any) -> str:
    """A whole command as a line of a shell, to run it again elsewhere, whatever it was called by here; options that are
    empty are left out."""
    given = [f"--{option.rstrip('_')}={value}" for option, value in options.items() if value]
    return shlex.join(["python", "-m", "pipeline", name, *given, *flags])


def program() -> str:
    """How this program was called."""
    name = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    return "pretrain-finetune" if name.startswith("pretrain-finetune") else "python -m pipeline"
