"""`make bench`: one training step against others' code, side by side in one run.

Same sizes, same batch, dropout on; BERT and GPT from the same weights. The measure is the ratio: medians of
alternating runs, since absolute times depend on the machine and on what else it does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline import tokenizer as tokenizers
from pipeline.configuration import best_precision
from pipeline.encoders.base import Batch, Encoder
from pipeline.encoders.bert import Bert
from pipeline.encoders.elmo import Elmo, collate_words
from pipeline.encoders.gpt import Gpt
from pipeline.masking import mask_tokens
from pipeline.objectives import BidirectionalLM, CausalLM, MaskedLM, Objective

IGNORED = -100  # transformers' label for positions without a prediction
Step = Callable[[], float]


# ---------------------------------------------------------------------- steps


def our_step(encoder: Encoder, objective: Objective, batch: Batch) -> Step:
    bf16 = best_precision().startswith("bf16")

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            losses = objective(encoder, batch)
        return torch.stack([part.sum / part.count for part in losses.values()]).sum()

    return training_step(encoder, loss, fused=True)


def their_step(model: nn.Module, batch: dict[str, Tensor], *, bf16: bool) -> Step:
    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return model(**batch).loss

    return training_step(model, loss, fused=bf16)


def training_step(model: nn.Module, loss: Callable[[], Tensor], *, fused: bool) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def step() -> float:
        value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(value.detach())

    return step


def alternate(steps: dict[str, Step], *, rounds: int) -> dict[str, float]:
    """Median seconds of each step, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            begin = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def both(encoder: Encoder, kind: Any, objective: Objective, ours: Batch, theirs: dict[str, Tensor]) -> dict[str, Step]:
    """Ours, and `transformers` from the same folder in two settings; prints the losses before any update."""
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        models = [kind.from_pretrained(folder) for _ in range(2)]
    with torch.no_grad():
        losses = objective(encoder.eval(), ours)
        our_loss = sum(float(part.sum / part.count) for part in losses.values())
        their_loss = float(models[0].eval()(**theirs).loss)
    print(f"loss without dropout, float32: ours {our_loss:.5f}, transformers {their_loss:.5f}")
    return {
        "ours": our_step(encoder.train(), objective, ours),
        "transformers float32, AdamW": their_step(models[0].train(), theirs, bf16=False),
        "transformers bf16, fused AdamW": their_step(models[1].train(), theirs, bf16=True),
    }


# ---------------------------------------------------------------------- models and batches


def words() -> Iterator[str]:
    return (f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in range(1000))


def bert(options: argparse.Namespace) -> dict[str, Step]:
    from transformers import BertForPreTraining

    tokenizer = tokenizers.train_wordpiece(words(), vocab_size=options.vocab, lowercase=True)
    torch.manual_seed(0)
    encoder = Bert(tokenizer, **sizes(options), vocab_size=options.vocab)
    rows, length, rng = options.rows, options.length, np.random.default_rng(0)
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
    return both(encoder, BertForPreTraining, MaskedLM(), shared | ours, shared | theirs)


def gpt(options: argparse.Namespace) -> dict[str, Step]:
    from transformers import GPT2LMHeadModel

    tokenizer = tokenizers.train_bpe(words(), vocab_size=options.vocab)
    torch.manual_seed(0)
    encoder = Gpt(tokenizer, **sizes(options), vocab_size=options.vocab)
    ids = torch.randint(1, len(tokenizer), (options.rows, options.length))
    labels = F.pad(ids[:, 1:], (0, 1), value=-1)
    ours = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool), "labels": labels}
    return both(encoder, GPT2LMHeadModel, CausalLM(), ours, {"input_ids": ids, "labels": ids})


def sizes(options: argparse.Namespace) -> dict[str, Any]:
    names = ("size", "layers", "heads")
    return {name: getattr(options, name) for name in names} | {
        "inner_size": 4 * options.size,
        "max_length": options.length,
        "dropout": options.dropout,
        "attention_dropout": options.dropout,
    }


PUBLISHED_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


