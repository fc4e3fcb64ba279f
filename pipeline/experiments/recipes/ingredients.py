"""What buys how much: a model's recipe of pretraining, with each of some ingredients alone and with several together.

As a YAML file in `configs/recipes` has it; `run.py` runs it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.errors import UserError
from pipeline.experiments.recipes.report import BASE
from pipeline.presets.files import DEFAULT_CORPUS, flat
from pipeline.storage.validation import Name, checked, read_yaml


@dataclass
class Ingredient:
    """A change of a recipe.

    Args:
        title: in tables; the name of the ingredient by default.
        settings: dotted name -> value.
        source: the paper.
    """

    settings: Annotated[dict[str, Any], Field(min_length=1)]
    title: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        self.settings = flat(self.settings)


@dataclass
class Recipes:
    """What is compared; a YAML file has these fields.

    Args:
        model: as in MODEL=.
        tokens: positions that each run trains on: steps x rows x their length.
        metric: of the validation part, less of which is better.
        ingredients: each makes a run of its own, added to the model's configuration.
        together: ingredients that are added at once; each list makes a run.
        corpus: as in CORPUS=.
        seeds: runs of each recipe.
        settings: of every run.
        base: the title of the recipe that the others are compared with: the model's configuration with `settings`.
    """

    model: Name
    tokens: Annotated[int, Field(ge=1)]
    metric: Name
    ingredients: Annotated[dict[Name, Ingredient], Field(min_length=1)]
    together: list[Annotated[list[Name], Field(min_length=2)]] = field(default_factory=list)
    corpus: Name = DEFAULT_CORPUS
    seeds: Annotated[int, Field(ge=1)] = 3
    settings: dict[str, Any] = field(default_factory=dict)
    base: Name = "its configuration"

    def __post_init__(self) -> None:
        self.settings = flat(self.settings)
        for name, ingredient in self.ingredients.items():
            ingredient.title = ingredient.title or name

    def all(self) -> dict[str, Ingredient]:
        """Every recipe by its name, the model's own first."""
        found = {BASE: Ingredient(self.settings, self.base), **self.ingredients}
        for names in self.together:
            parts = [self.ingredients[name] for name in names]
            settings = {name: value for part in parts for name, value in part.settings.items()}
            found["+".join(names)] = Ingredient(settings, " + ".join(part.title for part in parts))
        return {name: replace(one, settings={**self.settings, **one.settings}) for name, one in found.items()}


def load(file: Path, **changes: Any) -> Recipes:
    """Recipes from their YAML file.

    Args:
        changes: fields to replace; None: as the file has it.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind, or ingredients do not go together.
    """
    content = {
        **read_yaml(file, dict[str, Any]),
        **{name: value for name, value in changes.items() if value is not None},
    }
    recipes = checked(Recipes, content, file)
    if not recipes.metric.startswith("val/"):  # else it would be missed after the first run
        raise UserError(f"{file}: metric is {recipes.metric}; it is one of the validation part, as val/mlm_loss.")
    for names in recipes.together:
        owner: dict[str, str] = {}  # of a setting
        for name in names:
            if name not in recipes.ingredients:
                raise UserError(f"{file} has no ingredient '{name}'; it has {', '.join(recipes.ingredients)}.")
            for setting in recipes.ingredients[name].settings:
                if setting in owner:
                    raise UserError(f"{file}: {owner[setting]} and {name} are together, and both set {setting}.")
                owner[setting] = name
    for name in recipes.ingredients:
        if name == BASE or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise UserError(f"{file}: '{name}' names a folder: use letters, digits, `-`, `.` and `_`, and not {BASE}.")
    return recipes
