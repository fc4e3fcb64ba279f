"""A task's data as a LightningDataModule: files or hub -> examples -> length-bucketed batches."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from pipeline.data import files, hub
from pipeline.data.synthetic.tasks import SYNTHETIC
from pipeline.data.tables import SUFFIXES, kind_of, read_rows
from pipeline.errors import UserError
from pipeline.finetuning.features import Cut, Feature, collate, features_of
from pipeline.finetuning.heads import head_class
from pipeline.models.base import Encoder
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.sampling import MicroBatches, ResumableSampler
from pipeline.storage.checksums import digest, file_hash
from pipeline.storage.paths import path_of
from tasks.base import Example, Task
from tasks.dataset import SPLITS, DataSet, Row, listed

SHORTEST = 8  # positions of a text, with its special tokens
MANY_SHARED = 0.1  # of the texts of a part that is not trained on
MOST_ASIDE = 5  # at most one training row in so many is set aside for validation, where a number is asked for
POOL = 50  # batches whose rows are sorted by length together
SHARD = re.compile(r"-\d+-of-(\d+)[-.]")  # in the name of a part of a part


class TaskData(lightning.LightningDataModule):
    """Labelled texts as batches for fine-tuning.

    Args:
        task: columns, labels and where the data are.
        files: local folder or pattern instead of the task's hub name.
        batch_size: rows of one optimizer step.
        max_length: most tokens of a text, special ones included (None: the encoder's positions). Longer texts are
            cut, and counted; longer lists of words are read in windows that overlap.
        cut: which part of a longer text is kept (see features.shorten).
        epochs: passes over the training part.
        workers: loader processes.
        train_rows: train on this many rows only.
        seed: of the order and of the `train_rows`; the rows set aside for validation are the same for every seed.
    """

    def __init__(
        self,
        *,
        task: Task,
        batch_size: int,
        max_length: int | None,
        cut: Cut,
        epochs: float,
        workers: int,
        files: str | None = None,
        train_rows: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        above = {"batch_size": batch_size, "epochs": epochs, "train_rows": train_rows, "max_length": max_length}
        for name, value in above.items():
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"data.{name} is {value}; it must be above 0.")
        if workers < 0:
            raise UserError(f"data.workers is {workers}; it must be at least 0.")
        if task.head is None:
            raise UserError("The task has prompts and nothing to train on.")
        self.task, self.files, self.batch_size, self.max_length, self.cut = task, files, batch_size, max_length, cut
        self.epochs, self.workers, self.train_rows, self.seed = epochs, workers, train_rows, seed
        self.head_name, self.head = task.head, head_class(task.head)
        if self.head.by_word and cut != "head":
            raise UserError("data.cut is for texts of one label; a sentence to be tagged is read in windows, whole.")
        self.examples: dict[str, list[Example]] = {}
        self.features: dict[str, list[Feature]] = {}
        self.renamed: list[str] = []  # columns that are called as their role is, and not as the task says
        self.set_aside = ""  # how the validation part was made, where it is a part of the training rows
        self.trained_on: Counter[str] = Counter()  # of a part: texts that are in the training part too
        self.encoder: Encoder

    def setup(self, stage: str) -> None:
        """Reads the task with the encoder of the module, unless `prepare` has been called."""
        if not self.features:
            assert self.trainer is not None
            self.prepare(self.trainer.lightning_module.load_encoder())  # type: ignore[operator]

    def prepare(self, encoder: Encoder) -> None:
        """Reads all parts and turns their texts into token ids.

        Raises:
            UserError: a part is missing or empty, a row does not fit the task, or a row of ids not the encoder.
        """
        if (self.max_length or 0) > encoder.max_length:
            raise UserError(
                f"data.max_length is {self.max_length}, but the encoder has only {encoder.max_length} positions."
            )
        self.longest = self.max_length or encoder.max_length
        if self.longest < SHORTEST:
            raise UserError(f"data.max_length is {self.longest}; a text needs at least {SHORTEST} positions.")
        self.encoder = encoder
        self.examples = self.read()
        for split, examples in self.examples.items():
            self.features[split] = features_of(
                encoder,
                [example.text for example in examples],
                by_word=self.head.by_word,
                max_length=self.longest,
                cut=self.cut,
            )
            if not self.features[split]:
                raise UserError(f"The {split} part of the task holds no row; the first line of a table is its header.")

    def stage(self, name: str) -> dict[str, Any]:
        """The task as a stage of a lineage; its hash is that of texts and labels as they were read."""
        rows = {split: [[example.text, example.label] for example in part] for split, part in self.examples.items()}
        counts = {split: len(part) for split, part in rows.items()}
        hub = {"hub": self.task.hub["path"]} if self.files is None and self.task.hub is not None else {}
        return {"stage": "task", "name": name, "sha256": digest(rows), "rows": counts, **hub}

    # ------------------------------------------------------------------ report

    def report(self) -> str:
        """Rows and labels of all parts, and what is remarkable about them."""
        parts = []
        for split in self.features:
            notes = ", ".join(self._notes(split))
            parts.append(f"{split} {len(self.examples[split]):,} rows" + (f" ({notes})" if notes else ""))
        shown = f"task        {', '.join(parts)}; {self.task.describe_labels(self.examples.get('train', []))}"
        shown += f"; read from the column {', '.join(self.renamed)}" if self.renamed else ""
        return "\n".join([shown, *(f"            {warning}" for warning in self.warnings())])

    def _notes(self, split: str) -> Iterator[str]:
        features = self.features[split]
        if cut := sum(feature.was_cut for feature in features):
            yield f"{cut:,} cut to {self.longest} tokens"
        if windows := len(features) - len({feature.text for feature in features}):
            yield f"{windows:,} more windows of {self.longest} tokens"
        if empty := sum(not any(example.text) for example in self.examples[split]):
            yield f"{empty:,} empty"
        if shared := self.trained_on[split]:
            yield f"{shared:,} of the same text as a training row"
        if split == "valid" and self.set_aside:
            yield self.set_aside

    def warnings(self) -> Iterator[str]:
        """What may not be what was meant."""
        for split in ("valid", "test"):
            if self.trained_on[split] > MANY_SHARED * len(self.examples.get(split, [])):
                yield f"Warning: many {split} texts are training texts too: its figures say little of new ones."
        for split, name in self.task.splits.items() if self.files is not None else ():
            found = files_of(self.task, str(self.files), split)
            if odd := [path.name for path in found if how_named(path.name, name) is None]:
                yield f"Warning: the {split} part is read from {listed(odd)}, whose name only begins as '{name}'."

    # ------------------------------------------------------------------ rows -> examples

    def read(self) -> dict[str, list[Example]]:
        """The examples of all parts.

        Raises:
            UserError: a part is missing or empty, or a row does not fit the task.
        """
        rows = self._rows()
        self.task.learn_labels(rows["train"])
        self.task.check_label_names()
        parts = {split: self.task.examples(part) for split, part in rows.items()}
        self._note_renamed(rows["train"][0])
        self.task.check_labels(parts["train"])
        if "valid" not in parts:
            self._set_aside(parts)
        self._subsample(parts)
        self._count_shared(parts)
        return {split: parts[split] for split in SPLITS}

    def _rows(self) -> dict[str, list[Row]]:
        """The rows of the parts that there are: training and test part at least, none of them empty."""
        found = {split: rows_of(self.task, self.files, split) for split in SPLITS}
        for split in ("train", "test"):
            if found[split] is None:
                named = f"no file at {self.files} is named '{self.task.splits.get(split, split)}'"
                without = "set DATA= to a folder of files, or hub in the task's YAML"
                raise UserError(f"The task has no {split} part: {named if self.files else without}.")
        rows = {split: part for split, part in found.items() if part is not None}
        for split, part in rows.items():
            if not part:
                raise UserError(f"The {split} part of the task holds no row; the first line of a table is its header.")
        return rows

    def _note_renamed(self, row: Row) -> None:
        columns = row[1]
        self.renamed = [
            f"{role} (there is no {name})"
            for role, name in self.task.columns.items()
            if name not in columns and role in columns
        ]

    def _set_aside(self, parts: dict[str, list[Example]]) -> None:
        """Makes the validation part of some of the training rows: the same ones for every seed."""
        train, count = parts["train"], rows_aside(self.task, len(parts["train"]))
        self.set_aside, wanted = "set aside from training", int(self.task.valid_rows or 0)
        if wanted > count:
            self.set_aside = f"{count:,} of {len(train):,} training rows set aside"
            self.set_aside += f": valid_rows {wanted:,} is capped at a fifth"
        order = np.random.default_rng(0).permutation(len(train))
        parts["valid"] = [train[i] for i in order[:count]]
        parts["train"] = [train[i] for i in np.sort(order[count:])]

    def _subsample(self, parts: dict[str, list[Example]]) -> None:
        if self.train_rows is not None and self.train_rows < len(parts["train"]):
            chosen = np.random.default_rng(self.seed).permutation(len(parts["train"]))[: self.train_rows]
            parts["train"] = [parts["train"][i] for i in chosen]

    def _count_shared(self, parts: dict[str, list[Example]]) -> None:
        trained = {_content(example) for example in parts["train"]}
        for split in ("valid", "test"):
            self.trained_on[split] = sum(_content(example) in trained for example in parts[split])

    # ------------------------------------------------------------------ batches

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.features["train"]) // self.batch_size)

    def batch(self, split: str, rows: np.ndarray) -> Batch:
        """Features by number, with their labels as the head takes them."""
        features = [self.features[split][i] for i in rows]
        inputs = collate(self.encoder, features)
        labels, count = self.head.collate([self.examples[split][feature.text].label for feature in features], features)
        shared = {name: inputs.pop(name) for name in self.encoder.shared_inputs}
        following = (inputs["mask"].sum() - len(features)).clamp(min=1)  # tokens that have one before them
        targets = {"task": Target(labels, count), "lm": Target(inputs["input_ids"], following)}
        return Batch(inputs, targets, rows=torch.from_numpy(rows), shared=shared)

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        steps = Buckets([len(feature) for feature in self.features["train"]], self.batch_size, self.seed, self)
        parts = self.trainer.accumulate_grad_batches
        data = MicroBatches(steps, parts=parts, world=self.trainer.world_size, rank=self.trainer.global_rank)
        order: Sampler[int] = ResumableSampler(
            first=self.trainer.global_step * parts, total=self.trainer.max_steps * parts
        )
        if self.trainer.max_steps <= 0:
            order = NextEpoch(self.trainer, steps=self.steps_per_epoch)
        return DataLoader(data, sampler=order, batch_size=None, num_workers=self.workers)

    def _evaluation(self, split: str) -> DataLoader:
        """Every row once, whatever the number of processes."""
        order = np.argsort([len(feature) for feature in self.features[split]], kind="stable")
        world, rank = (1, 0) if self.trainer is None else (self.trainer.world_size, self.trainer.global_rank)
        if len(order) < world:
            raise UserError(f"The {split} part has {len(order)} rows, fewer than the {world} processes.")
        size = min(64, len(order) // world)  # so that each process has a batch
        batches = [order[i : i + size] for i in range(0, len(order), size)][rank::world]
        return DataLoader(batches, batch_size=None, collate_fn=lambda rows: self.batch(split, np.asarray(rows)))  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader:
        return self._evaluation("valid")

    def test_dataloader(self) -> DataLoader:
        return self._evaluation("test")


class NextEpoch(Sampler[int]):
    """Numbers of the micro-batches of the next epoch, for a trainer that counts epochs (`max_epochs`)."""

    def __init__(self, trainer: lightning.Trainer, *, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def __iter__(self) -> Iterator[int]:
        first = self.trainer.global_step * self.trainer.accumulate_grad_batches
        return iter(range(first, first + len(self)))

    def __len__(self) -> int:
        return self.steps * self.trainer.accumulate_grad_batches


def _content(example: Example) -> str | tuple[str, ...]:
    return tuple(example.text) if isinstance(example.text, list) else example.text


def rows_aside(task: DataSet, rows: int) -> int:
    """How many of the training rows are the validation part of a task without one.

    Raises:
        UserError: the task does not say, or there are too few.
    """
    if not task.valid_rows:
        raise UserError("The task has no validation part; set valid_rows, to set training rows aside for it.")
    most = max(1, rows // MOST_ASIDE)
    aside = round(task.valid_rows * rows) if task.valid_rows < 1 else min(int(task.valid_rows), most)
    if not 0 < aside < rows:
        raise UserError(f"The training part has {rows} rows, too few to set some aside for validation.")
    return aside


def rows_of(task: DataSet, files: str | None, split: str) -> list[Row] | None:
    """The rows of a part, from local files, the sample or the hub; None where there is no such part."""
    if files is not None:
        found = files_of(task, files, split)
        return [row for file in found for row in read_rows(file)] if found else None
    if task.sample is not None:
        if task.sample not in SYNTHETIC:
            raise UserError(f"There is no sample '{task.sample}'; there are {', '.join(SYNTHETIC)}.")
        rows: Iterable[Mapping[str, Any]] = SYNTHETIC[task.sample](split)
        origin = f"the sample's {split} part"
    elif split not in task.splits or task.hub is None:
        return None
    else:
        if "path" not in task.hub:
            raise UserError("The task's hub has no path, which names the data set there.")
        name = task.hub_splits.get(split, task.splits[split])
        rows, origin = hub.open_hub(**task.hub, split=name), f"{task.hub['path']} ({name})"
        if task.head is not None:  # the answer to a prompt is a number
            rows = with_label_names(rows)
    return [(f"{origin}, row {number}", row) for number, row in enumerate(rows, start=1)]


def files_of(task: DataSet, files: str, split: str) -> list[Path]:
    """The local files of a part: one, or its shards; a task of prompts alone takes all that there are.

    Raises:
        UserError: it is not clear which of several.
    """
    if split not in task.splits:
        return []
    found, name = local_files(files, task.splits[split]), task.splits[split].rpartition("/")[2]
    if task.head is None:
        return found
    best = min((how for path in found if (how := how_named(path.name, name)) is not None), default=None)
    found = [path for path in found if how_named(path.name, name) == best]
    shards = [match[1] for path in found if (match := SHARD.search(path.name))]
    if len(found) > 1 and len(shards) < len(found):
        names = ", ".join(path.name for path in found)
        raise UserError(f"Which file is the {split} part in {files}? There are {names}; shards end in -00000-of-00002.")
    if shards and len(shards) != int(shards[0]):
        raise UserError(f"The {split} part in {files} has {len(shards)} of {int(shards[0])} shards.")
    return found


def how_named(file: str, name: str) -> int | None:
    """How a file bears the name of a part: 0 just so, 1 with a further ending, 2 as a shard, None: only begins so."""
    name, stem = name.rpartition("/")[2], file.removesuffix(".gz").rpartition(".")[0]
    if fnmatch(stem, name) or fnmatch(file.removesuffix(".gz"), name):
        return 0
    if fnmatch(file, f"{name}.*"):
        return 1
    return 2 if fnmatch(SHARD.split(file)[0], name) else None


def content_of(task: DataSet, files: str | None) -> str | None:
    """A hash of the local files of a task, or of the sample's rows; None where it has another source."""
    if files is None:
        return None if task.sample is None else digest([rows_of(task, None, split) for split in SPLITS])
    return digest([file_hash(path) for split in SPLITS for path in files_of(task, files, split)])


def local_files(location: str, name: str) -> list[Path]:
    """The files of a folder, or of a pattern, whose names begin with `name`."""
    folder = path_of(location)
    candidates = sorted(folder.glob(f"{name}*")) if folder.is_dir() else sorted(map(Path, glob(str(folder))))
    if not folder.is_dir() and not candidates:
        raise UserError(f"There is no task data at {location}: no such folder or pattern.")
    for path in candidates:
        files.check_plain(path)
    last = name.rpartition("/")[2]
    return [path for path in candidates if kind_of(path) in SUFFIXES and fnmatch(path.name, f"{last}*")]


def with_label_names(rows: Any) -> Iterator[Mapping[str, Any]]:
    """Rows of a data set of the hub, with the names of labels that it keeps as numbers."""
    from datasets import ClassLabel  # takes a while

    named = {}
    for column, feature in (rows.features or {}).items():
        inner = getattr(feature, "feature", feature)  # of a list
        if isinstance(inner, ClassLabel):
            named[column] = dict(enumerate(inner.names))
    for row in rows:
        changed = {}
        for column, names in named.items():
            value = row[column]
            changed[column] = [names.get(v, v) for v in value] if isinstance(value, list) else names.get(value, value)
        yield {**row, **changed}


@dataclass
class Buckets:
    """Training batches by step: rows of similar length together, in an order of its own each epoch."""

    lengths: list[int]
    batch_size: int
    seed: int
    data: TaskData

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
        return batch.select(slice(index, None, parts))
