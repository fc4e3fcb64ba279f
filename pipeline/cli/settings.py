"""The settings of a stage with their defaults, for --help."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import lightning

from pipeline.cli.config import finetuning, pretraining
from pipeline.cli.short_names import Stage
from pipeline.console import typed
from pipeline.console.messages import WIDTH
from pipeline.experiments.feasible import is_counting
from pipeline.presets.files import flat
from pipeline.training.requests import OF_STEPS, CorpusRequest, FineTuneRequest

COLUMN = 52  # where descriptions begin
# Settings that other flags set, or that a task's file describes.
HIDDEN = ("seed_everything", "model.seed", "data.seed", "model.arm", "trainer.precision", "data.task.init_args.")
CHOOSING = ("model", "corpus", "task", "arm")
SHOWN = ("trainer.max_steps", "trainer.accumulate_grad_batches")  # also where they are as Lightning has them
OTHERS = "    and every other argument of lightning.Trainer: --trainer.num_nodes=2, --trainer.strategy=ddp, ..."


def settings_of(stage: Stage, given: argparse.Namespace | None = None) -> str:
    """A line for each setting, as a flag with its default, by section.

    Args:
        given: model, corpus, task and arm whose defaults are listed, where they are given.
    """
    chosen = {
        name: value
        for name, value in vars(given or argparse.Namespace()).items()
        if name in CHOOSING and value is not None
    }
    if stage == "pretrain":
        corpus = CorpusRequest(**{name: value for name, value in chosen.items() if name in ("model", "corpus")})
        configuration = pretraining(corpus)
        about = [typed.flag("model", corpus.model), typed.flag("corpus", corpus.corpus)]
    else:
        tuning = FineTuneRequest(**{name: value for name, value in chosen.items() if name in ("model", "task", "arm")})
        configuration = finetuning(tuning)
        about = [typed.flag("model", tuning.model), typed.flag("task", tuning.task), typed.flag("arm", tuning.arm)]
    sections: dict[str, list[str]] = {}
    hidden = HIDDEN if stage == "pretrain" or not is_counting(chosen.get("model", "")) else (*HIDDEN, *OF_STEPS)
    for name, value in flat(configuration.resolved).items():
        if not name.startswith(hidden) and not _is_lightnings(name, value):
            flag = name.removesuffix(".class_path")
            section = sections.setdefault(flag.rpartition(".")[0].removesuffix(".init_args"), [])
            section += entry(flag, value, configuration.descriptions.get(name, ""))
    sections["trainer"].append(OTHERS)
    parts = [f"  {section or 'run'}:\n" + "\n".join(lines) for section, lines in sections.items()]
    return "\n\n".join([f"settings, with their defaults for {' '.join(about)}:", *parts])


def _is_lightnings(name: str, value: Any) -> bool:
    """Whether a setting of the trainer is as Lightning has it."""
    section, _, key = name.partition(".")
    arguments = inspect.signature(lightning.Trainer.__init__).parameters
    return section == "trainer" and name not in SHOWN and (key not in arguments or arguments[key].default == value)


def entry(flag: str, value: Any, description: str) -> Iterator[str]:
    """`--flag=value`, and the first sentence of its description beside it."""
    shown = f"    --{flag}={value if isinstance(value, str) else json.dumps(value)}"
    sentence = re.split(r"\.?\s+Default: |\. (?=[A-Z])", description)[0].rstrip(".")
    first, *rest = textwrap.wrap(sentence, WIDTH - COLUMN) or [""]
    if first and len(shown) >= COLUMN:
        yield shown
        shown = ""
    yield f"{shown:<{COLUMN}}{first}".rstrip()
    yield from (" " * COLUMN + line for line in rest)
