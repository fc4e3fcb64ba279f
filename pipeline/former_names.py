"""Names of versions up to 0.13, in users' YAML files and flags, in run folders and in checkpoints -> today's.

Class paths have moved, and what `data.batches` set belongs to `model.objective` now.
"""

from __future__ import annotations

import re
from typing import Any

MASKED, CAUSAL, BIDIRECTIONAL = (
    "pipeline.objectives.masked_lm.MaskedLM",
    "pipeline.objectives.causal_lm.CausalLM",
    "pipeline.objectives.bidirectional_lm.BidirectionalLM",
)
CLASSES = {
    "pipeline.encoders.bert.Bert": "pipeline.models.bert.Bert",
    "pipeline.encoders.gpt.Gpt": "pipeline.models.gpt.Gpt",
    "pipeline.encoders.elmo.Elmo": "pipeline.models.elmo.Elmo",
    "pipeline.objectives.MaskedLM": MASKED,
    "pipeline.objectives.CausalLM": CAUSAL,
    "pipeline.objectives.BidirectionalLM": BIDIRECTIONAL,
    "pipeline.batches.MaskedPairs": MASKED,
    "pipeline.batches.CausalBlocks": CAUSAL,
    "pipeline.batches.WordRows": BIDIRECTIONAL,
    "pipeline.verify_resume": "pipeline.experiments.resume_test",
}
KEYS = {"model.craft": "model.recipe"}
NAMES = CLASSES | KEYS
PATTERN = re.compile(r"(?<![\w./])(" + "|".join(map(re.escape, NAMES)) + r")\b")
BATCHES, OBJECTIVE = "data.batches", "model.objective"
FLAG = re.compile(rf"^--{re.escape(BATCHES)}(?=[.=]|$)")


def current(value: Any, section: str = "") -> Any:
    """A configuration, a part of it or a flag, with today's names; everything else unchanged.

    Args:
        section: the keys above it, each with a dot behind it.
    """
    if isinstance(value, str):
        return PATTERN.sub(lambda match: NAMES[match[0]], FLAG.sub(f"--{OBJECTIVE}", value))
    if isinstance(value, dict):
        return _joined({_key(key, section): current(part, f"{section}{key}.") for key, part in value.items()})
    if isinstance(value, list):
        return [current(part) for part in value]
    return value


def _joined(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration, nested or with dotted names, with `data.batches` as a part of `model.objective`."""
    if isinstance(data := config.get("data"), dict) and "batches" in data:
        data = dict(data)
        batches, model = data.pop("batches"), config.get("model")
        model = dict(model) if isinstance(model, dict) else {}
        model["objective"] = {**_section(batches), **_section(model.get("objective"))}
        return {**config, "model": model, "data": data}
    if any(str(name).startswith(BATCHES) for name in config):
        if isinstance(class_path := config.get(OBJECTIVE), str):
            config = {**config, f"{OBJECTIVE}.class_path": class_path}
            del config[OBJECTIVE]
        return {str(name).replace(BATCHES, OBJECTIVE, 1): value for name, value in config.items()}
    return config


def _section(part: Any) -> dict[str, Any]:
    """The settings of a class, which may be given by its name alone."""
    return {"class_path": part} if isinstance(part, str) else dict(part or {})


def _key(key: Any, section: str) -> Any:
    """A key of today: of a nested mapping by the keys above it, of a flat one with dots by itself."""
    if not isinstance(key, str):
        return key
    return current(f"{section}{key}").removeprefix(section)
