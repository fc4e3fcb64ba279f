"""A ladder: language models of seventy years on one text, as a YAML file in `configs/ladder` has it."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.errors import UserError
from pipeline.presets.files import flat, named_config, unknown
from pipeline.storage.validation import Name, checked, read_yaml
from tasks.dataset import repeated

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Kind = Literal["baseline", "counting", "feed-forward", "recurrent", "attention", "convolution"]


@dataclass
class Rung:
    """A language model of a ladder.

    Args:
        name: of its folder.
        title: in tables and plots.
        year: of its source.
        source: who proposed it, or the paper.
        model: as in MODEL=; None: the uniform distribution, Shannon's zero-order approximation.
        settings: dotted name -> value, over those of the model's own configuration.
        rates: instead of the ladder's.
        axes: the choices that it is made of, where the ladder is a product of choices.
    """

    name: Name
    title: Name
    year: int
    source: str
    kind: Kind
    model: Name | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rates: Annotated[list[Positive], Field(min_length=1)] | None = None
    axes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.settings = flat(self.settings)


@dataclass
class Ladder:
    """What is compared; a YAML file has these fields, or `axes` and `every` in place of `rungs` (see `product`).

    With `like: NAME` it takes the fields that it does not have from that ladder.

    Args:
        rungs: in the order of tables.
        tokens: that each model with a gradient is trained on; counting models see each token of the corpus once. None:
            all models count.
        corpus: as in CORPUS=.
        rates: multiples of a model's own learning rate. Where there are several, the best is chosen on the validation
            part, in runs on a `trial` share of the tokens.
        seeds: of the whole run with the best rate.
        settings: of every run.
        one_tokenizer: refuse rungs with different ones; without it only bits per byte are compared.
        prompt: continued by each model.
        continuation: tokens of a continuation.
        paragraph: tokens of the held-out text whose every token is shown; 0: none.
        mixtures: whether every pair of models is mixed.
        blimp: where the minimal pairs are, below the folder that DATA= names.
    """

    rungs: Annotated[list[Rung], Field(min_length=1)]
    tokens: Annotated[int, Field(ge=1)] | None = None
    corpus: Name | None = None
    rates: Annotated[list[Positive], Field(min_length=1)] = field(default_factory=lambda: [1.0])
    trial: Annotated[float, Field(gt=0, le=1)] = 1.0
    seeds: Annotated[int, Field(ge=1)] = 1
    settings: dict[str, Any] = field(default_factory=dict)
    one_tokenizer: bool = True
    prompt: str | None = None
    continuation: Annotated[int, Field(ge=1)] = 40
    paragraph: Annotated[int, Field(ge=0)] = 0
    mixtures: bool = True
    blimp: str | None = None

    def __post_init__(self) -> None:
        self.settings = flat(self.settings)

    def rates_of(self, rung: Rung) -> list[float]:
        return rung.rates or self.rates


def load(file: Path, **changes: Any) -> Ladder:
    """A ladder from its YAML file.

    Args:
        changes: fields to replace; None: as the file has it.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind, or two rungs have one name.
    """
    content = fields_of_file(file)
    if "axes" in content:
        every = checked(dict[str, Any], content.pop("every", {}), file)
        content["rungs"] = product(checked(AXES, content.pop("axes"), file), every)
    content |= {name: value for name, value in changes.items() if value is not None}
    ladder = checked(Ladder, content, file)
    names = [rung.name for rung in ladder.rungs]
    if twice := repeated(names):
        raise UserError(f"{file} has two rungs called '{twice}': rename one.")
    if strange := [name for name in names if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)]:
        raise UserError(f"{file}: the rung '{strange[0]}' names a folder: use letters, digits, `-`, `.` and `_`.")
    return ladder


def fields_of_file(file: Path, known: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The fields of a ladder's file, with those of the ladder that it is like where it has none.

    Args:
        known: files that are like this one.

    Raises:
        UserError: there is no such ladder, ladders are like each other, or a file has both rungs and axes.
    """
    own = read_yaml(file, dict[str, Any])
    if {"rungs", "axes"} <= own.keys():
        raise UserError(f"{file} has both rungs and axes: leave one of them out.")
    if "like" not in own:
        return own
    name = str(own.pop("like"))
    if (other := named_config("ladder", name)) is None:
        raise UserError(f"{file} is like '{name}'. {unknown('ladder', name, 'ladder')}")
    if other in (*known, file):
        raise UserError(f"{file} is like '{name}', which is like it: leave one `like` out.")
    theirs = fields_of_file(other, (*known, file))
    replaced = {"rungs": ("axes", "every"), "axes": ("rungs",)}  # a ladder has one of them
    return {key: value for key, value in theirs.items() if not any(key in replaced.get(k, ()) for k in own)} | own


AXES = Annotated[dict[Name, Annotated[dict[str, dict[str, Any]], Field(min_length=1)]], Field(min_length=1)]


def product(axes: dict[str, dict[str, dict[str, Any]]], every: dict[str, Any]) -> list[dict[str, Any]]:
    """A rung for each combination of choices, with the settings of all of them.

    Args:
        axes: axis -> choice -> fields of a rung.
        every: fields of all rungs.
    """
    rungs = []
    for choices in itertools.product(*(axis.items() for axis in axes.values())):
        labels = dict(zip(axes, (label for label, _ in choices), strict=True))
        rung = dict(every)
        for _, fields in choices:
            rung = {**rung, **fields, "settings": {**rung.get("settings", {}), **fields.get("settings", {})}}
        first, *others = labels.items()
        title = ", ".join([first[1], *(f"{axis} {label}" for axis, label in others)])
        name = re.sub(r"[^a-z0-9.]+", "-", "-".join(labels.values()).lower())
        rungs.append({"name": name, "title": title, "axes": labels, **rung})
    return rungs
