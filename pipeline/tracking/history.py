"""Metrics on disk: `metrics.csv`, the history of a run, and `metrics.json`, its final metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from pipeline.console.rank import is_main
from pipeline.presets import former_names
from pipeline.storage.atomic import write_atomically, write_json
from pipeline.storage.csv_table import csv_table
from pipeline.storage.validation import read_json

WALL_CLOCK = ("tokens_per_second", "flops_per_second", "share_of_peak", "data_share")  # they differ between equal runs
LOCAL = ("device", "date")  # metrics.json has them, Weights & Biases does not: they are about the machine


def current_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that an older version may have written, under today's names."""
    return {former_names.METRICS.get(name, name): value for name, value in metrics.items()}


def write_metrics(folder: Path, metrics: dict[str, Any]) -> None:
    """Writes `metrics.json`, flat. It is the last file of a run: a run folder with it is finished."""
    write_json(folder / "metrics.json", metrics)


def read_metrics(folder: Path) -> dict[str, Any]:
    """The final metrics of a run.

    Raises:
        UserError: `metrics.json` is missing or damaged.
    """
    return current_names(read_json(folder / "metrics.json", dict[str, float | int | bool | str | None]))


class History(Logger):
    """A logger that writes `metrics.csv`, a row for each step that is logged; the file is replaced atomically."""

    name = "history"
    version = ""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "metrics.csv"
        self.rows: dict[int, dict[str, Any]] = {}

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        pass  # config.yaml has them

    def restore(self, step: int) -> None:
        """Reads the rows of an earlier part of the run, up to the resumed step; warns if some are damaged."""
        if not self.file.exists():
            if step:
                print(f"Warning: {self.file} is missing: curves begin at step {step:,}.")
            return
        text = self.file.read_bytes().decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
        reader = csv.DictReader(io.StringIO(text))
        damaged = int("step" not in (reader.fieldnames or ["step"]))
        rows = iter(reader)
        while True:
            try:
                row = next(rows, None)
                if row is None:
                    break
                number = int(row.pop("step"))
                metrics = {name: value for name, value in row.items() if value}
                for value in metrics.values():
                    float(value)
            except (KeyError, TypeError, ValueError, csv.Error):  # no such column, too many or long cells, no number
                damaged += 1
                continue
            if number <= step:
                self.rows[number] = current_names(metrics)
        if damaged:
            print(f"Warning: {self.file} is damaged: {damaged:,} lines of it are left out of the history.")

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.setdefault(step or 0, {}).update(metrics)

    def save(self) -> None:
        if not is_main():
            return
        names = self.names()
        rows = [[step, *(_number(row.get(name)) for name in names)] for step, row in self.rows.items()]
        write_atomically(self.file, csv_table(["step", *names], rows))

    def names(self) -> list[str]:
        """Names of all metrics, in the order in which they were logged first."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def mixed_layers(self) -> list[str]:
        """Names of the weights of layers in a scalar mix, from the embeddings up."""
        names = [name for name in self.names() if name.startswith("mix/layer_")]
        return sorted(names, key=lambda name: int(name.rpartition("_")[2]))

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric."""
        points = [(step, float(row[name])) for step, row in self.rows.items() if name in row]
        return [step for step, _ in points], [value for _, value in points]

    def finalize(self, status: str) -> None:
        self.save()


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)
