"""Class paths and keys of versions up to 0.13, in YAML files, flags, run folders and checkpoints -> those of today."""

from __future__ import annotations

import re
from typing import Any

CLASSES = {
    "pipeline.encoders.bert.Bert": "pipeline.models.bert.Bert",
    "pipeline.encoders.gpt.Gpt": "pipeline.models.gpt.Gpt",
    "pipeline.encoders.elmo.Elmo": "pipeline.models.elmo.Elmo",
    "pipeline.objectives.MaskedLM": "pipeline.objectives.base.MaskedLM",
    "pipeline.objectives.CausalLM": "pipeline.objectives.base.CausalLM",
    "pipeline.objectives.BidirectionalLM": "pipeline.objectives.base.BidirectionalLM",
    "pipeline.batches.MaskedPairs": "pipeline.objectives.batches.MaskedPairs",
    "pipeline.batches.CausalBlocks": "pipeline.objectives.batches.CausalBlocks",
    "pipeline.verify_resume": "pipeline.experiments.resume_test",
    "pipeline.batches.WordRows": "pipeline.objectives.batches.WordRows",
}
KEYS = {"model.craft": "model.recipe"}
NAMES = CLASSES | KEYS
PATTERN = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, NAMES)) + r")\b")


def current(value: Any, section: str = "") -> Any:
    """A configuration, or a part of it, with today's class paths and keys; everything else unchanged.

    Args:
        section: the keys above it, each with a dot behind it.
    """
    if isinstance(value, str):
        return PATTERN.sub(lambda found: NAMES[found[0]], value)
    if isinstance(value, dict):
        return {_key(key, section): current(part, f"{section}{key}.") for key, part in value.items()}
    if isinstance(value, list):
        return [current(part) for part in value]
    return value


def _key(key: Any, section: str) -> Any:
    """A key of today: of a nested mapping by the keys above it, of a flat one with dots by itself."""
    if not isinstance(key, str):
        return key
    return current(f"{section}{key}").removeprefix(section)
