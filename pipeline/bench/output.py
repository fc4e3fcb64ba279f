"""The time of a training step by the size of the vocabulary, for each kind of output layer: of our LSTM."""

from __future__ import annotations

import argparse
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from pipeline.bench.steps import fastest, training_step
from pipeline.bench.timing import Built, Candidate, Result, Row, compared, interleave
from pipeline.models.layers.output import OutputKind
from pipeline.models.recurrent import Recurrent
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tracking.tables import markdown_table

VOCABULARIES = (8_192, 32_768, 131_072)
ROWS, LENGTH, SIZE, EMBEDDING = 32, 128, 512, 256  # of configs/pretrain/lstm.yaml
KINDS = get_args(OutputKind)


def output_step(kind: OutputKind, vocab: int, *, rows: int, length: int, size: int, device: str) -> Built:
    """A step on random tokens, half of which are of the 256 most frequent."""
    torch.manual_seed(0)
    tokenizer = ByteBpe.of_bytes()
    tokenizer.backend.add_tokens([f"piece {number}" for number in range(tokenizer.backend.get_vocab_size(), vocab)])
    model = Recurrent(
        tokenizer,
        cell="lstm",
        size=size,
        embedding_size=min(EMBEDDING, size),
        layers=1,
        max_length=length,
        dropout=0.0,
        output=kind,
    ).to(device)
    ids = torch.randint(vocab, (rows, length + 1))
    ids[torch.rand(ids.shape) < 0.5] %= 256
    ids = ids.to(device)
    batch = {"input_ids": ids[:, :-1], "mask": torch.ones_like(ids[:, 1:], dtype=torch.bool)}

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=fastest(device) == "bf16"):
            found = model.token_loss(model(batch).layers[-1].flatten(0, 1), ids[:, 1:].flatten())
        return found.sum / found.count

    return Built(training_step(model.train(), loss, fused=True), device=device)


def measure(options: argparse.Namespace, vocab: int) -> dict[str, Result]:
    """The steps of each kind, interleaved."""
    settings = {"rows": ROWS, "length": LENGTH, "size": SIZE, "device": options.device}
    candidates = [Candidate(kind, partial(output_step, kind, vocab, **settings), ours=True) for kind in KINDS]
    return interleave(candidates, rounds=options.rounds)


def output(options: argparse.Namespace) -> list[Row]:
    """Prints milliseconds of a step; returns a row for each vocabulary and each kind beside the first."""
    results = {vocab: measure(options, vocab) for vocab in VOCABULARIES}
    cells = [
        [f"{vocab:,}", *(f"{1000 * found[kind].median:,.0f}" for kind in KINDS)] for vocab, found in results.items()
    ]
    print(f"Milliseconds of a step of an LSTM, {ROWS} x {LENGTH} tokens, by its output layer:\n")
    print(markdown_table(["V", *KINDS], cells))
    first, *others = KINDS
    tokens = ROWS * LENGTH
    return [
        compared(
            f"LSTM, V {vocab:,}, {first} output",
            f"{kind} output",
            tokens / found[first].median,
            tokens / found[kind].median,
        )
        for vocab, found in results.items()
        for kind in others
    ]
