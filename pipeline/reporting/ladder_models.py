"""The models of a ladder: their kinds, the looks of these in charts, and numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.reporting.ladder_charts import Look
from pipeline.tracking import plots
from pipeline.tracking.tables import superscript

KINDS = ("counting", "feed-forward", "recurrent", "attention", "baseline", "convolution")  # in the order of shapes
COLORS = {kind: f"s{color}" for kind, (color, _) in plots.KIND_LOOKS.items()}

Model = Mapping[str, Any]  # an entry of `models` in ladder.json


def is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def best_of(models: Sequence[Model], *kinds: str) -> Model | None:
    chosen = [model for model in models if not kinds or model["kind"] in kinds]
    return min(chosen, key=lambda model: model["bits_per_byte"], default=None)


def looks_of(models: Sequence[Model]) -> dict[str, Look]:
    """By name: the color and shape of its kind, and dashes that tell it from others of it."""
    seen = dict.fromkeys(KINDS, 0)
    looks = {}
    for model in models:
        kind = model["kind"] if model["kind"] in KINDS else KINDS[0]
        looks[model["name"]] = Look(COLORS[kind], KINDS.index(kind), seen[kind] % 5)
        seen[kind] += 1
    return looks


def is_trained(model: Model) -> bool:
    return model["kind"] not in ("baseline", "counting")


def has_axes(models: Sequence[Model]) -> bool:
    """Whether they are a product of choices instead of a history."""
    return bool(models) and all(model.get("axes") for model in models)


def on_curve(model: Model) -> float:
    """Bits per byte on the rows that training validates on, where its curve ends."""
    return model.get("validation_rows_bits_per_byte") or model["bits_per_byte"]


def title_of(model: Model) -> str:
    return f"{model['title']} ({model['year']}): {model['bits_per_byte']:.3f} bits per byte"


def legend(models: Sequence[Model]) -> list[tuple[str, str]]:
    kinds = [kind for kind in KINDS if any(model["kind"] == kind for model in models)]
    return [(f"shape {kind} {COLORS[kind]}", kind) for kind in kinds]


def titles_of(ladder: Mapping[str, Any]) -> dict[str, str]:
    return {model["name"]: model["title"] for model in ladder["models"]}


def operations(flops: float) -> str:
    """1.5e15 -> `1.5 × 10¹⁵`."""
    if not flops:
        return "0"
    power = math.floor(math.log10(flops))
    return f"{flops / 10**power:.1f} × 10{superscript(power)}"
