"""Typed requests for runs: commands make them from flags, experiments make them directly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pipeline.console import typed
from pipeline.presets.arms import ArmName
from pipeline.presets.files import DEFAULT_CORPUS, DEFAULT_MODEL, DEFAULT_TASK, flat

Overrides = tuple[str, ...]  # settings of the configuration as a user types them: --trainer.max_steps=100, ...
R = TypeVar("R", bound="RunRequest")
# Settings of training in steps, on devices: they mean nothing to a model that counts.
OF_UPDATES = (
    *("trainer.max_steps", "validate_every", "save_at_words"),
    *("trainer.accumulate_grad_batches", "trainer.gradient_clip_val"),
)
OF_STEPS = (
    *("model.optimization", "model.warmup_share", "model.recipe", "data.epochs", "data.batch_size"),
    *("validations", "patience", *OF_UPDATES),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy"),
)


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """The fields that all requests share.

    Args:
        data: local folder, file or pattern instead of a hub name.
        overrides: settings that replace those of the configuration files.
    """

    model: str = DEFAULT_MODEL
    data: str | None = None
    seed: int = 0
    overrides: Overrides = ()

    def override(self: R, settings: Mapping[str, Any], *, first: bool = False) -> R:
        """The same with further settings, dotted name -> value; `first`: what a user has set replaces them."""
        more = overrides_of(settings)
        return replace(self, overrides=(*more, *self.overrides) if first else (*self.overrides, *more))

    def command(self, name: str, *flags: str) -> str:
        """The request, with further flags, as a line of a shell, to make the same run elsewhere."""
        again: dict[str, Any] = {flag: False for flag in ("resume", "overwrite") if hasattr(self, flag)}
        plain = replace(self, **again)
        return typed.line(name, *plain.arguments(), *flags)

    def arguments(self) -> list[str]:
        """The request as arguments of a command, for another process."""
        given: list[str] = []
        for field in fields(self):
            value, flag = getattr(self, field.name), {"encoder": "from"}.get(field.name, field.name.replace("_", "-"))
            if isinstance(value, tuple) and field.name != "overrides":
                value = ",".join(map(str, value))
            if value is True:
                given.append(f"--{flag}")
            elif field.name != "overrides" and value is not None and value is not False:
                given += [f"--{flag}", str(value)]
        return [*given, *self.overrides]


@dataclass(frozen=True, kw_only=True)
class CorpusRequest(RunRequest):
    """A model's way of pretraining and a corpus for it; `corpus` is a name in configs/corpora or a path."""

    corpus: str = DEFAULT_CORPUS


@dataclass(frozen=True, kw_only=True)
class PretrainRequest(CorpusRequest):
    """A run that pretrains; `out` is its folder, `encoder` the one that it goes on from and `teacher` the one that it
    learns from, if any."""

    encoder: Path | None = None
    teacher: Path | None = None
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class FineTuneRequest(RunRequest):
    """A run that fine-tunes `encoder` on a task, a name in configs/tasks or a path."""

    task: str = DEFAULT_TASK
    encoder: Path | None = None
    arm: ArmName = "full"
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class ZeroShotRequest(RunRequest):
    """A task's prompts put to an encoder.

    Args:
        shots: numbers of solved examples in front of a prompt; each is a point of a curve.
        limit: ask only that many rows; 0: all.
        unigram: texts whose word frequencies are a baseline.
        log_text: may texts of `data` go to Weights & Biases?
    """

    task: str = DEFAULT_TASK
    encoder: Path | None = None
    out: Path | None = None
    overwrite: bool = False
    shots: tuple[int, ...] = (0,)
    limit: int = 0
    unigram: str | None = None
    log_text: bool = False


def overrides_of(settings: Mapping[str, Any]) -> Overrides:
    return tuple(f"--{name}={'null' if value is None else value}" for name, value in settings.items())


def by_setting(overrides: Iterable[str]) -> list[tuple[str, Overrides]]:
    """Dotted name of each setting -> the words that set it: one, or two as in `--precision 32-true`."""
    found: list[tuple[str, Overrides]] = []
    for word in overrides:
        if word.startswith("--") or not found:
            found.append((word.removeprefix("--").partition("=")[0], (word,)))
        else:
            name, words = found[-1]
            found[-1] = (name, (*words, word))
    return found


def settings_in(overrides: Iterable[str]) -> set[str]:
    """The dotted names of the settings that are overridden, those inside of a mapping too."""
    return {inner for name, words in by_setting(overrides) for inner in _names_in(name, words)}


def _names_in(name: str, words: Overrides) -> set[str]:
    value = words[-1] if len(words) > 1 else words[0].partition("=")[2]
    if value.lstrip().startswith("{"):
        with contextlib.suppress(yaml.YAMLError):  # what is no mapping is refused where it is read
            return {name, *flat(yaml.safe_load(value), f"{name}.")}
    return {name}
