"""Names of versions up to 0.15, in users' YAML files and flags, in run folders and in checkpoints -> today's.

Class paths have moved, and the settings of `data.batches` belong to `model.objective` now. Keys and class paths alone
are translated: a text that happens to have such a name in it stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pipeline.errors import UserError

MASKED, CAUSAL, BIDIRECTIONAL = (
    "pipeline.objectives.masked_lm.MaskedLM",
    "pipeline.objectives.causal_lm.CausalLM",
    "pipeline.objectives.bidirectional_lm.BidirectionalLM",
)
CLASSES = {  # classes, and modules of classes
    "pipeline.encoders.bert.Bert": "pipeline.models.bert.Bert",
    "pipeline.encoders.gpt.Gpt": "pipeline.models.gpt.Gpt",
    "pipeline.encoders.elmo.Elmo": "pipeline.models.elmo.Elmo",
    "pipeline.objectives.MaskedLM": MASKED,
    "pipeline.objectives.CausalLM": CAUSAL,
    "pipeline.objectives.BidirectionalLM": BIDIRECTIONAL,
    "pipeline.batches.MaskedPairs": MASKED,
    "pipeline.batches.CausalBlocks": CAUSAL,
    "pipeline.batches.WordRows": BIDIRECTIONAL,
    "pipeline.speed": "pipeline.training.throughput",
    "pipeline.tracking.History": "pipeline.tracking.history.History",
    "pipeline.tracking.Progress": "pipeline.training.progress.Progress",
    "pipeline.verify_resume": "pipeline.experiments.resume_test",
}
CLASS_PATH = re.compile("(" + "|".join(map(re.escape, CLASSES)) + r")((?:\.\w+)*)")
BATCHES, OBJECTIVE = "data.batches", "model.objective"
NAME_ALONE = ("model.encoder", OBJECTIVE, BATCHES)  # settings whose value may be a class path without `class_path`
KEYS = {
    "model.craft": "model.recipe",
    "model.objective.carry": "model.objective.stateful",
    "model.objective.init_args.carry": "model.objective.init_args.stateful",
    "data.batches.carry": "data.batches.stateful",
    "data.batches.init_args.carry": "data.batches.init_args.stateful",
}
CONFIGURATIONS = {("pretrain", "gpt-small"): "gpt2-small"}  # kind and name
METRICS = {  # a loss falls below these baselines, so they were no floors
    "floor/uniform": "baseline/uniform",
    "floor/unigram": "baseline/unigram",
}


def current(value: Any, key: str = "") -> Any:
    """A configuration, or the part of it under a dotted key, with today's names; everything else unchanged.

    Raises:
        UserError: a setting is there under its former name and under today's, or `data.batches` is not a section.
    """
    if isinstance(value, str):
        return class_path(value) if _names_class(key) else value
    if isinstance(value, list):
        return [current(part, key) for part in value]
    if not isinstance(value, dict):
        return value
    result: dict[Any, Any] = {}
    for name, part in value.items():
        place = f"{key}.{name}" if key else str(name)
        today = _key(place)
        new = name if today == place else today.removeprefix(f"{key}.")
        if new in result or (new != name and new in value):
            raise UserError(f"{place} is the former name of {today}, and both are set; leave {place} out.")
        result[new] = current(part, today)
    return result if key else _joined(result)


def flags(words: Iterable[str]) -> list[str]:
    """`--KEY=VALUE`, or `--KEY` and `VALUE`, with today's names."""
    result, key = [], ""
    for word in words:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            key = _key(name)
            if key == BATCHES or key.startswith(f"{BATCHES}."):
                key = key.replace(BATCHES, OBJECTIVE, 1)
            result.append(f"--{key}{sign}{current(value, key)}")
        else:
            result.append(current(word, key))
    return result


def class_path(name: str) -> str:
    """Where a class is today."""
    match = CLASS_PATH.fullmatch(name)
    return name if match is None else CLASSES[match[1]] + match[2]


def _names_class(key: str) -> bool:
    return key in NAME_ALONE or key.startswith("trainer.") or key.rpartition(".")[2] == "class_path"


def _key(key: str) -> str:
    for old, new in KEYS.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key


def _joined(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration, nested or with dotted keys, with `data.batches` as a part of `model.objective`."""
    data, model = config.get("data"), config.get("model")
    if isinstance(model, dict) and "recipe" in model and model.get("encoder", "") is None:  # as 0.14 wrote it
        model = {name: value for name, value in model.items() if name != "encoder"}
        config = {**config, "model": model}
    if isinstance(data, dict) and "batches" in data:
        model = model if isinstance(model, dict) else {}
        parts = [_section(data["batches"]), *([_section(model["objective"])] if "objective" in model else [])]
        objective = {name: value for part in parts for name, value in part.items()}
        if arguments := [part["init_args"] for part in parts if isinstance(part.get("init_args"), dict)]:
            objective["init_args"] = {name: value for part in arguments for name, value in part.items()}
        data = {name: value for name, value in data.items() if name != "batches"}
        return {**config, "model": {**model, "objective": objective}, "data": data}
    if any(str(name).startswith(BATCHES) for name in config):
        if isinstance(name := config.get(OBJECTIVE), str):
            config = {**config, f"{OBJECTIVE}.class_path": name}
            del config[OBJECTIVE]
        return {str(name).replace(BATCHES, OBJECTIVE, 1): value for name, value in config.items()}
    return config


def _section(part: Any) -> dict[str, Any]:
    """The settings of a class, which may be given by its name alone.

    Raises:
        UserError: it is something else.
    """
    if not isinstance(part, (dict, str)):
        shown = "null" if part is None else repr(part)
        raise UserError(f"{BATCHES}, a part of {OBJECTIVE} today, is {shown}; it must be a mapping of settings.")
    return {"class_path": part} if isinstance(part, str) else part
