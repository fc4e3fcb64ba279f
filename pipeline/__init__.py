"""Pretrain small language models on raw text, fine-tune them, and prompt them.

From Python::

    import pipeline
    encoder = pipeline.encoders.load("runs/pretrain/bert/encoder")
    out = encoder.encode(["a sentence", "another one"])

    model = pipeline.load("runs/finetune/bert-sentiment/model")
    model.predict(["what a lovely film"])
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pipeline.version import __version__

if TYPE_CHECKING:
    from pipeline import encoders, errors, metrics, prompting
    from pipeline.errors import Interrupted, UserError
    from pipeline.finetuning.model import load

__all__ = ["Interrupted", "UserError", "__version__", "encoders", "errors", "load", "metrics", "prompting"]

# They arrive on first use, so that `import pipeline` (and `--help`) does not import torch.
PLACES = {"load": "finetuning.model", "UserError": "errors", "Interrupted": "errors"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in PLACES:
        return getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)
    return importlib.import_module(f"{__name__}.{name}")
