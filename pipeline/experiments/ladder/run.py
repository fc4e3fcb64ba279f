"""A ladder as a run: each rung is trained and measured, and after each one the results so far are published.

What is finished is skipped, so a ladder can be stopped and continued at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.console import typed
from pipeline.console.messages import inform
from pipeline.console.progress import progress, write
from pipeline.errors import UserError
from pipeline.experiments.ladder.plan import Plan, plans
from pipeline.experiments.ladder.results import Found, Results
from pipeline.experiments.ladder.rungs import Ladder
from pipeline.experiments.ladder.training import Unfinished, train
from pipeline.experiments.token_runs import Configure, check_out, note_shared
from pipeline.storage.paths import path_of
from pipeline.training.requests import Overrides

SETTINGS = "settings.json"  # what all runs of a folder share


@dataclass
class LadderRun:
    """A ladder with where its runs and data are.

    Args:
        out: folder of the runs, the measures and the results.
        configure: a request -> its configuration.
        overrides: settings of every run, as a user types them.
        data: the folder that the data of tasks are in; None: no task is asked.
        command: that makes the same ladder, of the models that are chosen; None: of all.
        overwrite: run what is finished too.
        chosen: rungs that are run; of others what is finished is in the results. Empty: all.
    """

    ladder: Ladder
    out: Path
    configure: Configure
    overrides: Overrides = ()
    data: str | None = None
    command: Callable[[str | None], str] = lambda models: ""
    overwrite: bool = False
    chosen: Sequence[str] = ()
    plans: dict[str, Plan] = field(init=False)

    def __post_init__(self) -> None:
        """Raises: UserError, what is asked for cannot be run."""
        ladder, names = self.ladder, [rung.name for rung in self.ladder.rungs]
        if ladder.corpus is None:
            raise UserError(f"The ladder names no corpus: name it with {typed.flag('corpus', 'folder')}.")
        if all(rung.model is None for rung in ladder.rungs):
            raise UserError("The ladder has no model to train or to count: give a rung a `model`.")
        if wrong := [name for name in self.chosen if name not in names]:
            raise UserError(f"The ladder has no rung '{wrong[0]}'; it has {', '.join(names)}.")
        if self.data and not ladder.blimp:
            raise UserError(
                f"This ladder asks no minimal pairs, so {typed.flag('data')} would be ignored: leave it out."
            )
        if self.blimp is not None and not self.blimp.exists():
            raise UserError(f"There are no minimal pairs in {self.blimp}: {typed.flag('data')} is the folder above.")
        check_out(self.out, SETTINGS, "a ladder")
        self.plans = plans(ladder, self.out, self.configure, self.overrides)

    @property
    def blimp(self) -> Path | None:
        """The folder of the minimal pairs, where they are asked."""
        return path_of(self.data) / self.ladder.blimp if self.data and self.ladder.blimp else None

    @property
    def asked(self) -> list[Plan]:
        """The rungs that are run."""
        return [plan for name, plan in self.plans.items() if self._is_asked(name)]

    def _is_asked(self, name: str) -> bool:
        return not self.chosen or name in self.chosen

    def run(self, publish: Callable[[Results], None]) -> Results:
        """Trains and measures what is missing.

        Args:
            publish: called after each rung with the results so far.

        Raises:
            UserError: a run is refused or fails, and the other rungs are run; the folder holds a ladder of other
                settings; no rung is finished.
        """
        for plan in self.plans.values():
            plan.data.prepare()
        self._note_settings()
        if self.ladder.blimp and self.data is None:
            inform(f"BLiMP is left out: set {typed.flag('data')} to the folder of its data.")
        found = Found(self.ladder, self.out / "measures", blimp=self.blimp)
        failed: list[str] = []
        total = sum(plan.tokens() for plan in self.asked)
        counting: dict[str, Any] = {"total": len(self.asked), "unit": "model"}
        training: dict[str, Any] = {"total": total, "unit": " tokens", "unit_scale": True}
        with progress(desc="ladder", smoothing=0, **(training if total else counting)) as bar:

            def advance(tokens: int, before: bool) -> None:
                done = tokens if total else 1
                if before:
                    bar.initial += done  # which says nothing about the time of a run
                bar.update(done)

            for name, plan in self.plans.items():
                bar.set_postfix_str(name)
                wanted = self._is_asked(name)
                again = self.overwrite and wanted
                try:
                    told = advance if wanted else lambda tokens, before: None
                    trained = train(plan, self.configure, told, overwrite=again, only_finished=not wanted)
                except Unfinished:
                    continue
                except UserError as error:
                    if wanted:
                        failed.append(f"{name}: {error}")
                        write(failed[-1])
                    continue
                row = found.add(plan, trained)
                write(f"{row['title']}: {row['bits_per_byte']:.3f} bits per byte, {row['seconds']:,.0f} s")
                publish(self._results(found))
        if failed:
            raise UserError(f"{len(failed)} of {len(self.asked)} rungs failed: {failed[0]}")
        if not found.rows:
            raise UserError("No rung of this ladder is trained yet: choose one, or leave the choice out.")
        return self._results(found)

    def _results(self, found: Found) -> dict[str, Any]:
        """With the command that makes a table of the same models."""
        names = [rung.name for rung in self.ladder.rungs if rung.name in {*self.chosen, *found.rows}]
        return {**found.results(), "command": self.command(" ".join(names) if self.chosen else None)}

    def _note_settings(self) -> None:
        """Raises: UserError, the folder holds a ladder of other settings."""
        first = next(iter(self.plans.values())).data
        shared = {
            "corpus": first.train.meta["corpus"],
            "tokenizer": first.tokenizer.hash if self.ladder.one_tokenizer else None,
            "length": first.length,
            "tokens": self.ladder.tokens,
            "settings": self.ladder.settings,
            "flags": list(self.overrides),
        }
        note_shared(self.out / SETTINGS, shared, "a ladder", overwrite=self.overwrite)
