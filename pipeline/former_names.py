"""Class paths of versions up to 0.13, in users' YAML files, in run folders and in checkpoints -> where they are now."""

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
PATTERN = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, CLASSES)) + r")\b")


def current(value: Any) -> Any:
    """A configuration, or a part of it, with today's class paths; everything else as it is."""
    if isinstance(value, str):
        return PATTERN.sub(lambda found: CLASSES[found[0]], value)
    if isinstance(value, dict):
        return {key: current(part) for key, part in value.items()}
    if isinstance(value, list):
        return [current(part) for part in value]
    return value
