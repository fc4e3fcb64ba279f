"""Weights & Biases: a logger that resumes without gaps."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from pipeline.storage.atomic import write_atomically
from pipeline.storage.folders import remove
from pipeline.storage.validation import read_json
from pipeline.tracking.history import History
from pipeline.tracking.public import public, without_secrets
from pipeline.tracking.wandb_environment import RUN_ID, tolerated, wandb_mode, wandb_project

LONGEST_TAG = 64  # characters that W&B allows
TAKEN: set[str] = set()  # ids that the environment gave to runs of this process


class ResumableWandb(WandbLogger):
    """Weights & Biases, where a run that was killed and resumed from a checkpoint has no gap and no step back.

    When a run is killed, what W&B's own process still holds is lost, and its curves may reach beyond the checkpoint.
    So `metrics.csv` decides: rows that W&B lacks are sent again, rows that it has are left out.

    Args:
        folder: of the run.
        mode: `online` or `offline`.
        options: of Lightning's WandbLogger.
    """

    def __init__(self, *, folder: Path, mode: str, **options: Any) -> None:
        # Lightning's own `offline` would set WANDB_MODE for the whole process, and so for the next run in it.
        super().__init__(mode=mode, **options)
        self._wandb_init.pop("anonymous", None)  # W&B warns of it, even where it is None
        self.mode = mode
        self.closed = folder / "wandb" / "closed.json"  # the parts of the run that ended properly, and their last step
        self.had = self.step = -1
        self.best: dict[str, str] = {}  # metric of validations -> whether its `min` or `max` is the best
        self.defined: set[str] = set()

    @rank_zero_only
    def send_missing(self, history: History) -> None:
        """Sends the rows of a resumed run's history that W&B lacks."""
        if self.mode == "offline":
            parts, self.had = read_json(self.closed, tuple[list[str], int]) if self.closed.exists() else ([], -1)
            for part in self.closed.parent.glob("offline-run-*"):
                if part.name not in parts:
                    remove(part)
        else:  # the row of the last step may be incomplete
            self.had = int(self.experiment.summary.get("trainer/global_step") or 0) - 1
        for step, row in history.rows.items():
            self.log_metrics({name: float(value) for name, value in row.items()}, step)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.step = step or 0
        if self.step > self.had:
            self._define(metrics)
            super().log_metrics(metrics, step)

    def _define(self, names: Iterable[str]) -> None:
        """Has the summary keep the best and the last of a metric; a sweep's server needs plain numbers there."""
        for name in set(names) - self.defined:
            self.defined.add(name)
            goal = self.best.get(name) or goal_of(name)
            if goal is not None and "WANDB_SWEEP_ID" not in os.environ:
                self.experiment.define_metric(name, step_metric="trainer/global_step", summary=f"{goal},last")

    def summary_of(self, history: History) -> dict[str, dict[str, float]]:
        """Best and last of the metrics of validations over all parts of a run."""
        goals = {name: self.best.get(name) or goal_of(name) for name in history.names()}
        kept = {name: goal for name, goal in goals.items() if goal and "WANDB_SWEEP_ID" not in os.environ}
        found = {}
        for name, goal in kept.items():
            values = history.series(name)[1]
            found[name] = {goal: min(values) if goal == "min" else max(values), "last": values[-1]}
        return found

    def close(self, *, whole: bool = True) -> None:
        """Ends this part of the run.

        Args:
            whole: whether the row of the last step is complete.
        """
        import wandb

        wandb.finish()
        parts = sorted(path.name for path in self.closed.parent.glob("offline-run-*"))
        write_atomically(self.closed, json.dumps([parts, max(self.step - (not whole), self.had)]))


def goal_of(name: str) -> str | None:
    """Whether the `min` or the `max` of a metric of validations is the best; None: it has none."""
    if not name.startswith("val/"):
        return None
    if name.endswith(("loss", "perplexity", "bits_per_byte")):
        return "min"
    return "max" if name.endswith(("accuracy", "_f1")) else None


def end_run(logger: ResumableWandb, log: Callable[[Any], None]) -> None:
    """Logs what is left into the W&B run, and ends it; errors of W&B are warnings.

    Args:
        log: gets the run.
    """
    with tolerated(), staged_in(logger.closed.parent):
        log(logger.experiment)
        logger.close()


@contextlib.contextmanager
def staged_in(folder: Path) -> Iterator[None]:
    """Lets W&B keep its copies of uploads in the run folder instead of the user's folders."""
    before = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = before or str(folder.resolve())
    try:
        yield
    finally:
        del os.environ["WANDB_DATA_DIR"]
        if before is not None:
            os.environ["WANDB_DATA_DIR"] = before


@dataclass
class WandbOptions:
    """What Weights & Biases may record beside metrics and configuration; both are private, and off, by default.

    Args:
        system_metrics: use of processor, memory and GPU during the run.
        code: the git commit and the command line.
    """

    system_metrics: bool = False
    code: bool = False


def labels_of(tags: Iterable[str], seed: int | None) -> list[str]:
    """Tags that joined are the name of a run, as bert-sentiment-full-seed0: model, corpus or task, arm, seed."""
    return [*tags, *([] if seed is None else [f"seed{seed}"])]


def wandb_logger(
    folder: Path,
    *,
    job_type: str,
    group: str,
    tags: list[str],
    config: dict[str, Any],
    corpora: Sequence[str] = (),
    seed: int | None = None,
    options: WandbOptions | None = None,
) -> ResumableWandb | None:
    """The W&B logger of a run: offline without a key, never a login prompt; None when WANDB_MODE=disabled.

    It gets metrics and the configuration. W&B's own records of the machine, the user, the command line, the repository,
    the installed packages and the console are switched off, but for what `options` allow. `corpora` are tags too, but
    no part of the name.
    """
    allowed = options or WandbOptions()
    mode = wandb_mode()
    if mode == "disabled":
        return None
    id_file = folder / "wandb" / "run-id"  # a resumed run continues the same W&B run
    if not id_file.exists() or not RUN_ID.fullmatch(id_file.read_text(errors="replace")):
        write_atomically(id_file, own_id() or uuid.uuid4().hex[:8])
    import wandb

    return ResumableWandb(
        folder=folder,
        project=wandb_project(),
        save_dir=folder,
        id=id_file.read_text(),
        mode=mode,
        name=os.environ.get("WANDB_NAME") or "-".join(labels_of(tags, seed)),
        group=group,
        job_type=job_type,
        tags=list(dict.fromkeys(tag[:LONGEST_TAG] for tag in [*labels_of(tags, seed), *corpora] if tag)),
        config={**public(config), "folder": folder.name, **(code_of_run() if allowed.code else {})},
        resume="allow",
        settings=wandb.Settings(
            x_disable_meta=True,
            x_disable_machine_info=not allowed.system_metrics,
            x_save_requirements=False,
            disable_git=True,
            host="",
            console="off",
            silent=True,
        ),
    )


def own_id() -> str | None:
    """$WANDB_RUN_ID, as a sweep sets it, for the first run of a process: two runs of one id would be one in W&B."""
    name = os.environ.get("WANDB_RUN_ID")
    if name is None or name in TAKEN:
        return None
    TAKEN.add(name)
    return name


def code_of_run() -> dict[str, str]:
    """The command line, and the commit of the code where that is in a git repository."""
    command_line = without_secrets(shlex.join(sys.argv))
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    with contextlib.suppress(OSError):  # no git
        done = subprocess.run(command, capture_output=True, text=True)
        return {"command": command_line, **({"git": done.stdout.strip()} if not done.returncode else {})}
    return {"command": command_line}
