"""What buys how much: a model's recipe of pretraining, with each of some ingredients alone and with several together.

All runs are on the same tokens. Runs of the same seed have the same order of rows, so that they are compared in pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.console.progress import progress, write
from pipeline.errors import UserError
from pipeline.experiments import recipes_report
from pipeline.experiments.grid import check_many_runs
from pipeline.experiments.pretraining_cell import EVERY, STEPS, cell_of, check_out, check_shared, of_steps
from pipeline.experiments.pretraining_run import pretrain
from pipeline.experiments.recipes_report import BASE, Measured
from pipeline.experiments.run_cache import finished, once
from pipeline.storage.validation import checked, read_yaml
from pipeline.tracking.tables import markdown_table
from pipeline.training.requests import CorpusRequest, Overrides, PretrainRequest, overrides_of, settings_in
from pipeline.training.run import Configuration

Name = Annotated[str, Field(min_length=1)]
SIGN = "recipes.json"  # what all runs of a folder share
# What changes the rows, masks or tokens of validation: the losses of two recipes would not compare.
VALIDATED = (
    "data.",
    "model.objective.init_args.mask_rate",
    "model.objective.init_args.whole_word",
    "model.objective.init_args.next_sentence",
)
VALIDATIONS = 10  # of a run
Configure = Callable[[CorpusRequest], Configuration]


@dataclass
class Ingredient:
    """A change of a recipe.

    Args:
        title: in tables.
        settings: dotted name -> value.
        source: the paper.
    """

    title: Name
    settings: Annotated[dict[str, Any], Field(min_length=1)]
    source: str = ""


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
    """

    model: Name
    tokens: Annotated[int, Field(ge=1)]
    metric: Name
    ingredients: Annotated[dict[Name, Ingredient], Field(min_length=1)]
    together: list[Annotated[list[Name], Field(min_length=2)]] = field(default_factory=list)
    corpus: Name = "sample"
    seeds: Annotated[int, Field(ge=1)] = 3
    settings: dict[str, Any] = field(default_factory=dict)

    def all(self) -> dict[str, Ingredient]:
        """Every recipe by its name, the model's own first."""
        found = {BASE: Ingredient("its configuration", self.settings), **self.ingredients}
        for names in self.together:
            parts = [self.ingredients[name] for name in names]
            settings = {name: value for part in parts for name, value in part.settings.items()}
            found["+".join(names)] = Ingredient(" + ".join(part.title for part in parts), settings)
        return {name: replace(one, settings={**self.settings, **one.settings}) for name, one in found.items()}


def load(file: Path, **changes: Any) -> Recipes:
    """Recipes from their YAML file.

    Args:
        changes: fields to replace; None: as the file has it.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind, or an ingredient is not there.
    """
    content = {
        **read_yaml(file, dict[str, Any]),
        **{name: value for name, value in changes.items() if value is not None},
    }
    recipes = checked(Recipes, content, file)
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


