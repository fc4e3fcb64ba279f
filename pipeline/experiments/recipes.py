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

from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.experiments import recipes_report
from pipeline.experiments.grid import check_many_runs
from pipeline.experiments.pretraining_cell import EVERY, STEPS, cell_of, check_out, check_shared, of_steps
from pipeline.experiments.pretraining_run import pretrain
from pipeline.experiments.recipes_report import BASE, Measured
from pipeline.experiments.run_cache import Taken, finished, finite, once
from pipeline.storage.validation import checked, read_yaml
from pipeline.tracking.tables import markdown_table
from pipeline.training.requests import CorpusRequest, Overrides, PretrainRequest, overrides_of
from pipeline.training.run import Configuration

Name = Annotated[str, Field(min_length=1)]
SIGN = "settings.json"  # what all runs of a folder share
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
    for name in (name for names in recipes.together for name in names):
        if name not in recipes.ingredients:
            raise UserError(f"{file} has no ingredient '{name}'; it has {', '.join(recipes.ingredients)}.")
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
        check_many_runs([name.removeprefix("--").partition("=")[0] for name in self.overrides])
        for seed in range(recipes.seeds):  # the first seed of all, then the second: results come early
            for name, one in found.items():
                check_many_runs(one.settings)
                if own := [setting for setting in one.settings if setting in (STEPS, EVERY)]:
                    raise UserError(f"{own[0]} follows from the `tokens` of the recipes: change these in their file.")
                settings = (*overrides_of(one.settings), *self.overrides)
                request = PretrainRequest(model=recipes.model, corpus=recipes.corpus, seed=seed, overrides=settings)
                try:
                    configuration = self.configure(request)
                except UserError as error:
                    raise UserError(f"The recipe {name}: {error}") from None
                data = configuration.data
                steps = max(1, round(recipes.tokens / (data.batch_size * data.length)))
                whole = of_steps(request, configuration, steps, every=max(1, steps // VALIDATIONS))
                self.runs[name, seed] = (replace(whole, out=self.out / "runs" / f"{name}-{seed}"), configuration)

    def run(self) -> Measured:
        """Trains what is missing; after each run the results so far are written.

        Raises:
            UserError: a run is refused.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        self._check_settings()
        wanted = [key for key in self.runs if not self.chosen or key[0] in self.chosen]
        found = {key: metrics for key in self.runs if (metrics := self._finished(key)) is not None}
        with progress(total=len(wanted), desc="recipes", unit="run", smoothing=0) as bar:
            for key in wanted:
                bar.set_postfix_str(f"{key[0]}, seed {key[1]}")
                if key in found and not self.overwrite:
                    bar.initial += 1  # which says nothing about the time of a run
                else:
                    found[key] = self._train(key)
                bar.update()
                recipes_report.write(self._measured(found), self.out)
        return self._measured(found)

    def _check_settings(self) -> None:
        """Raises: UserError, the folder holds recipes of other settings, whose runs would be replaced."""
        names = ("model", "corpus", "tokens", "metric", "settings")
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
        return once(request.out, cell, start, overwrite=self.overwrite, taken=self._taken)

    def _finished(self, key: tuple[str, int]) -> dict[str, Any] | None:
        request, configuration = self.runs[key]
        assert request.out is not None
        if not (request.out / "metrics.json").is_file():  # its cell takes longer: the text is read
            return None
        configuration.data.prepare()
        return finished(request.out, cell_of(request, configuration.data), self._taken)[0]

    @property
    def _taken(self) -> Taken:
        def taken(metrics: dict[str, Any]) -> dict[str, Any]:
            for name in (self.recipes.metric, "seconds", "tokens"):
                finite(metrics, name)
            return metrics

        return taken

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
