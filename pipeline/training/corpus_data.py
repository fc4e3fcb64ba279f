"""A corpus as a LightningDataModule: text -> tokenizer -> token store -> batches."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
from torch.utils.data import DataLoader

from pipeline.data import files, row_sources, tokenizer_builder
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.hub import public_name
from pipeline.data.synthetic import corpus as sample
from pipeline.data.task_texts import task_texts
from pipeline.data.token_store import TokenStore
from pipeline.data.tokenizer_builder import TokenizerOptions
from pipeline.errors import UserError
from pipeline.objectives.base import Objective
from pipeline.objectives.sampling import StepBatches
from pipeline.presets.tasks import trained_task
from pipeline.storage.atomic import write_json
from pipeline.storage.checksums import digest, file_hash, unsealed
from pipeline.storage.folders import write_folder
from pipeline.storage.locks import built_once
from pipeline.storage.paths import cache_folder
from pipeline.storage.validation import read_json
from pipeline.tokenization.base import Tokenizer
from pipeline.training.loader import Loader, MicroBatches, ResumableSampler, StepLoader

OF_TASK = "task:"  # in front of the name of a task, where a corpus is named
VALIDATION_BATCH = 64  # rows at once, at most
FEW, SECTIONS, LEAST_SECTION = 40, 200, 10  # few documents; about as many sections are made of them; lines of one
HELD_OUT = 500  # documents of a stream, at most, that are its validation part


class CorpusData(lightning.LightningDataModule):
    """Unlabeled text as batches for pretraining.

    Args:
        files: file, folder or pattern of text; files named valid* or dev* are the validation part.
        hub: instead, arguments of `datasets.load_dataset`: path, name, revision, and `validation`, the name of
            a validation split if there is one.
        sample_documents: instead, that many documents of the built-in synthetic world.
        task: instead, the training texts of a task, its name or its YAML file; `files` are then where its data are.
            Each text is a document, and of a pair each text a paragraph of it.
        text_column: where the text is, in `.jsonl`, `.parquet` and hub data.
        document_start: regular expression of lines that begin a document.
        validation_every: without a validation part, each that many-th document becomes one (500 of a hub's stream).
        tokenizer: how the tokenizer is made.
        objective: makes rows and batches; the module that is trained has the same one.
        length: most tokens of a row, T.
        batch_size: rows of one optimizer step, over all processes and accumulated parts.
        validation_rows: rows of validation text, at most.
        workers: processes that make batches ahead; 0: none. The batches do not depend on it.
        verify: read corpus and token stores whole, to be sure that they are what they were, instead of sample blocks.
        language: of the text, a code of ISO 639 as en, for the model card.
        seed: of the order of rows, of masks and of pairs.
    """

    def __init__(
        self,
        *,
        tokenizer: TokenizerOptions,
        objective: Objective,
        length: int,
        batch_size: int,
        validation_rows: int,
        validation_every: int,
        workers: int,
        files: str | None = None,
        hub: dict[str, Any] | None = None,
        sample_documents: int | None = None,
        task: str | None = None,
        text_column: str = "text",
        document_start: str | None = None,
        verify: bool = False,
        language: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if sum(origin is not None for origin in (files if task is None else task, hub, sample_documents)) != 1:
            origins = "data.files, data.hub, data.sample_documents and data.task"
            raise UserError(f"The corpus needs exactly one of {origins}.")
        if hub is not None and (not hub.get("path") or "streaming" in hub):
            raise UserError("data.hub needs a `path`, and is always streamed: leave `streaming` out.")
        least = {"length": (length, 8), "batch_size": (batch_size, 1), "workers": (workers, 0)}
        least |= {"validation_rows": (validation_rows, 1), "validation_every": (validation_every, 2)}
        for name, (value, low) in least.items():
            if value < low:
                raise UserError(f"data.{name} is {value}, which is too small; it must be at least {low}.")
        try:
            re.compile(document_start or "")
        except re.error as error:
            raise UserError(f"data.document_start is not a valid regular expression: {error}.") from None
        self.files, self.hub, self.sample_documents, self.task = files, hub, sample_documents, task
        self.text_column, self.document_start, self.verify = text_column, document_start, verify
        self.language = language
        self.options, self.objective = tokenizer, objective
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.validation_rows, self.validation_every, self.workers = validation_rows, validation_every, workers
        self.left_out: list[str] = []  # files named as a test part
        self.ignored: list[Path] = []  # files of kinds that are not read
        self.section: int | None = None  # lines of a section, where few long documents are cut
        self.set_aside = False  # whether validation is a part of the same text
        self.tokenizer: Tokenizer
        self.train: TokenStore
        self.valid: TokenStore

    # ------------------------------------------------------------------ text -> token stores

    def prepare_data(self) -> None:
        """Builds tokenizer and stores in the cache, once a machine, when Lightning asks for it."""
        self.setup("fit")

    def setup(self, stage: str) -> None:
        """Opens tokenizer and stores, unless `prepare` has been called."""
        if not hasattr(self, "valid"):
            self.prepare()

    def prepare(self, check: Callable[[CorpusData], None] | None = None) -> None:
        """Trains or opens the tokenizer and builds or opens both token stores.

        Args:
            check: called once the tokenizer is there, to refuse settings before the text is read, which may take hours.

        Raises:
            UserError: the corpus cannot be read, or does not suffice for the model; or what `check` raises.
        """
        train, valid = self._sources(self.options.languages)
        self.tokenizer = tokenizer_builder.build(train, self.options, cache_folder() / "tokenizers")
        self.set_aside = valid is None
        if self.set_aside and self.hub is None:
            self.section = _section_of(train, cache_folder() / "sections")
            train.section = self.section  # in place: the text is the same, and its hash known
        if check is not None:
            check(self)
        root = cache_folder() / "stores"
        every = self.validation_every
        # A stream of the hub is not read twice to its end: its begin has enough.
        first = None if valid or self.hub is None else HELD_OUT * every
        # Without a validation part: documents 1 and 3 (so that small corpora have some), then evenly.
        held_out = partial(_held_out, every=every, first=first)
        keep = None if valid else (lambda number: not held_out(number))
        which = f"1 in {every}" + (f" of the first {first:,}" if first else "")
        which += f" sections of {train.section:,} lines" if train.section else ""
        self.train = store.build(
            train, self.tokenizer, root, keep=keep, name=f"train, without {which}" if keep else "train"
        )
        try:
            name, kept = ("validation", None) if valid else (f"validation, {which}", held_out)
            self.valid = store.build(valid or train, self.tokenizer, root, keep=kept, most=first, name=name)
        except store.NoText as error:
            if valid:
                raise
            raise UserError(
                f"The corpus has {self.train.meta['documents']} document, too few to set some aside for validation; "
                "separate documents by a blank line, or add a file named valid.txt."
            ) from error
        self.objective.check_corpus(self.train, "training")
        self.objective.check_corpus(self.valid, "validation")

    def evaluation_store(self, tokenizer: Tokenizer) -> TokenStore:
        """The validation part, or everything when there is none, in the tokens of an encoder."""
        train, valid = self._sources(tokenizer.language_names if self.options.languages else [])
        return store.build(valid or train, tokenizer, cache_folder() / "stores", name="text")

    def _sources(self, languages: list[str]) -> tuple[Source, Source | None]:
        read = partial(
            Source,
            column=self.text_column,
            document_start=self.document_start,
            verify=self.verify,
            parallel=self.objective.parallel,
            languages=languages,
        )
        if self.task is not None:
            if languages:
                raise UserError(
                    "data.tokenizer.languages is for files that name their language, and the texts of a task do not: "
                    "give a corpus of files as train.en.txt."
                )
            task, parallel = trained_task(self.task), self.objective.parallel
            file = task_texts(task, self.files, cache_folder() / "tasks", translations=parallel)
            return Source(files=[file], verify=self.verify, parallel=parallel, languages=languages), None
        if self.hub is not None:
            address = {key: value for key, value in self.hub.items() if key != "validation"}
            validation = self.hub.get("validation")
            valid = read(hub={**address, "split": validation}) if validation else None
            return read(hub={**address, "split": self.hub.get("split", "train")}), valid
        if self.sample_documents is not None:
            folder = sample_folder(self.sample_documents, verify=self.verify)
            return read(files=[folder / "train.txt"]), read(files=[folder / "valid.txt"])
        assert self.files is not None
        training, others = self._split_files(self.files, languages)
        return read(files=training), read(files=others) if others else None

    def _split_files(self, location: str, languages: list[str]) -> tuple[list[Path], list[Path]]:
        """The files of the training and the validation part; notes those that are left out."""
        (found, ignored), root = files.find_and_ignore(location, languages), files.root_of(location)
        places = {file: file.relative_to(root) for file in found}
        self.ignored = [file.relative_to(root) for file in ignored]
        parts: dict[str, list[Path]] = {"train": [], "valid": [], "test": []}
        splits = files.splits_of(places.values())
        for file, place in places.items():
            parts[splits[place]].append(file)
        if len(found) == 1 or not parts["train"]:  # one file is the corpus, whatever its name
            return found, []
        self.left_out = [str(places[f]) for f in parts["test"]]
        return parts["train"], parts["valid"]

    @property
    def synthetic(self) -> bool:
        """Whether the text is of the synthetic world: its documents, or the rows of a task about it."""
        of_task = self.task is not None and self.files is None and trained_task(self.task).sample is not None
        return self.sample_documents is not None or of_task

    @property
    def public_name(self) -> str | None:
        """Of a public data set of the hub that the text is from; None: it is from elsewhere."""
        if self.task is not None:
            return row_sources.public_name(trained_task(self.task), self.files)
        return None if self.hub is None else public_name(self.hub)

    @property
    def is_public(self) -> bool:
        """Whether everybody can read the text: that of the synthetic world, or of a public data set of the hub."""
        return self.synthetic or self.public_name is not None

    @property
    def parts_hash(self) -> str:
        """Of the validation text, and of how it was set aside where that is not by whole documents."""
        corpus = self.valid.meta["corpus"]
        return digest(corpus, self.section) if self.section else corpus

    def stages(self, name: str) -> list[dict[str, Any]]:
        """Corpus and tokenizer as stages of a lineage."""
        counts = {key: self.train.meta[key] for key in ("documents", "sentences", "words", "tokens", "bytes")}
        about = {"language": self.language, "hub": self.public_name, "synthetic": self.synthetic}
        known = {key: True if key == "synthetic" else value for key, value in about.items() if value}
        return [
            {"stage": "corpus", "name": name, "sha256": self.train.meta["corpus"], **counts, **known},
            {"stage": "validation text", "sha256": self.parts_hash},
            {"stage": "tokenizer", "scheme": self.tokenizer.scheme, "sha256": self.tokenizer.hash},
        ]

    # ------------------------------------------------------------------ token stores -> batches

    def batches(self, store: TokenStore, *, batch_size: int, seed: int, total: int | None = None) -> StepBatches:
        """The batches of each step, of a run of `total` steps."""
        return StepBatches(
            self.objective,
            store,
            self.tokenizer,
            length=self.length,
            batch_size=batch_size,
            seed=seed,
            total=total,
        )

    def train_dataloader(self) -> DataLoader:
        """Batches from the step at which the trainer is.

        Raises:
            UserError: the trainer has no number of steps.
        """
        assert self.trainer is not None
        if self.trainer.max_steps < 1:
            raise UserError("Set max_steps of the trainer: pretraining is counted in steps.")
        steps = self.batches(self.train, batch_size=self.batch_size, seed=self.seed, total=self.trainer.max_steps)
        parts = self.trainer.accumulate_grad_batches
        data = MicroBatches(steps, parts=parts, world=self.trainer.world_size, rank=self.trainer.global_rank)
        # global_step is already restored here, so a resumed run starts with the very next batch.
        order = ResumableSampler(first=self.trainer.global_step, total=self.trainer.max_steps)
        return Loader(
            data,
            order,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self._on_cuda,
        )

    def val_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        # The same rows with the same masks every time.
        rows = min(self.validation_rows, len(self.batches(self.valid, batch_size=1, seed=0).rows))
        count = max(1, math.ceil(rows / VALIDATION_BATCH))
        steps = self.batches(self.valid, batch_size=max(1, rows // count), seed=0)
        data = MicroBatches(steps, parts=1, world=self.trainer.world_size, rank=self.trainer.global_rank)
        return StepLoader(data, range(count), pin_memory=self._on_cuda)

    @property
    def _on_cuda(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"


def _section_of(source: Source, cache: Path) -> int | None:
    """Lines of the sections that a corpus of few documents is cut into: whole ones, which may be languages, are too
    much to set aside. None: they are many, or short, or translations, of which each document is a text.

    Args:
        cache: folder of what is known of other corpora, since all of the text is read for it.
    """
    if source.parallel:
        return None
    file = cache / f"{digest(source.fingerprint, FEW, SECTIONS, LEAST_SECTION)[:16]}.json"
    if file.is_file():
        return read_json(file, int | None)
    lines = [len(document) for document, _ in itertools.islice(source.documents(), FEW)]
    section = max(LEAST_SECTION, sum(lines) // SECTIONS)
    cut = len(lines) < FEW and any(round(count / section) > 1 for count in lines)
    write_json(file, section if cut else None)
    return section if cut else None


def _held_out(number: int, every: int, first: int | None) -> bool:
    return (number in (1, 3) or number % every == every - 1) and (first is None or number < first)


def sample_folder(documents: int, *, verify: bool) -> Path:
    """The folder in the cache with the synthetic corpus, which is made where it is missing or damaged."""
    folder = cache_folder() / "sample" / digest(documents, _code_of_sample())[:16]
    with built_once(folder, "the sample corpus"):
        why = unsealed(folder, partial(file_hash, verify=verify)) if folder.exists() else ""
        if why:
            print(f"Warning: {why} The sample corpus is made again.")
        if why is not None:
            write_folder(folder, lambda aside: sample.write_corpus(aside, documents_count=documents, seed=0))
    return folder


def _code_of_sample() -> str:
    folder = Path(sample.__file__).parent
    return "".join((folder / name).read_text(encoding="utf-8") for name in ("corpus.py", "lexicon.txt"))
