"""Short flags of the keys that are set most often: `--steps 100` is `--trainer.max_steps=100`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from pipeline.errors import UserError

Stage = Literal["pretrain", "finetune"]
SHARED = {
    "steps": "trainer.max_steps",
    "batch-size": "data.batch_size",
    "learning-rate": "model.optimization.learning_rate",
    "accumulate": "trainer.accumulate_grad_batches",
    "accelerator": "trainer.accelerator",
    "devices": "trainer.devices",
}
KEYS: Mapping[Stage, Mapping[str, str]] = {
    "pretrain": {
        **SHARED,
        "warmup-steps": "model.optimization.warmup_steps",
        "length": "data.length",
        "vocab-size": "data.tokenizer.vocab_size",
        "validate-every": "validate_every",
        "save-at-words": "save_at_words",
    },
    "finetune": {
        "epochs": "data.epochs",
        **SHARED,
        "warmup-share": "model.warmup_share",
        "length": "data.max_length",
        "train-rows": "data.train_rows",
    },
}


class SetKey(argparse.Action):
    """Remembers a key and its value among the overrides, as they would stand there in full."""

    def __init__(self, *, key: str, **options: Any) -> None:
        super().__init__(**{**options, "dest": "settings", "default": argparse.SUPPRESS})
        self.key = key

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.settings = (*getattr(namespace, "settings", ()), (option_string, f"--{self.key}", values))


def add_short_names(
    group: Any, stage: Stage, kinds: Mapping[str, Callable[[str], Any]], *, only: Collection[str] | None
) -> None:
    """Adds the short flags of a stage.

    Args:
        group: of arguments.
        kinds: short name -> what reads its value, where not any text will do.
        only: those that the command heeds; None: all.
    """
    for name, key in KEYS[stage].items():
        if only is not None and name not in only:
            continue
        metavar = name.rpartition("-")[2].upper()
        group.add_argument(f"--{name}", action=SetKey, key=key, type=kinds.get(name), metavar=metavar, help=f"--{key}")


def in_full(flag: str) -> str:
    """`--config` of `-c`, as Lightning's command line has it: what looks for settings knows long names."""
    if flag == "-c":
        return "--config"
    return f"--config={flag[2:].removeprefix('=')}" if flag.startswith("-c") else flag


def overrides(settings: Sequence[tuple[str, str, Any]], flags: Sequence[str]) -> tuple[str, ...]:
    """The settings given by short names and those given in full.

    Raises:
        UserError: one key is given by both.
    """
    for short, key, _ in settings:
        if any(flag == key or flag.startswith(f"{key}=") for flag in flags):
            raise UserError(f"{short} and {key} are the same setting; leave one of them out.")
    return (*flags, *(f"{key}={value}" for _, key, value in settings))  # last: no file of --config replaces them
