"""`make compare`: a grid of fine-tunes (models x tasks x arms x seeds), and one table and plot of what they gained.

What is finished is skipped, so a grid can be stopped and gone on with at any moment.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from pipeline import UserError, metrics, plots, tracking
from pipeline.configuration import recipe, task_file, task_of
from pipeline.finetune import ARMS
from pipeline.folders import digest, file_hash, path_of, write_atomically
from pipeline.labeled import content_of

FineTune = Callable[..., None]  # by name: flags, model, task, arm, seed, data, encoder, out, resume


@dataclass
class Arm:
    """One way to fine-tune.

    Args:
        seeds: how many.
        choose: flags -> values. For each model and task all combinations are run with seed 0, and the other seeds
            take the one that is best on the validation part: each arm has its own best.
    """

    seeds: int
    choose: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def settings(self) -> list[list[str]]:
        """All combinations of `choose`, as flags."""
        combinations = itertools.product(*self.choose.values())
        return [[f"--{name}={value}" for name, value in zip(self.choose, c, strict=True)] for c in combinations]


@dataclass
class Grid:
    """What to compare; a YAML file in `configs/compare` has these fields.

    Args:
        models: as in MODEL=.
        tasks: name or path of a task -> where its data are (under `data`), or None for its own source.
        arms: by name, as in ARM=.
        encoders: the encoder folder of a model, with `{model}` for its name.
        data: folder that the tasks' data are in.
        flags: of every run.
    """

    models: list[str]
    tasks: dict[str, str | None]
    arms: dict[str, Arm]
    encoders: str
    data: str = "."
    flags: list[str] = field(default_factory=list)

    def encoder(self, model: str) -> Path:
        return Path(self.encoders.format(model=model))

    def size(self) -> int:
        runs = sum(len(arm.settings) + arm.seeds - 1 for arm in self.arms.values())
        return len(self.models) * len(self.tasks) * runs


def load(file: Path, **changes: Any) -> Grid:
    """A grid from its YAML file.

    Args:
        changes: fields to replace; `arms` may name some of the file's, `seeds` is for all arms.

    Raises:
        UserError: a field is missing, unknown or of the wrong kind.
    """
    seeds, arms = changes.pop("seeds", None), changes.pop("arms", None)
    try:
        content = yaml.safe_load(file.read_text())
        places = content["tasks"] if isinstance(content["tasks"], dict) else {}  # of the tasks' data
        content |= changes
        content["arms"] = {name: Arm(**options) for name, options in content["arms"].items()}
        if isinstance(content["tasks"], list):
            content["tasks"] = {task: places.get(task) for task in content["tasks"]}
        grid = Grid(**content)
        for value, kind in ((grid.models, list), (grid.tasks, dict), (grid.flags, list)):
            if not isinstance(value, kind):
                raise TypeError(f"{value!r} is no {kind.__name__}")
        if unknown := [arm for arm in grid.arms if arm not in ARMS]:
            raise TypeError(f"there is no arm '{unknown[0]}', but {', '.join(ARMS)}")
        grid.encoder("")
        for arm in grid.arms.values():
            if not (isinstance(arm.seeds, int) and all(isinstance(values, list) for values in arm.choose.values())):
                raise TypeError("an arm has seeds, a number, and lists to choose from")
    except (TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{file} is no valid grid: {error}.") from None
    if arms is not None:
        if unknown := [arm for arm in arms if arm not in grid.arms]:
            raise UserError(f"{file} has no arm '{unknown[0]}'; it has {', '.join(grid.arms)}.")
        grid.arms = {arm: grid.arms[arm] for arm in arms}
    for arm in grid.arms.values():
        arm.seeds = seeds or arm.seeds
    return grid


def compare(grid: Grid, out: Path, finetune: FineTune, *, whole: Grid | None = None) -> None:
    """Runs what is not yet there; writes compare.csv, compare.md and compare.png into `out`.

    Args:
        whole: the grid that `grid` is a part of; what is finished of the rest stands in the table too.
    """
    out.mkdir(parents=True, exist_ok=True)
    whole = whole or grid
    models = list(dict.fromkeys([*whole.models, *grid.models]))
    whole = replace(whole, models=models, tasks={**whole.tasks, **grid.tasks})
    cells = list(itertools.product(whole.tasks, whole.models, whole.arms))
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}

    def one(model: str, task: str, arm: str, seed: int, setting: int, *, run: FineTune | None) -> dict[str, Any]:
        """A fine-tune in its folder, which is run unless it is finished: its row of the table.

        Raises:
            LookupError: it is not finished, and there is nothing to run it.
        """
        settings, location = whole.arms[arm].settings, whole.tasks[task]
        name = f"{model}-{Path(task).stem}-{arm}-{seed}" + (f"-{setting}" if len(settings) > 1 else "")
        folder, flags = out / "runs" / name, [*whole.flags, *settings[setting]]
        data = None if location is None else str(path_of(whole.data) / location)
        shared: dict[str, Any] = {"task": task, "data": data, "encoder": whole.encoder(model), "arm": arm}
        cell = cell_of(**shared, flags=flags)
        figures = finished(folder, cell)
        if run is not None:
            bar.set_postfix_str(name)
            bar.initial += figures is not None  # which says nothing about the time of a run
            figures = once(folder, cell, partial(run, **shared, flags=flags, model=model, seed=seed, out=folder))
            bar.update()
        if figures is None:
            raise LookupError(name)
        row = {"model": model, "task": task, "arm": arm, "seed": seed, "flags": " ".join(settings[setting])}
        return row | summary(figures)

    def rows_of(task: str, model: str, name: str, **how: Any) -> list[dict[str, Any]]:
        arm = whole.arms[name]
        tried = [one(model, task, name, 0, setting, **how) for setting in range(len(arm.settings))]
        best = max(range(len(tried)), key=lambda setting: tried[setting]["chosen_by"])
        return [tried[best], *(one(model, task, name, seed, best, **how) for seed in range(1, arm.seeds))]

    for cell in cells:
        with contextlib.suppress(LookupError, UserError):  # not run, or its encoder or data are gone
            found[cell] = rows_of(*cell, run=None)
    with tqdm(total=grid.size(), desc="compare", unit="run", smoothing=0, file=sys.stderr) as bar:
        for cell in itertools.product(grid.tasks, grid.models, grid.arms):
            found[cell] = rows_of(*cell, run=finetune)
            report([row for cell in cells for row in found.get(cell, [])], whole, out)


def cell_of(*, task: str, data: str | None, encoder: Path, arm: str, flags: list[str]) -> dict[str, Any]:
    """What the figures of a fine-tune depend on, beside its seed; fresh weights are the same for any encoder's."""
    if not (encoder / "model.safetensors").is_file():
        raise UserError(f"There is no encoder in {encoder}; run `make pretrain` for it first, or set FROM=.")
    file = task_file(task)
    names = ["config.json", "tokenizer.json", *([] if arm in ("scratch", "random") else ["model.safetensors"])]
    return {
        "encoder": digest([file_hash(encoder / name) for name in names if (encoder / name).is_file()]),
        "arm": arm,
        "data": content_of(task_of(file), data),
        "files": recipe(file),
        "flags": flags,
    }


