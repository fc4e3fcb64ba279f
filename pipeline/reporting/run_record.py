"""What a run folder holds, as a report reads it. Files that an older version did not write are missing, no error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.experiments import run_cache
from pipeline.models import registry
from pipeline.presets import former_names
from pipeline.storage.checksums import digest
from pipeline.storage.validation import parse_json, read_json, read_text, read_yaml
from pipeline.tracking import lineage
from pipeline.tracking.history import History, read_metrics
from pipeline.tracking.metric_names import baselines_of


@dataclass(frozen=True)
class RunRecord:
    """A finished run.

    Attributes:
        kind: pretrain, finetune or zeroshot.
        stages: of its lineage.
        metrics: final figures.
    """

    folder: Path
    kind: str
    stages: list[lineage.Stage]
    metrics: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Opens a run folder.

        Raises:
            UserError: it holds no finished run, or a file of it is damaged.
        """
        if not (folder / "metrics.json").is_file() or not (folder / lineage.FILE).is_file():
            raise UserError(f"{folder} holds no finished run: metrics.json or {lineage.FILE} is missing.")
        stages = lineage.read(folder)
        kind = lineage.run_of(stages)
        if kind not in ("pretrain", "finetune", "zeroshot"):
            raise UserError(f"{folder} holds a run of kind {kind}; reports are of pretrain, finetune and zeroshot.")
        return cls(folder, kind, stages, read_metrics(folder))

    def stage(self, kind: str) -> lineage.Stage:
        """The last stage of a kind; empty where the lineage has none."""
        return lineage.last(self.stages, kind)

    @property
    def encoder(self) -> str | None:
        """The hash of the encoder that the run made, or of the weights that it began with."""
        if self.kind == "pretrain":
            return self.stage("encoder").get("sha256")
        return lineage.weights_of(self.beginnings) or None

    @property
    def beginnings(self) -> list[lineage.Stage]:
        """The stages up to the weights that it began with; all before the run where there are none."""
        last = max(number for number, stage in enumerate(self.stages) if stage["stage"] == self.kind)
        before = self.stages[:last]
        while before and before[-1]["stage"] not in ("encoder", "model"):
            before.pop()
        return before or self.stages[:last]

    @property
    def corpus(self) -> str:
        return self.stage("corpus").get("name", "an unknown corpus")

    @property
    def task(self) -> str:
        return self.stage("task").get("name", "")

    @property
    def arm(self) -> str:
        return str((self.config.get("model") or {}).get("arm", "")) if self.kind == "finetune" else self.kind

    @property
    def seed(self) -> int:
        return int(self.stage(self.kind).get("seed", 0))

    @property
    def experiment(self) -> Path | None:
        """The folder of the comparison, or of another experiment, that it is one of many runs of."""
        return self.folder.parent.parent if (self.folder / run_cache.NOTE).is_file() else None

    @property
    def version(self) -> str:
        return str(self.stage(self.kind).get("version", "unknown"))

    @cached_property
    def model(self) -> str:
        """The type of its model, as in the configuration of what the run made or used."""
        folders = [self.folder / "encoder", self.folder / "model", Path(str(self.config.get("encoder") or ""))]
        for folder in folders:
            if (folder / "config.json").is_file():
                with contextlib.suppress(UserError):
                    return registry.variant(read_json(folder / "config.json", dict[str, Any]))
        return "model"

    @cached_property
    def config(self) -> dict[str, Any]:
        file = self.folder / "config.yaml"
        content = read_yaml(file) if file.is_file() else {}
        return content if isinstance(content, dict) else {}

    @property
    def data(self) -> str:
        """A hash of the task, as its YAML file has it, and of where its rows are and how many are trained on."""
        data = former_names.current(self.config).get("data") or {}
        return digest(*(data.get(name) for name in ("task", "files", "train_rows")))

    @property
    def setting(self) -> str:
        """A hash of the configuration without the seed: runs that share it differ by chance alone."""
        return lineage.setting_of(self.config)

    @cached_property
    def history(self) -> History:
        history = History(self.folder)
        history.restore(1 << 60)
        return history

    @property
    def metric(self) -> str | None:
        """What chose the checkpoint of a fine-tune."""
        names = [name.removeprefix("val/best_") for name in self.metrics if name.startswith("val/best_")]
        return names[0] if names else None

    @property
    def is_lower_better(self) -> bool:
        """Whether less of the metric is better; of older runs whether the best validation is the lowest."""
        if "mode" in self.metrics:
            return bool(self.metrics["mode"] == "min")
        best = self.metrics.get(f"val/best_{self.metric}")
        values = self.history.series(f"val/{self.metric}")[1]
        return bool(values) and best is not None and abs(best - min(values)) < abs(best - max(values))

    def baselines(self) -> dict[str, float]:
        """Those in the metric of the run, by name in words."""
        found = baselines_of(self.metrics)
        return {name.removeprefix("baseline/").replace("_", " "): value for name, value in found.items()}

    def text(self, name: str) -> str:
        """A text file of the folder; empty where there is none."""
        file = self.folder / name
        return read_text(file).strip() if file.is_file() else ""

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none."""
        file = self.folder / name
        return read_json(file, dict[str, Any]) if file.is_file() else {}

    @cached_property
    def predictions(self) -> list[dict[str, Any]]:
        file = self.folder / "predictions.jsonl"
        if not file.is_file():
            return []
        lines = enumerate(read_text(file).split("\n"), 1)
        return [parse_json(line, f"{file}, line {number}") for number, line in lines if line.strip()]

    def row(self) -> dict[str, Any]:
        """A fine-tune as a row of a comparison.

        Raises:
            LookupError: a figure is missing.
        """
        metrics = self.metrics
        return {
            "model": self.model,
            "task": self.task,
            "arm": self.arm,
            "seed": self.seed,
            "metric": self.metric,
            "mode": "min" if self.is_lower_better else "max",
            "score": metrics[f"test/{self.metric}"],
            "degenerate": metrics.get("degenerate", False),
            "tokens": metrics["tokens"],
            "minutes": metrics["seconds"] / 60,
            "version": self.version,
            **{name: metrics[name] for name in ("precision", "device") if name in metrics},
            **baselines_of(metrics),
        }


def runs_under(folders: Iterable[Path]) -> Iterator[RunRecord]:
    """All finished runs under folders; what cannot be read is left out."""
    for folder in folders:
        for file in sorted(folder.rglob(lineage.FILE)):
            aside = any(re.fullmatch(r"\..*before", part) for part in file.relative_to(folder).parts)
            if (file.parent / "metrics.json").is_file() and not aside:
                with contextlib.suppress(UserError):
                    yield RunRecord.read(file.parent)
