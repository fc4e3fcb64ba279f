"""`make bench-finetune`: fine-tuning as a whole against transformers' Trainer, side by side in one run.

The same BERT, the same rows of SST-2, the same number of steps. Ours: length buckets and bf16 where the processor
multiplies it; theirs: float32, shuffled, padded to the longest of each batch. The measure is real tokens a second.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from pipeline import UserError, cli
from pipeline.readers import read_rows


def ours(options: argparse.Namespace, folder: Path) -> float:
    """Tokens a second of `make finetune`, its one validation of 100 rows included."""
    flags = [f"--data.train_rows={options.steps * options.rows}", f"--data.batch_size={options.rows}"]
    flags += ["--data.epochs=1", "--validations=1", "--data.task.init_args.valid_rows=100"]
    where = ["--from", str(options.encoder), "--data", str(options.data), "--out", str(folder / "ours")]
    cli.main(["finetune", "--task", "sst2", *where, "--overwrite", *flags])
    return json.loads((folder / "ours/metrics.json").read_text())["tokens_per_second"]


def theirs(options: argparse.Namespace, folder: Path) -> float:
    """Tokens a second of `Trainer.train()`."""
    from transformers import (
        AutoTokenizer,
        BertForSequenceClassification,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(options.encoder)
    rows = [row for _, row in read_rows(next(Path(options.data).glob("train*")))]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[: options.steps * options.rows]
    chosen = [rows[i] for i in order.tolist()]
    examples = [{**tokenizer(row["sentence"]), "labels": int(row["label"])} for row in chosen]
    arguments = TrainingArguments(
        output_dir=str(folder / "theirs"),
        per_device_train_batch_size=options.rows,
        num_train_epochs=1,
        learning_rate=3e-4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=BertForSequenceClassification.from_pretrained(options.encoder),
        args=arguments,
        train_dataset=examples,  # type: ignore[arg-type]
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    begin = time.perf_counter()
    trainer.train()
    return sum(len(example["input_ids"]) for example in examples) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with SST-2's train.tsv and dev.tsv")
    parser.add_argument("--encoder", type=Path, default=Path("runs/pretrain/bert/encoder"))
    for name, default in (("rows", 64), ("steps", 100), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if not list(options.data.glob("train*")):
        raise UserError(f"There is no train.tsv in {options.data}.")
    os.environ["WANDB_MODE"] = "disabled"
    logging.getLogger("transformers").setLevel(logging.ERROR)
    speeds: dict[str, list[float]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            speeds["ours"].append(ours(options, Path(folder)))
            speeds["theirs"].append(theirs(options, Path(folder)))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print("| fine-tuning on SST-2 | tokens/s of all rounds | median | ours is faster by |\n| --- | --- | --- | --- |")
    for name, label in (("ours", "ours"), ("theirs", "transformers.Trainer, float32")):
        shown = ", ".join(f"{speed:,.0f}" for speed in speeds[name])
        print(f"| {label} | {shown} | {medians[name]:,.0f} | {medians['ours'] / medians[name]:.2f} |")


if __name__ == "__main__":
    main()
