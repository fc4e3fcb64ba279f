"""Whole commands compared: pretraining, fine-tuning and the token store, ours and other implementations.

Each runs in its own process, interleaved. The measure is tokens per second without padding.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.bench.steps import fastest
from pipeline.cli import parser as cli
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.files import find_files, splits_of
from pipeline.data.sentences import sentences
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from pipeline.objectives.batch import Batch
from pipeline.objectives.mask_checks import unmasked
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.tokenization import registry as tokenizers
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.training.corpus_data import CorpusData, TokenizerOptions
from pipeline.training.requests import overrides_of

ROWS = {"pretraining": 32, "fine-tuning": 64}
LENGTH = 128


def trainer_arguments(folder: Path, *, rows: int, fast: bool, rate: float) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(folder / "theirs"),
        per_device_train_batch_size=rows,
        num_train_epochs=1,
        learning_rate=rate,
        bf16=fast and fastest() == "bf16",
        optim="adamw_torch_fused" if fast else "adamw_torch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )


def their_speed(trainer: Any, examples: list[dict[str, Any]]) -> float:
    begin = time.perf_counter()
    trainer.train()
    return sum(len(example["input_ids"]) for example in examples) / (time.perf_counter() - begin)


# ---------------------------------------------------------------------- pretraining


def our_pretraining(folder: Path, corpus: str, steps: int) -> float:
    """Tokens per second of `make pretrain` with BERT 4x256, including its validation."""
    os.environ["WANDB_MODE"] = "disabled"
    settings = {
        "trainer.max_steps": steps,
        "validate_every": steps,
        "model.optimization.warmup_steps": 10,
        "model.optimization.optimizer": "adamw",
        "model.optimization.learning_rate": 1e-3,
        "model.objective.init_args.first_mask_rate": None,
        "model.embeddings": "random",
        "data.length": LENGTH,
        "data.batch_size": ROWS["pretraining"],
        "data.validation_rows": 64,
        "data.tokenizer.vocab_size": 8192,
        "model.encoder.init_args.size": 256,
        "model.encoder.init_args.layers": 4,
        "model.encoder.init_args.inner_size": 1024,
        "model.encoder.init_args.dropout": 0.1,
        "model.encoder.init_args.attention_dropout": 0.1,
    }
    flags = overrides_of(settings)
    cli.main(["pretrain", "--corpus", corpus, "--out", str(folder / "ours"), "--overwrite", *flags])
    return json.loads((folder / "ours/metrics.json").read_text())["tokens_per_second"]


def their_pretraining(folder: Path, files: str | None, steps: int, fast: bool) -> float:
    """Tokens per second of `Trainer.train()` on the same pairs, masked and padded by its own collator."""
    from transformers import AutoTokenizer, BertForPreTraining, DataCollatorForLanguageModeling, Trainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    rows = ROWS["pretraining"]
    data = CorpusData(
        tokenizer=TokenizerOptions("wordpiece", str(folder / "ours/encoder/tokenizer.json"), 8192, True, 20),
        objective=MaskedLM(mask_rate=0.15, whole_word=False, next_sentence="nsp"),
        length=LENGTH,
        batch_size=rows,
        validation_rows=64,
        validation_every=20,
        workers=0,
        files=files,
        sample_documents=None if files else 20_000,
    )
    data.prepare()
    batches = data.batches(data.train, batch_size=rows, seed=0)
    examples = [example for step in range(steps) for example in pairs_of(batches(step))]
    collate = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(folder / "ours/encoder"))
    model = BertForPreTraining.from_pretrained(folder / "ours/encoder")
    arguments = trainer_arguments(folder, rows=rows, fast=fast, rate=1e-3)
    trainer = Trainer(model=model, args=arguments, train_dataset=examples, data_collator=collate)  # type: ignore[arg-type]
    return their_speed(trainer, examples)


def pairs_of(batch: Batch) -> list[dict[str, Any]]:
    """The rows of one of our batches, without masks and padding."""
    lengths = batch.mask.sum(1).tolist()
    labels = batch.targets["nsp"].labels.tolist()
    kept = zip(unmasked(batch), batch.inputs["token_type_ids"], labels, strict=True)
    return [
        {"input_ids": row[:n].tolist(), "token_type_ids": segments[:n].tolist(), "next_sentence_label": label}
        for (row, segments, label), n in zip(kept, lengths, strict=True)
    ]


# ---------------------------------------------------------------------- fine-tuning


def our_fine_tuning(folder: Path, encoder: Path, data: Path, steps: int) -> float:
    """Tokens per second of `make finetune`, including its validation on 100 rows."""
    os.environ["WANDB_MODE"] = "disabled"
    rows = ROWS["fine-tuning"]
    flags = [f"--data.train_rows={steps * rows}", f"--data.batch_size={rows}"]
    flags += ["--data.epochs=1", "--validations=1", "--data.task.init_args.valid_rows=100"]
    where = ["--from", str(encoder), "--data", str(data), "--out", str(folder / "ours")]
    cli.main(["finetune", "--task", "sst2", *where, "--overwrite", *flags])
    return json.loads((folder / "ours/metrics.json").read_text())["tokens_per_second"]


def their_fine_tuning(folder: Path, encoder: Path, data: Path, steps: int, fast: bool) -> float:
    """Tokens per second of `Trainer.train()`, shuffled, padded to the longest row of each batch."""
    from transformers import AutoTokenizer, BertForSequenceClassification, DataCollatorWithPadding, Trainer

    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = [row for _, row in read_rows(next(data.glob("train*")))]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: steps * ROWS["fine-tuning"]]
    chosen = [rows[i] for i in order.tolist()]
    examples = [{**tokenizer(row["sentence"]), "labels": int(row["label"])} for row in chosen]
    trainer = Trainer(
        model=BertForSequenceClassification.from_pretrained(encoder),
        args=trainer_arguments(folder, rows=ROWS["fine-tuning"], fast=fast, rate=3e-4),
        train_dataset=examples,  # type: ignore[arg-type]
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    return their_speed(trainer, examples)


# ---------------------------------------------------------------------- token store

STORE_MEGABYTES = 16


def text_for_store(folder: Path, corpus: Path) -> Path:
    """Writes the beginning of a corpus as plain text, and a tokenizer with 8,192 pieces trained on it."""
    found = find_files(str(corpus))
    splits = splits_of(Path(path.name) for path in found)
    files = [path for path in found if splits[Path(path.name)] == "train"] or found
    out, written = folder / "text.txt", 0
    with open(out, "w", encoding="utf-8") as file:
        for document, _ in Source(files=files).documents():
            written += sum(file.write(line + "\n") for line in document) + file.write("\n")
            if written > STORE_MEGABYTES * 1e6:
                break
    lines = (line for document, _ in Source(files=[out]).documents() for line in document)
    WordPiece.train(lines, vocab_size=8192, lowercase=True).backend.save(str(folder / "tokenizer.json"))
    return out


def our_store(folder: Path) -> float:
    """MB per second of building a token store: reading, sentences, repeated lines, tokens, checksums."""
    text, tokenizer = folder / "text.txt", tokenizers.load(folder / "tokenizer.json")
    with tempfile.TemporaryDirectory(dir=folder) as root:
        begin = time.perf_counter()
        store.build(Source(files=[text]), tokenizer, Path(root))
        return text.stat().st_size / 1e6 / (time.perf_counter() - begin)


def their_store(folder: Path, fast: bool) -> float:
    """MB per second of `tokenizers` alone, on sentences already in memory, in batches of the same size."""
    text, backend = folder / "text.txt", tokenizers.load(folder / "tokenizer.json").backend
    found = [s for document, _ in Source(files=[text]).documents() for line in document for s in sentences(line)]
    encode = partial(backend.encode_batch_fast if fast else backend.encode_batch, add_special_tokens=False)
    begin = time.perf_counter()
    for first in range(0, len(found), store.BATCH):
        encode(found[first : first + store.BATCH])
    return text.stat().st_size / 1e6 / (time.perf_counter() - begin)


def check_fine_tuning(encoder: Path, data: Path) -> None:
    """Refuses to start without the files that fine-tuning needs.

    Raises:
        UserError: the data or the encoder is missing.
    """
    if not list(data.glob("train*")):
        raise UserError(f"There is no train.tsv in {data}.")
    if not (encoder / "config.json").exists():
        raise UserError(f"There is no encoder folder at {encoder}; run `make pretrain` first, or set FROM= to one.")
