"""Encoders that have been saved: `load` opens any encoder folder, ours or Hugging Face's."""

from __future__ import annotations

from pipeline.models.base import Encoded, Encoder, Receipt
from pipeline.models.registry import (
    encoder_class,
    family,
    fresh,
    load,
    load_with_heads,
    load_with_receipt,
    names,
    take_over,
)

__all__ = [
    "Encoded",
    "Encoder",
    "Receipt",
    "encoder_class",
    "family",
    "fresh",
    "load",
    "load_with_heads",
    "load_with_receipt",
    "names",
    "take_over",
]