def finished(folder: Path, cell: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a folder's `metrics.json`, if it is there and made of the same."""
    note, figures = folder / "cell.json", folder / "metrics.json"
    if note.is_file() and figures.is_file() and json.loads(note.read_text()) == cell:
        return json.loads(figures.read_text())
    return None


def once(folder: Path, cell: dict[str, Any], run: Callable[..., None]) -> dict[str, Any]:
    """Runs what writes `metrics.json` into a folder, unless it is there and made of the same; returns its content.

    Args:
        cell: what the figures depend on.
        run: takes `resume`, whether to go on with a run of the same that was stopped.
    """
    if (there := finished(folder, cell)) is not None:
        return there
    note, figures = folder / "cell.json", folder / "metrics.json"
    before = json.loads(note.read_text()) if note.is_file() else {}
    folder.mkdir(parents=True, exist_ok=True)
    if figures.is_file():
        differs = [name for name in cell if cell[name] != before.get(name)]
        tqdm.write(f"{folder.name} is run anew: not of the same {', '.join(differs)}.", file=sys.stderr)
    if before != cell:  # a kill must not leave anything of another run beside the new note
        figures.unlink(missing_ok=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    write_atomically(note, json.dumps(cell) + "\n")
    with tracking.quiet(folder / "log.txt"):
        run(resume=before == cell and (folder / "checkpoints" / "last.ckpt").is_file())
    return json.loads(figures.read_text())


def summary(figures: dict[str, Any]) -> dict[str, Any]:
    """What the table takes from `metrics.json`."""
    [metric] = [name.removeprefix("val/best_") for name in figures if name.startswith("val/best_")]
    kept = {name: value for name, value in figures.items() if name.startswith("baseline/")}
    return {
        "metric": metric,
        "score": figures[f"test/{metric}"],
        "chosen_by": figures[f"val/best_{metric}"],
        "degenerate": figures["degenerate"],
        "tokens": figures["tokens"],
        "minutes": figures["seconds"] / 60,
        **kept,
    }


# ---------------------------------------------------------------------- the report


def report(rows: list[dict[str, Any]], grid: Grid, out: Path) -> None:
    """Writes what there is of a grid."""
    models, tasks, arms = ({row[name] for row in rows} for name in ("model", "task", "arm"))
    grid = replace(
        grid,
        models=[model for model in grid.models if model in models],
        tasks={task: place for task, place in grid.tasks.items() if task in tasks},
        arms={name: arm for name, arm in grid.arms.items() if name in arms},
    )
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(out / "compare.csv", text.getvalue())
    write_atomically(out / "compare.md", table(rows, grid))
    plot(rows, grid, out / "compare.png")


def scores_of(rows: Iterable[dict[str, Any]], model: str, task: str, arm: str) -> list[float]:
    return [row["score"] for row in rows if (row["model"], row["task"], row["arm"]) == (model, task, arm)]


def pretrained_arm(arms: list[str]) -> str | None:
    """The arm whose gain over scratch is reported."""
    return next((arm for arm in ("full", "frozen", "random") if arm in arms and "scratch" in arms), None)


def best_baseline(rows: list[dict[str, Any]]) -> tuple[str, list[float]]:
    """The name of the baseline that is best on the mean, and its score beside each run: training rows may differ."""
    found = {name: [float(row[name]) for row in rows] for name in rows[0] if name.startswith("baseline/")}
    best = max(found, key=lambda name: sum(found[name]))
    return best.removeprefix("baseline/").replace("_", " "), found[best]


def table(rows: list[dict[str, Any]], grid: Grid) -> str:
    """Markdown: a line for each model and task."""
    arms = list(grid.arms)
    gains = [f"gain of {arm} over scratch" for arm in [pretrained_arm(arms)] if arm]
    head = ["task", "model", *arms, *gains, "best baseline", "tokens", "minutes"]
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for task, model in itertools.product(grid.tasks, grid.models):
        mine = [row for row in rows if (row["task"], row["model"]) == (task, model)]
        if mine:
            lines.append("| " + " | ".join(_cells(mine, task, model, arms)) + " |")
    return "\n".join(lines) + "\n\n" + NOTE


NOTE = """\
Scores on the test part: mean ± standard deviation over seeds (all runs). A gain is the mean of the differences of
runs with the same seed, with its 95 % interval (paired t) where there are several; where a baseline is better than
scratch, the gain over it stands beside. "No gain": not surely above 0 in both. † as many runs gave one label always.
Tokens and minutes are the mean of a run.
"""


def _cells(rows: list[dict[str, Any]], task: str, model: str, arms: list[str]) -> list[str]:
    cells = [f"{Path(task).stem} ({rows[0]['metric'].replace('_', ' ')})", model]
    by_arm = {arm: scores_of(rows, model, task, arm) for arm in arms}
    for arm, scores in by_arm.items():
        flat = sum(bool(row["degenerate"]) for row in rows if row["arm"] == arm)
        cells.append(described(scores) + (f" {flat}†" if flat else ""))
    name, values = best_baseline(rows)
    if tuned := pretrained_arm(arms):
        beside = [value for value, row in zip(values, rows, strict=True) if row["arm"] == tuned]
        cells.append(gains(by_arm[tuned], by_arm["scratch"], beside))
    cells.append(f"{sum(values) / len(values):.3f} ({name})")
    tokens, minutes = (sum(row[name] for row in rows) / len(rows) for name in ("tokens", "minutes"))
    return [*cells, f"{tokens:,.0f}", f"{minutes:.1f}"]


def described(scores: list[float]) -> str:
    if not scores:
        return ""
    mean, deviation = metrics.mean_and_deviation(scores)
    if len(scores) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {deviation:.3f} ({', '.join(f'{score:.3f}' for score in scores)})"


def gains(scores: list[float], scratch: list[float], baseline: list[float]) -> str:
    """Over scratch, and over the best baseline where that beats scratch; says where pretraining did not help."""
    runs = list(zip(scores, scratch, baseline, strict=False))
    if not runs:
        return ""
    ours, theirs, simple = zip(*runs, strict=True)
    text, helped = gain(ours, theirs)
    if sum(simple) > sum(theirs):
        over_simple, helped_too = gain(ours, simple)
        text, helped = f"{text}; {over_simple} over the baseline", helped and helped_too
    return text if helped else f"{text}: no gain"


def gain(scores: Sequence[float], others: Sequence[float]) -> tuple[str, bool]:
    """Mean of the differences with its interval, and whether that is above 0."""
    mean, half = metrics.paired_gain(scores, others)
    if half is None:
        return f"{mean:+.3f}", mean > 0
    return f"**{mean:+.3f}** [{mean - half:+.3f}, {mean + half:+.3f}]", mean > half


def plot(rows: list[dict[str, Any]], grid: Grid, file: Path) -> None:
    """The gain over scratch of each model on each task, with intervals; crosses: the best baseline over scratch."""
    arm = pretrained_arm(list(grid.arms))
    if arm is None:
        return
    tasks = list(grid.tasks)
    figure, axes = plots.subplots(figsize=(3 + 1.6 * len(tasks), 4))
    for place, model in enumerate(grid.models):
        offset = 0.2 * (place - (len(grid.models) - 1) / 2)
        for number, task in enumerate(tasks):
            pairs = list(zip(*(scores_of(rows, model, task, side) for side in (arm, "scratch")), strict=False))
            if not pairs:
                continue
            mean, half = metrics.paired_gain(*zip(*pairs, strict=True))
            axes.errorbar(number + offset, mean, yerr=half, fmt="o", color=f"C{place}", capsize=3)
            _, values = best_baseline([row for row in rows if (row["task"], row["model"]) == (task, model)])
            over = sum(values) / len(values) - sum(score for _, score in pairs) / len(pairs)
            axes.plot(number + offset, over, "x", color=f"C{place}", alpha=0.6)
        axes.plot([], [], "o", color=f"C{place}", label=model)
    axes.plot([], [], "x", color="grey", label="best baseline")
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(tasks)), [Path(task).stem for task in tasks])
    several = min(grid.arms[side].seeds for side in (arm, "scratch")) > 1
    axes.set_ylabel(f"{arm} minus scratch ({'95 % interval over seeds' if several else 'one seed'})")
    axes.legend()
    plots.save_figure(figure, file)