def elmo(options: argparse.Namespace) -> dict[str, Step]:
    """Published character network, 2 layers, against the same written plainly."""
    rng, rows, length = np.random.default_rng(0), options.rows, options.length // 2
    vocabulary = [word for word, _ in zip(words(), range(options.words), strict=False)]
    tokenizer = tokenizers.words_tokenizer(vocabulary)
    settings: dict[str, Any] = {"character_size": 16, "filters": PUBLISHED_FILTERS, "highways": 2, "layers": 2}
    settings |= {"projection": 128, "cell": options.cell, "max_length": 512, "dropout": options.dropout}
    torch.manual_seed(0)
    encoder = Elmo(tokenizer, **settings, cutoffs=[2000, 8000]).train()
    # Words as frequent as their rank says (Zipf): a batch repeats many, as text does.
    share = 1 / np.arange(1, len(vocabulary) + 1)
    drawn = rng.choice(len(vocabulary), size=(rows, length + 2), p=share / share.sum())
    batch = collate_words(
        [[vocabulary[i].encode() for i in row[1:-1]] for row in drawn], tokenizer.outputs, max_characters=50
    )
    batch |= {"next": torch.from_numpy(drawn[:, 2:] + 3), "previous": torch.from_numpy(drawn[:, :-2] + 3)}
    batch |= {f"spelling/{name}": torch.zeros(rows) for name in ("next", "previous")}
    print(f"{len(batch['characters']):,} distinct words of {rows * length:,}")
    torch.manual_seed(0)
    plain = PlainElmo(
        Elmo(tokenizer, **settings, cutoffs=None, cell_clip=3.0, projection_clip=3.0), len(vocabulary) + 3
    )
    return {
        "ours": our_step(encoder, BidirectionalLM(), batch),
        "each token's characters, clipped cells step by step, full softmax, float32": training_step(
            plain.train(), lambda: plain(batch), fused=False
        ),
    }


class PlainElmo(nn.Module):
    """The network as the paper writes it down: nothing shared between tokens, no kernel of ours."""

    def __init__(self, encoder: Elmo, outputs: int) -> None:
        super().__init__()
        self.encoder, self.softmax = encoder, nn.Linear(encoder.projection, outputs)

    def forward(self, batch: Batch) -> Tensor:
        every = batch["characters"][batch["words"].flatten()]
        places = torch.arange(len(every)).view(batch["words"].shape)
        hidden = self.encoder({**batch, "characters": every, "words": places}).layers[-1]
        ahead, back = self.encoder.directions(hidden)
        losses = [
            F.cross_entropy(self.softmax(side).flatten(0, 1), batch[name].flatten())
            for side, name in ((ahead, "next"), (back, "previous"))
        ]
        return torch.stack(losses).sum()


BENCHES: dict[str, Callable[[argparse.Namespace], dict[str, Step]]] = {"bert": bert, "gpt": gpt, "elmo": elmo}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name, default in (("rows", 32), ("length", 128), ("size", 256), ("layers", 4), ("heads", 4), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--words", type=int, default=50_000, help="output words of ELMo")
    parser.add_argument("--cell", type=int, default=1024, help="width of ELMo's cells")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--only", choices=list(BENCHES), default=None)
    options = parser.parse_args()
    for name in [options.only] if options.only else BENCHES:
        if name == "elmo":
            shape = f"2 layers, projection 128, cell {options.cell}, {options.rows} x {options.length // 2} words"
            shape += f", {options.words:,} output words"
        else:
            shape = f"{options.layers}x{options.size}, {options.rows} x {options.length} tokens, V {options.vocab:,}"
        threads = f"{torch.get_num_threads()} threads, ours in {best_precision()}"
        print(f"\n{name}: {shape}, dropout {options.dropout}, {threads}")
        seconds = alternate(BENCHES[name](options), rounds=options.rounds)
        tokens = options.rows * options.length // (2 if name == "elmo" else 1)
        print("| step | ms | tokens/s | ours is faster by |\n| --- | --- | --- | --- |")
        for step, value in seconds.items():
            print(f"| {step} | {value * 1000:.0f} | {tokens / value:,.0f} | {value / seconds['ours']:.2f} |")


if __name__ == "__main__":
    main()
