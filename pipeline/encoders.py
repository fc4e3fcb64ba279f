"""Saved encoders: `load` opens any encoder folder, ours or Hugging Face's."""

from __future__ import annotations

from pipeline.models.base import Encoder
from pipeline.models.outputs import Encoded, LoadReport
from pipeline.models.registry import (
    copy_tensors,
    encoder_class,
    family,
    fresh,
    load,
    load_with_heads,
    load_with_report,
    names,
    register,
    variant,
)

__all__ = [
    "Encoded",
    "Encoder",
    "LoadReport",
    "copy_tensors",
    "encoder_class",
    "family",
    "fresh",
    "load",
    "load_with_heads",
    "load_with_report",
    "names",
    "register",
    "variant",
]
