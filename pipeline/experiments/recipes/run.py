"""Recipes as runs: each is trained once with each seed, and after each run the results so far are written.

All runs are on the same tokens. Runs of the same seed have the same order of rows, so that they are compared in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.console.progress import progress, write
from pipeline.errors import Diverged, UserError
from pipeline.experiments.recipes import report as recipes_report
from pipeline.experiments.recipes.ingredients import Recipes
from pipeline.experiments.recipes.report import BASE, Measured
from pipeline.experiments.run_cache import check_diverged, finished, folder_of, has_ended, run_once
from pipeline.experiments.token_runs import (
    EVERY,
    STEPS,
    Configure,
    check_not_derived,
    check_out,
    check_shared,
    fingerprint_of_pretraining,
    note_shared,
    of_steps,
    training_of,
)
from pipeline.objectives.base import Objective
from pipeline.presets.files import flat
from pipeline.tracking.tables import markdown_table
from pipeline.training.configuration import Configuration
from pipeline.training.corpus_data import CorpusData
from pipeline.training.requests import Overrides, PretrainRequest, overrides_of, settings_in

SHARED = "recipes.json"  # what all runs of a folder share
VALIDATIONS = 10  # of a run
OF_RECIPES = "the `tokens` of the recipes"
OBJECTIVE = "model.objective"
IN_TRAINING = ("data.workers", "data.verify")
Key = tuple[str, int]  # recipe and seed


def changed_validation(base: Configuration, other: Configuration) -> list[str]:
    """The settings in which two configurations differ, and with them the rows, masks or tokens of validation."""
    ours, theirs = validated_settings(base), validated_settings(other)
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def validated_settings(configuration: Configuration) -> dict[str, Any]:
    """Data and objective, without what is for training alone."""
    objective: Objective = configuration.module.objective
    training_only = {*IN_TRAINING, *(f"{OBJECTIVE}.init_args.{name}" for name in objective.training_only)}
    settings = {
        name: value
        for name, value in flat(configuration.resolved).items()
        if name.startswith(("data.", f"{OBJECTIVE}.")) and name not in training_only
    }
    return {**settings, f"{OBJECTIVE}.class_path": objective.validates_as or type(objective)}


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
    base: Configuration = field(init=False)  # that of the recipe which the others are compared with
    data: CorpusData = field(init=False)  # the same for all: no ingredient changes it
    runs: dict[Key, PretrainRequest] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Raises: UserError, what is asked for cannot be run."""
        recipes, found = self.recipes, self.recipes.all()
        check_out(self.out, SHARED, "recipes")
        if wrong := [name for name in self.chosen if name not in found]:
            raise UserError(f"There is no recipe '{wrong[0]}'; there are {', '.join(found)}.")
        check_not_derived(settings_in(self.overrides), (STEPS, EVERY), OF_RECIPES)
        fixed = settings_in(self.overrides)
        for name, one in recipes.ingredients.items():
            if set(one.settings) <= fixed and (not self.chosen or name in self.chosen):
                flag = sorted(one.settings)[0]
                raise UserError(
                    f"--{flag} replaces all that the recipe {name} adds: leave it out, or name other recipes "
                    f"({typed.flag('recipes')})."
                )
        whole = {name: self._whole(name, one.settings) for name, one in found.items()}
        for seed in range(recipes.seeds):  # the first seed of all, then the second: results come early
            for name, request in whole.items():
                self.runs[name, seed] = replace(request, seed=seed, out=self.out / "runs" / f"{name}-{seed}")

    def _whole(self, name: str, own: dict[str, Any]) -> PretrainRequest:
        """A recipe on all tokens.

        Raises:
            UserError: it cannot be run.
        """
        recipes = self.recipes
        check_not_derived(own, (STEPS, EVERY), OF_RECIPES)
        settings = (*overrides_of(own), *self.overrides)
        request = PretrainRequest(model=recipes.model, corpus=recipes.corpus, overrides=settings)
        try:
            configuration = self.configure(request)
        except UserError as error:
            raise error if name == BASE else UserError(f"The recipe {name}: {error}") from None
        if configuration.module.is_counting:
            raise UserError(f"{recipes.model} counts, and recipes are of models that are trained in steps.")
        if name == BASE:
            self.base, self.data = configuration, configuration.data
        elif changed := changed_validation(self.base, configuration):
            raise UserError(
                f"The recipe {name} sets {changed[0]}, which changes what is validated, so its losses would not "
                "compare: put it under `settings`, for all recipes."
            )
        steps = max(1, round(recipes.tokens / (self.data.batch_size * self.data.length)))
        return of_steps(request, configuration, steps, every=max(1, steps // VALIDATIONS))

    def run(self) -> Measured:
        """Trains what is missing; after each run the results so far are written.

        Raises:
            UserError: a run is refused or fails, and the others are run; the folder has recipes of other settings.
        """
        self.data.prepare()
        self.out.mkdir(parents=True, exist_ok=True)
        note_shared(self.out / SHARED, self._shared(), "recipes", overwrite=self.overwrite)
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
                    except UserError as error:  # the others are run all the same
                        failed.append(f"{key[0]}, seed {key[1]}: {error}")
                        if not isinstance(error, Diverged):  # of which it has been said
                            write(failed[-1])
                bar.update()
                others = (other for other in self.runs if other not in found)  # of another process
                found |= {other: metrics for other in others if (metrics := self._finished(other)) is not None}
                recipes_report.write(self._measured(found), self.out)
        if failed:
            raise UserError(f"{len(failed)} of {len(wanted)} runs failed: {failed[0]}")
        return self._measured(found)

    def _shared(self) -> dict[str, Any]:
        """What all runs of the folder share."""
        names = ("model", "corpus", "tokens", "settings")
        return {**{name: getattr(self.recipes, name) for name in names}, "flags": list(self.overrides)}

    def _train(self, key: Key) -> dict[str, Any]:
        request = self.runs[key]
        made_of, run = fingerprint_of_pretraining(request, self.data), training_of(self.configure)
        return self._taken(run_once(request, made_of, run, overwrite=self.overwrite))

    def _finished(self, key: Key) -> dict[str, Any] | None:
        request = self.runs[key]
        metrics = finished(folder_of(request), fingerprint_of_pretraining(request, self.data), dict)[0]
        return None if metrics is None else self._taken(metrics)

    def _taken(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Raises: UserError, the runs do not measure the metric."""
        name = self.recipes.metric
        if not isinstance(metrics.get(name), float):
            known = sorted(one for one, value in metrics.items() if one.startswith("val/") and isinstance(value, float))
            raise UserError(f"There is no metric '{name}' in these runs; they have {', '.join(known)}.")
        return metrics

    def _measured(self, found: dict[Key, dict[str, Any]]) -> Measured:
        recipes = self.recipes
        runs = {name: {seed: m for (of, seed), m in sorted(found.items()) if of == name} for name in recipes.all()}
        titles = {name: (one.title, one.source) for name, one in recipes.all().items()}
        diverged = {
            name: seeds
            for name in recipes.all()
            if (seeds := [seed for of, seed in self.runs if of == name and self._has_diverged((of, seed))])
        }
        return Measured(f"{recipes.model} on {Path(recipes.corpus).name}", recipes.metric, titles, runs, diverged)

    def _has_diverged(self, key: Key) -> bool:
        request = self.runs[key]
        try:
            check_diverged(folder_of(request), fingerprint_of_pretraining(request, self.data))
        except Diverged:
            return True
        return False

    def missing(self) -> str:
        """A line for each recipe: how many of its runs have ended.

        Raises:
            UserError: the folder holds recipes of other settings.
        """
        check_shared(self.out / SHARED, self._shared(), "recipes", overwrite=self.overwrite)
        rows = []
        for name, one in self.recipes.all().items():
            if self.chosen and name not in self.chosen:
                continue
            folders = [folder_of(request) for (of, _), request in self.runs.items() if of == name]
            ended = 0 if self.overwrite else sum(map(has_ended, folders))
            settings = (flag.removeprefix("--") for flag in overrides_of(one.settings))
            rows.append([name, f"{ended} of {len(folders)}", ", ".join(settings)])
        return markdown_table(["recipe", "finished", "settings"], rows)
