"""The settings of a stage with their defaults, for --help."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from pipeline.cli.arguments import Stage
from pipeline.cli.config import finetuning, pretraining
from pipeline.cli.validate import INSTEAD
from pipeline.training.requests import CorpusRequest, FineTuneRequest
from pipeline.training.resume import flat

WIDTH, VALUES = 118, 54


def settings_of(stage: Stage) -> str:
    """A line for each setting, as a flag with its default, by section."""
    request: CorpusRequest | FineTuneRequest = CorpusRequest() if stage == "pretrain" else FineTuneRequest()
    about = f"MODEL={request.model} "
    if isinstance(request, CorpusRequest):
        configuration, about = pretraining(request), f"{about}CORPUS={request.corpus}"
    else:
        configuration, about = finetuning(request), f"TASK={request.task} ARM={request.arm}"
    settings = flat(configuration.resolved)
    lines = [f"settings, and what they are with {about}:"]
    section = ""
    for name, value in sorted(settings.items(), key=lambda item: (item[0].rpartition(".")[0], item[0])):
        if name.removeprefix("trainer.") in INSTEAD or name in ("model.seed", "data.seed", "model.arm"):
            continue
        if name.rpartition(".")[0] != section:
            section = name.rpartition(".")[0]
            lines.append(f"\n  {section}:")
        lines += entry(name, value, configuration.descriptions.get(name, ""))
    return "\n".join(lines)


def entry(name: str, value: Any, description: str) -> Iterator[str]:
    shown = f"    --{name}={'null' if value is None else value}"
    if not description:
        yield shown
        return
    first, *others = textwrap.wrap(description, WIDTH - VALUES) or [""]
    if len(shown) >= VALUES:
        yield shown
        shown = ""
    yield f"{shown:<{VALUES}}{first}"
    yield from (" " * VALUES + line for line in others)
