"""A task's data as a LightningDataModule: files or hub -> examples -> length-bucketed batches."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader

from pipeline import UserError, sample, text
from pipeline.batches import shared
from pipeline.corpus import FromStep, StepParts
from pipeline.encoders.base import Batch, Encoder, count
from tasks.base import SPLITS, Example, LabelError, Task

POOL = 50  # batches whose rows are sorted by length together


class LabeledData(lightning.LightningDataModule):
    """Labelled texts as batches for fine-tuning.

    Args:
        task: columns, labels and where the data are.
        files: local folder or pattern instead of the task's hub name.
        batch_size: rows of one optimiser step.
        max_length: most tokens of a text, special ones included (None: the encoder's positions); longer ones are
            cut at the end, and counted.
        epochs: passes over the training part.
        workers: loader processes.
        train_rows: use only so many training rows.
        seed: of the order and of the rows set aside.
    """

    def __init__(
        self,
        *,
        task: Task,
        batch_size: int,
        max_length: int | None,
        epochs: float,
        workers: int,
        files: str | None = None,
        train_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.task, self.files, self.batch_size, self.max_length = task, files, batch_size, max_length
        self.epochs, self.workers, self.train_rows, self.seed = epochs, workers, train_rows, seed
        self.examples: dict[str, list[Example]] = {}
        self.ids: dict[str, list[Any]] = {}
        self.encoder: Encoder

    def prepare(self, encoder: Encoder) -> None:
        """Reads all parts and turns their texts into token ids."""
        if (self.max_length or 0) > encoder.max_length:
            raise UserError(
                f"data.max_length is {self.max_length}, but the encoder has only {encoder.max_length} positions."
            )
        self.room = self.max_length or encoder.max_length
        self.encoder = encoder
        self.examples = self._read()
        for split, examples in self.examples.items():
            if not examples:
                raise UserError(f"The {split} part of the task holds no row.")
            self.ids[split] = encoder.tokenize([example.text for example in examples])

    def report(self) -> str:
        parts = []
        for split, ids in self.ids.items():
            cut = sum(self._is_cut(row) for row in ids)
            parts.append(f"{split} {len(ids):,} rows" + (f" ({cut:,} cut to {self.room} tokens)" if cut else ""))
        return "task        " + ", ".join(parts) + f"; labels {', '.join(self.task.label_names)}"

    def _is_cut(self, ids: Any) -> bool:
        if not isinstance(ids, tuple):
            return len(ids) > self.room - 2
        return count(ids) > self.room - 3 if self.encoder.joins_pairs else max(map(len, ids)) > self.room - 2

    def _read(self) -> dict[str, list[Example]]:
        parts = {split: self._rows(split) for split in SPLITS}
        train, valid, test = (parts[split] for split in SPLITS)
        if train is None or test is None:
            raise UserError(f"The task needs a train and a test part; {self.files or 'its source'} has not both.")
        if valid is None:
            if not 0 < self.task.valid_rows < len(train):
                raise UserError(
                    f"The training part has {len(train)} rows, too few to set {self.task.valid_rows} aside."
                )
            order = np.random.default_rng(0).permutation(len(train))
            valid = [train[i] for i in order[: self.task.valid_rows]]
            train = [train[i] for i in np.sort(order[self.task.valid_rows :])]
        if self.train_rows is not None and self.train_rows < len(train):
            chosen = np.random.default_rng(self.seed).permutation(len(train))[: self.train_rows]
            train = [train[i] for i in chosen]
        return {"train": train, "valid": valid, "test": test}

    def _rows(self, split: str) -> list[Example] | None:
        task = self.task
        try:
            if self.files is not None:
                if split not in task.splits:
                    return None
                found = self._local_file(task.splits[split])
                return None if found is None else task.examples(read_rows(found), str(found))
            if task.sample is not None:
                return task.examples(getattr(sample, task.sample)(split), f"the sample's {split} part")
            if split not in task.splits or task.hub is None:
                return None
            name = task.hub_splits.get(split, task.splits[split])
            rows = text.open_hub(**task.hub, split=name)
            return task.examples(rows, f"{task.hub['path']} ({name})")
        except LabelError as error:
            raise UserError(str(error)) from None

    def _local_file(self, begin: str) -> Path | None:
        assert self.files is not None
        folder = Path(self.files).expanduser()
        candidates = sorted(folder.iterdir()) if folder.is_dir() else sorted(Path().glob(self.files))
        if not candidates:
            raise UserError(f"There is no task data at {self.files}: no such folder or pattern.")
        found = [path for path in candidates if path.name.startswith(begin) and path.suffix in READERS]
        return found[0] if found else None

    # ------------------------------------------------------------------ batches

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.ids["train"]) // self.batch_size)

    def batch(self, split: str, rows: np.ndarray) -> Batch:
        batch = self.encoder.collate_for_head([self.ids[split][i] for i in rows], self.room)
        labels = torch.tensor([self.examples[split][i].label for i in rows])
        return {**batch, "labels": labels, "rows": torch.from_numpy(rows), "total/task": torch.tensor(len(rows))}

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        steps = Buckets([count(ids) for ids in self.ids["train"]], self.batch_size, self.seed, self)
        parts = self.trainer.accumulate_grad_batches
        data = StepParts(steps, parts=parts, world=self.trainer.world_size, rank=self.trainer.global_rank)
        order = FromStep(first=self.trainer.global_step * parts, total=self.trainer.max_steps * parts)
        return DataLoader(data, sampler=order, batch_size=None, num_workers=self.workers)

    def _evaluation(self, split: str) -> DataLoader:
        order = np.argsort([count(ids) for ids in self.ids[split]], kind="stable")
        batches = [order[i : i + 64] for i in range(0, len(order), 64)]
        return DataLoader(batches, batch_size=None, collate_fn=lambda rows: self.batch(split, np.asarray(rows)))  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader:
        return self._evaluation("valid")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation("test")


@dataclass
class Buckets:
    """Training batches by step: rows of similar length together, in an order of its own each epoch."""

    lengths: list[int]
    batch_size: int
    seed: int
    data: LabeledData

    def __post_init__(self) -> None:
        self._epoch: tuple[int, list[np.ndarray]] | None = None

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Rows of each batch of an epoch: a pure function of (seed, epoch); every row once."""
        rng = np.random.default_rng((self.seed, epoch))
        order = rng.permutation(len(self.lengths))
        lengths = np.asarray(self.lengths)
        batches: list[np.ndarray] = []
        for begin in range(0, len(order), POOL * self.batch_size):
            pool = order[begin : begin + POOL * self.batch_size]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, -(-len(self.lengths) // self.batch_size))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self.plan(epoch))
        return self.data.batch("train", self._epoch[1][index])

    def part(self, batch: Batch, index: int, parts: int) -> Batch:
        """Every `parts`-th row; what does not belong to a row is kept."""
        return {name: value if shared(name) else value[index::parts] for name, value in batch.items()}


def _read_table(path: Path, delimiter: str) -> list[Mapping[str, Any]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter, quoting=csv.QUOTE_NONE))


def _read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def _read_parquet(path: Path) -> list[Mapping[str, Any]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


READERS: dict[str, Callable[[Path], list[Mapping[str, Any]]]] = {
    ".tsv": lambda path: _read_table(path, "\t"),
    ".csv": lambda path: _read_table(path, ","),
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


def read_rows(path: Path) -> list[Mapping[str, Any]]:
    """Rows of a .tsv or .csv (with a header, quotes are plain characters), .jsonl or .parquet file."""
    try:
        return READERS[path.suffix](path)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.") from None
    except (json.JSONDecodeError, csv.Error, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None