@dataclass
class RecipesRun:
    """Recipes with where their runs are.

    Args:
        out: folder of the runs and the results.
        configure: a request -> its configuration.
        overrides: settings of every run, as a user types them.
        overwrite: run what is finished too.
        chosen: recipes that are run; of others what is finished is in the results. Empty: all.
    """

    recipes: Recipes
    out: Path
    configure: Configure
    overrides: Overrides = ()
    overwrite: bool = False
    chosen: Sequence[str] = ()
    runs: dict[tuple[str, int], tuple[PretrainRequest, Configuration]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: UserError, what is asked for cannot be run."""
        recipes, found = self.recipes, self.recipes.all()
        check_out(self.out, SIGN, "recipes")
        if wrong := [name for name in self.chosen if name not in found]:
            raise UserError(f"There is no recipe '{wrong[0]}'; there are {', '.join(found)}.")
        for names in (recipes.settings, settings_in(self.overrides), *(one.settings for one in found.values())):
            check_many_runs(names)
            if own := [name for name in names if name in (STEPS, EVERY)]:
                raise UserError(f"{own[0]} follows from the `tokens` of the recipes: change these.")
        for name, ingredient in recipes.ingredients.items():
            if other := [setting for setting in ingredient.settings if setting.startswith(VALIDATED)]:
                raise UserError(
                    f"The recipe {name} sets {other[0]}, which changes what is validated, so its losses would not "
                    "compare: put it under `settings`, for all recipes."
                )
        for seed in range(recipes.seeds):  # the first seed of all, then the second: results come early
            for name, one in found.items():
                settings = (*overrides_of(one.settings), *self.overrides)
                request = PretrainRequest(model=recipes.model, corpus=recipes.corpus, seed=seed, overrides=settings)
                try:
                    configuration = self.configure(request)
                except UserError as error:
                    if name == BASE:
                        raise
                    raise UserError(f"The recipe {name}: {error}") from None
                if configuration.module.optimization is None:
                    raise UserError(f"{recipes.model} counts, and recipes are of models that are trained in steps.")
                data = configuration.data
                steps = max(1, round(recipes.tokens / (data.batch_size * data.length)))
                whole = of_steps(request, configuration, steps, every=max(1, steps // VALIDATIONS))
                self.runs[name, seed] = (replace(whole, out=self.out / "runs" / f"{name}-{seed}"), configuration)

    def run(self) -> Measured:
        """Trains what is missing; after each run the results so far are written.

        Raises:
            UserError: a run is refused or fails; the others are run before.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._check_settings()
        wanted = [key for key in self.runs if not self.chosen or key[0] in self.chosen]
        found = {key: metrics for key in self.runs if (metrics := self._finished(key)) is not None}
        failed: list[str] = []
        with progress(total=len(wanted), desc="recipes", unit="run", smoothing=0) as bar:
            for key in wanted:
                bar.set_postfix_str(f"{key[0]}, seed {key[1]}")
                if key in found and not self.overwrite:
                    bar.initial += 1  # which says nothing about the time of a run
                else:
                    try:
                        found[key] = self._train(key)
                    except UserError as error:  # as of a loss that is not finite: the others are run all the same
                        failed.append(f"{key[0]}, seed {key[1]}: {error}")
                        write(failed[-1])
                bar.update()
                others = (other for other in self.runs if other not in found)  # of another process
                found |= {other: metrics for other in others if (metrics := self._finished(other)) is not None}
                recipes_report.write(self._measured(found), self.out)
        if failed:
            raise UserError(f"{len(failed)} of {len(wanted)} runs failed: {failed[0]}")
        return self._measured(found)

    def _check_settings(self) -> None:
        """Raises: UserError, the folder holds recipes of other settings, whose runs would be replaced."""
        names = ("model", "corpus", "tokens", "settings")
        shared = {**{name: getattr(self.recipes, name) for name in names}, "flags": list(self.overrides)}
        check_shared(self.out / SIGN, shared, "recipes", overwrite=self.overwrite)

    def _train(self, key: tuple[str, int]) -> dict[str, Any]:
        request, configuration = self.runs[key]
        configuration.data.prepare()

        def start(*, resume: bool) -> None:
            one = replace(request, resume=resume, overwrite=not resume)
            pretrain(one, self.configure(one))

        assert request.out is not None
        cell = cell_of(request, configuration.data)
        return self._taken(once(request.out, cell, start, overwrite=self.overwrite))

    def _finished(self, key: tuple[str, int]) -> dict[str, Any] | None:
        request, configuration = self.runs[key]
        assert request.out is not None
        if not (request.out / "metrics.json").is_file():  # its cell takes longer: the text is read
            return None
        configuration.data.prepare()
        metrics = finished(request.out, cell_of(request, configuration.data), dict)[0]
        return None if metrics is None else self._taken(metrics)

    def _taken(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Raises: UserError, the runs do not measure the metric."""
        name = self.recipes.metric
        if not isinstance(metrics.get(name), float):
            known = sorted(one for one, value in metrics.items() if one.startswith("val/") and isinstance(value, float))
            raise UserError(f"There is no metric '{name}' in these runs; they have {', '.join(known)}.")
        return metrics

    def _measured(self, found: dict[tuple[str, int], dict[str, Any]]) -> Measured:
        recipes = self.recipes
        runs = {name: {seed: m for (of, seed), m in sorted(found.items()) if of == name} for name in recipes.all()}
        titles = {name: (one.title, one.source) for name, one in recipes.all().items()}
        return Measured(f"{recipes.model} on {Path(recipes.corpus).name}", recipes.metric, titles, runs)

    def missing(self) -> str:
        """A line for each recipe: how many of its runs have ended."""
        rows = []
        for name, one in self.recipes.all().items():
            folders = [request.out for (of, _), (request, _) in self.runs.items() if of == name]
            ended = sum((folder / "metrics.json").is_file() for folder in folders if folder is not None)
            settings = ", ".join(f"{setting}={value}" for setting, value in one.settings.items())
            rows.append([name, f"{ended} of {len(folders)}", settings])
        return markdown_table(["recipe", "finished", "settings"], rows)
