"""`make bench`: one training step against `transformers`, side by side in one run.

Same sizes, same weights, same batch, dropout on. The measure is the ratio: medians of alternating runs, since
absolute times depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline import tokenizer as tokenizers
from pipeline.cli import best_precision
from pipeline.encoders.bert import Bert
from pipeline.masking import mask_tokens
from pipeline.objectives import MaskedLM

IGNORED = -100  # transformers' label for positions without a prediction


def make_batch(bert: Bert, *, rows: int, length: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The same masked pairs for us and for `transformers`."""
    rng, tokenizer = np.random.default_rng(0), bert.tokenizer
    ids = rng.choice(tokenizer.ordinary_ids, size=(rows, length))
    ids[:, 0], ids[:, length // 2], ids[:, -1] = tokenizer.id("cls"), tokenizer.id("sep"), tokenizer.id("sep")
    segments = np.repeat([[0] * (length // 2 + 1) + [1] * (length - length // 2 - 1)], rows, axis=0)
    masked = mask_tokens(
        ids,
        ~np.isin(ids, tokenizer.special_ids),
        np.full(rows, length),
        rng,
        rate=0.15,
        mask_id=tokenizer.id("mask"),
        replacements=tokenizer.ordinary_ids,
    )
    labels = np.full(ids.size, IGNORED)
    labels[masked.positions] = masked.labels
    shared = {"input_ids": torch.from_numpy(masked.ids), "token_type_ids": torch.from_numpy(segments)}
    pair_labels = torch.from_numpy(rng.integers(2, size=rows))
    ours = {"mask": torch.ones(rows, length, dtype=torch.bool), "pair_labels": pair_labels}
    ours |= {"positions": torch.from_numpy(masked.positions), "labels": torch.from_numpy(masked.labels)}
    theirs = {"attention_mask": torch.ones(rows, length, dtype=torch.long), "next_sentence_label": pair_labels}
    theirs["labels"] = torch.from_numpy(labels.reshape(ids.shape))
    return {**shared, **ours}, {**shared, **theirs}


def our_step(bert: Bert, batch: dict[str, torch.Tensor], precision: str) -> Callable[[], float]:
    objective = MaskedLM()
    optimizer = torch.optim.AdamW(bert.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision.startswith("bf16")):
            losses = objective(bert, batch)
        loss = torch.stack([part.sum / part.count for part in losses.values()]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bert.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def their_step(model: Any, batch: dict[str, torch.Tensor], *, bf16: bool) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=bf16)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    return step


def alternate(steps: dict[str, Callable[[], float]], *, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of each step, run in turn, and the loss of each before any update."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses = {name: step() for name, step in steps.items()}
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}, losses


def main() -> None:
    from transformers import BertForPreTraining

    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 32), ("length", 128), ("size", 256), ("layers", 4), ("heads", 4), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--dropout", type=float, default=0.1)
    options = parser.parse_args()

    words = (f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in range(1000))
    tokenizer = tokenizers.train_wordpiece(words, vocab_size=options.vocab, lowercase=True)
    torch.manual_seed(0)
    bert = Bert(
        tokenizer,
        size=options.size,
        layers=options.layers,
        heads=options.heads,
        inner_size=4 * options.size,
        max_length=options.length,
        dropout=options.dropout,
        attention_dropout=options.dropout,
        vocab_size=options.vocab,
    ).train()
    with tempfile.TemporaryDirectory() as folder:
        bert.save(Path(folder))
        theirs = {name: BertForPreTraining.from_pretrained(folder).train() for name in ("float32", "bf16")}
        bert_eval = {name: BertForPreTraining.from_pretrained(folder).eval() for name in ("float32",)}
    ours, their_batch = make_batch(bert, rows=options.rows, length=options.length)
    with torch.no_grad():
        bert.eval()
        losses = MaskedLM()(bert, ours)
        our_loss = sum(float(part.sum / part.count) for part in losses.values())
        their_loss = float(bert_eval["float32"](**their_batch).loss)
        bert.train()
    precision = best_precision()
    steps = {
        "ours": our_step(bert, ours, precision),
        "transformers float32, AdamW": their_step(theirs["float32"], their_batch, bf16=False),
        "transformers bf16, fused AdamW": their_step(theirs["bf16"], their_batch, bf16=True),
    }
    seconds, first = alternate(steps, rounds=options.rounds)
    tokens = options.rows * options.length
    print(
        f"BERT {options.layers}x{options.size}, {options.rows} x {options.length} tokens, V {options.vocab:,}, dropout "
        f"{options.dropout}, {torch.get_num_threads()} threads, ours in {precision}"
    )
    print(f"loss without dropout, float32: ours {our_loss:.5f}, transformers {their_loss:.5f}")
    print("| step | ms | tokens/s | ours is faster by | first loss |\n| --- | --- | --- | --- | --- |")
    for name, value in seconds.items():
        ratio = value / seconds["ours"]
        print(f"| {name} | {value * 1000:.0f} | {tokens / value:,.0f} | {ratio:.2f} | {first[name]:.3f} |")


if __name__ == "__main__":
    main()
