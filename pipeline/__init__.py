"""Pretrain ELMo, GPT and BERT encoders on raw text, fine-tune them, and prompt them.

From Python::

    import pipeline
    encoder = pipeline.encoders.load("runs/pretrain/bert/encoder")
    out = encoder.encode(["a sentence", "another one"])

    model = pipeline.load("runs/finetune/bert-sentiment/model")
    model.predict(["what a lovely film"])
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.13.0"


class UserError(Exception):
    """Something the user can put right: shown as one plain sentence, exit status 2, no traceback."""


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGUSR1 in training: a checkpoint has been written. Exit status 130."""


def __getattr__(name: str) -> Any:
    # Submodules arrive on first use, so that `import pipeline` (and `--help`) does not import torch.
    if name == "load":
        return importlib.import_module("pipeline.tuned").load
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
