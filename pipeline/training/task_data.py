"""A task's data as a LightningDataModule: files or hub -> examples -> length-bucketed batches."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from pipeline.data import labeled, row_sources
from pipeline.data.labeled import LabeledRows
from pipeline.data.splits import nested
from pipeline.errors import UserError
from pipeline.finetuning.features import Cut, Feature
from pipeline.finetuning.heads import head_class, head_for
from pipeline.models.base import Encoder
from pipeline.objectives.batch import Batch, Target
from pipeline.storage.checksums import digest
from pipeline.training.loader import MicroBatches, ResumableSampler, StepLoader
from tasks.base import Example, Task

SHORTEST = 8  # positions of a text, with its special tokens
POOL = 50  # batches whose rows are sorted by length together


class TaskData(lightning.LightningDataModule):
    """Labeled texts as batches for fine-tuning.

    Args:
        task: columns, labels and where the data are.
        files: local folder, file or pattern instead of the task's hub name.
        batch_size: rows of one optimizer step.
        max_length: most tokens of a text, special ones included (None: the encoder's positions). Longer texts are
            cut, and counted; longer lists of words are read in windows that overlap.
        cut: which part of a longer text is kept (see features.shorten).
        epochs: passes over the training part.
        workers: processes that make batches ahead; 0: none. The batches do not depend on it.
        train_rows: train on this many rows only, each class in its share; fewer rows are among more.
        characters: also test with only the first characters of each text, for each of these numbers.
        seed: of the order and of the `train_rows`; rows split off for validation or test are the same for every seed.
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
        characters: list[int] | None = None,
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
        self.characters = sorted(set(characters or ()))
        if self.characters and self.characters[0] < 1:
            raise UserError(f"data.characters has {self.characters[0]}; a number of characters is at least 1.")
        if (what := self.head.windows) is not None and self.characters:
            raise UserError(f"data.characters is for texts of one label: {what.lower()} of this task is tested whole.")
        if what is not None and cut != "head":
            raise UserError(f"data.cut is for texts of one label; {what.lower()} is read in windows, whole.")
        self.examples: dict[str, list[Example]] = {}
        self.features: dict[str, list[Feature]] = {}
        self.label_notes: dict[str, str | None] = {}  # see Head.label_note
        self.found = LabeledRows()
        self.trained_on: Counter[str] = Counter()  # of a part: texts that are in the training part too
        self.left_over: dict[str, tuple[int, int]] = {}  # of a part, see `left_over`
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
        name = head_for(self.head_name, encoder.learning)
        if name is None:
            raise UserError(
                f"A model of type {encoder.model_type} counts the texts of each label, and this task does not have "
                "one label for each text; take a model that is trained in steps."
            )
        self.encoder, self.head_name, self.head = encoder, name, head_class(name)
        self.examples = self.examples or self.read()
        for split, examples in self.examples.items():
            texts = [example.text for example in examples]
            self.features[split] = self.head.features(encoder, texts, max_length=self.longest, cut=self.cut)
            self.label_notes[split] = self.head.label_note(encoder, [example.label for example in examples])
            if not self.features[split]:
                raise UserError(f"The {split} part of the task holds no row; the first line of a table is its header.")

    def training_texts(self) -> Iterator[str]:
        """The texts of the training part, and those of its labels that are texts: to train a tokenizer on."""
        self.examples = self.examples or self.read()
        for example in self.examples["train"]:
            yield from [example.text] if isinstance(example.text, str) else example.text
            if isinstance(example.label, str):
                yield example.label

    def stage(self, name: str) -> dict[str, Any]:
        """The task as a stage of a lineage; its hash is that of texts and labels as they were read."""
        rows = {split: [[example.text, example.label] for example in part] for split, part in self.examples.items()}
        counts = {split: len(part) for split, part in rows.items()}
        hub = row_sources.public_name(self.task, self.files)
        known = {} if hub is None else {"hub": hub}
        return {"stage": "task", "name": name, "sha256": digest(rows), "rows": counts, **known}

    @property
    def is_public(self) -> bool:
        """Whether everybody can read the texts: those of the synthetic world, or of a public data set of the hub."""
        return row_sources.is_public(self.task, self.files)

    # ------------------------------------------------------------------ rows -> examples

    def read(self) -> dict[str, list[Example]]:
        """The examples of all parts.

        Raises:
            UserError: a part is missing or empty, or rows do not fit the task.
        """
        self.found = labeled.read(self.task, self.files)
        whole = self.found.parts["train"]
        if self.train_rows is not None and self.train_rows < len(whole.rows):
            order = nested(self.task.strata(whole.examples), self.seed)
            self.found.parts["train"] = whole.at(order[: self.train_rows])
        parts = {split: part.examples for split, part in self.found.parts.items()}
        trained = {example.content for example in parts["train"]}
        for split in ("valid", "test"):
            self.trained_on[split] = sum(example.content in trained for example in parts[split])
            self.left_over[split] = left_over(parts["train"], parts[split])
        return parts

    @property
    def has_pairs(self) -> bool:
        """Whether its texts are pairs."""
        return isinstance(self.examples["train"][0].text, tuple)

    # ------------------------------------------------------------------ batches

    def __getstate__(self) -> dict[str, Any]:
        """Without the trainer, which a process that makes batches does not need, and which cannot be sent to it."""
        return {**self.__dict__, "trainer": None}

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.features["train"]) // self.batch_size)

    def batch(self, split: str, rows: np.ndarray) -> Batch:
        """Features by number, with their labels as the head takes them."""
        features = [self.features[split][i] for i in rows]
        gold = [self.examples[split][feature.text].label for feature in features]
        inputs = self.head.inputs(self.encoder, features)
        labels, count = self.head.collate(self.encoder, gold, features)
        shared = {name: inputs.pop(name) for name in self.encoder.shared_inputs}
        mask = inputs["mask"]  # (B, T), or of pairs that are read one by one (B, 2, T)
        following = (mask.sum() - mask[..., 0].numel()).clamp(min=1)  # tokens that have one before them
        targets = {"task": Target(labels, count), "lm": Target(inputs["input_ids"], following)}
        return Batch(inputs, targets, rows=torch.from_numpy(rows), shared=shared)

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        steps = Buckets([len(feature) for feature in self.features["train"]], self.batch_size, self.seed, self)
        parts = self.trainer.accumulate_grad_batches
        data = MicroBatches(steps, parts=parts, world=self.trainer.world_size, rank=self.trainer.global_rank)
        order: Sampler[int] = ResumableSampler(first=self.trainer.global_step, total=self.trainer.max_steps)
        if self.trainer.max_steps <= 0:
            order = NextEpoch(self.trainer, steps=self.steps_per_epoch)
        return StepLoader(data, order, num_workers=self.workers)

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


def left_over(train: Sequence[Example], part: Sequence[Example]) -> tuple[int, int]:
    """Pairs whose first text the training pairs have with all classes but one, and how many of them are of that one."""
    labels: defaultdict[str, set[int]] = defaultdict(set)
    for example in train:
        if isinstance(example.text, tuple) and isinstance(example.label, int):
            labels[example.text[0]].add(example.label)
    most = len(set().union(*labels.values()))
    pairs = [one for one in part if isinstance(one.text, tuple) and len(labels.get(one.text[0], ())) == most - 1 > 0]
    return len(pairs), sum(one.label not in labels[one.text[0]] for one in pairs)


class NextEpoch(Sampler[int]):
    """The steps of the next epoch, for a trainer that counts epochs (`max_epochs`)."""

    def __init__(self, trainer: lightning.Trainer, *, steps: int) -> None:
        self.trainer, self.steps = trainer, steps

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.trainer.global_step, self.trainer.global_step + self.steps))

    def __len__(self) -> int:
        return self.steps


@dataclass
class Buckets:
    """Training batches by step: rows of similar length together, in a different order each epoch."""

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
