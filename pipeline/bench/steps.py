"""One training step (forward, backward, clipping, optimizer): ours, and the same network in other implementations.

All have the same weights and batch as in `transformers`; ELMo is compared with a plain implementation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline import encoders
from pipeline.bench.timing import Built, Candidate
from pipeline.models.bart import Bart
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.gpt import Gpt
from pipeline.models.layers.spelled_words import collate_words
from pipeline.models.transformer import Transformer
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.bidirectional_lm import BidirectionalLM
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.denoising import Denoising
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.masking import mask_tokens
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe
from pipeline.tokenization.spelled_words import MAX_CHARACTERS, SpelledWords
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.training.blocks import compile_blocks
from pipeline.training.hardware import best_precision
from pipeline.training.throughput import flop_counter

IGNORED = -100  # transformers' label for positions without a prediction


@dataclass(frozen=True)
class Sizes:
    """B rows of T positions, D model size, V vocabulary."""

    rows: int
    length: int
    size: int
    layers: int
    heads: int
    vocab: int
    dropout: float = 0.1

    def __str__(self) -> str:
        return f"{self.layers}x{self.size}, {self.rows} x {self.length} tokens, V {self.vocab:,}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "layers": self.layers,
            "heads": self.heads,
            "inner_size": 4 * self.size,
            "max_length": self.length,
            "dropout": self.dropout,
            "attention_dropout": self.dropout,
            "vocab_size": self.vocab,
        }


def words() -> Iterator[str]:
    return (f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in range(1000))


# ---------------------------------------------------------------------- built in each process


def training_step(model: nn.Module, loss: Callable[[], Tensor], *, fused: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)

    def step() -> None:
        loss().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def read_tensors(folder: Path, side: str, device: str) -> dict[str, Tensor]:
    tensors = torch.load(folder / "batch.pt", weights_only=True)[side]
    return {name: value.to(device) for name, value in tensors.items()}


def our_batch(folder: Path, device: str) -> Batch:
    """The tensors of ours: those whose name has the form TARGET/PART are labels."""
    inputs: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in read_tensors(folder, "ours", device).items():
        target, _, part = name.rpartition("/")
        (parts[target] if target else inputs)[part] = value
    targets = {name: Target(count=torch.tensor(1, device=device), **found) for name, found in parts.items()}
    return Batch(inputs=inputs, targets=targets, rows=torch.arange(len(inputs["mask"]), device=device))


def our_step(folder: Path, objective: Objective, *, device: str, compiled: bool = False) -> Built:
    encoder = encoders.load(folder).to(device)
    batch, bf16 = our_batch(folder, device), fastest(device) == "bf16"

    def loss(enabled: bool = bf16) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            losses = objective(encoder, batch)
        return torch.stack([part.sum / part.count for part in losses.values()]).sum()

    with flop_counter() as counter:  # before compiling: code called under it is never compiled
        loss().backward()
    encoder.zero_grad()
    if compiled:
        compile_blocks(encoder)
    with torch.no_grad():
        losses = {"float32": float(loss(False)), "bf16": float(loss())}
    step = training_step(encoder.train(), loss, fused=True)
    dtype = torch.bfloat16 if bf16 else torch.float32
    return Built(step, losses, flops=counter.get_total_flops(), device=device, dtype=dtype)


def fastest(device: str | None = None) -> str:
    """The precision of the fastest candidates: bf16 only where the machine multiplies it natively."""
    return "bf16" if best_precision(device).startswith("bf16") else "float32"


def their_step(folder: Path, kind: str, *, fast: bool, device: str) -> Built:
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder).eval().to(device)
    batch, precision = read_tensors(folder, "theirs", device), fastest(device) if fast else "float32"

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return model(**batch).loss

    with torch.no_grad():
        losses = {precision: float(loss())}
    return Built(training_step(model.train(), loss, fused=fast), losses, device=device)


def candidates(folder: Path, kind: str, objective: Objective, *, device: str, compiled: bool) -> list[Candidate]:
    made = [Candidate("ours", partial(our_step, folder, objective, device=device), ours=True)]
    if compiled:
        build = partial(our_step, folder, objective, device=device, compiled=True)
        made.append(Candidate("ours, torch.compile", build, ours=True))
    if device == "cpu":
        theirs = partial(their_step, folder, kind, fast=False, device=device)
        made.append(Candidate("transformers float32, AdamW", theirs))
    theirs = partial(their_step, folder, kind, fast=True, device=device)
    return [*made, Candidate(f"transformers {fastest(device)}, fused AdamW", theirs)]


# ---------------------------------------------------------------------- models and batches


def bert(sizes: Sizes, folder: Path, **options: Any) -> list[Candidate]:
    tokenizer = WordPiece.train(words(), vocab_size=min(sizes.vocab, 8192), lowercase=True)
    torch.manual_seed(0)
    Bert(tokenizer, **sizes.options).save(folder)
    rows, length, rng = sizes.rows, sizes.length, np.random.default_rng(0)
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
    ours = {"mask": torch.ones(rows, length, dtype=torch.bool), "nsp/labels": pair_labels}
    ours |= {"mlm/positions": torch.from_numpy(masked.positions), "mlm/labels": torch.from_numpy(masked.labels)}
    theirs = {"attention_mask": torch.ones(rows, length, dtype=torch.long), "next_sentence_label": pair_labels}
    theirs["labels"] = torch.from_numpy(labels.reshape(ids.shape))
    torch.save({"ours": shared | ours, "theirs": shared | theirs}, folder / "batch.pt")
    return candidates(folder, "BertForPreTraining", MaskedLM(), **options)


def gpt(sizes: Sizes, folder: Path, **options: Any) -> list[Candidate]:
    tokenizer = ByteBpe.train(words(), vocab_size=min(sizes.vocab, 8192))
    torch.manual_seed(0)
    Gpt(tokenizer, **sizes.options).save(folder)
    ids = torch.randint(1, len(tokenizer), (sizes.rows, sizes.length))
    labels = F.pad(ids[:, 1:], (0, 1), value=-1)
    ours = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool), "lm/labels": labels}
    torch.save({"ours": ours, "theirs": {"input_ids": ids, "labels": ids}}, folder / "batch.pt")
    return candidates(folder, "GPT2LMHeadModel", CausalLM(), **options)


def bart(sizes: Sizes, folder: Path, **options: Any) -> list[Candidate]:
    return encoder_decoder(Bart, "BartForConditionalGeneration", sizes, folder, **options)


def transformer(sizes: Sizes, folder: Path, **options: Any) -> list[Candidate]:
    return encoder_decoder(Transformer, "MarianMTModel", sizes, folder, **options)


def encoder_decoder(
    model: Callable[..., EncoderDecoder], kind: str, sizes: Sizes, folder: Path, **options: Any
) -> list[Candidate]:
    """Sources and targets of the same length."""
    tokenizer = Seq2SeqBpe.train(words(), vocab_size=min(sizes.vocab, 8192))
    torch.manual_seed(0)
    made = model(tokenizer, **sizes.options)
    made.save(folder)
    sources, targets = torch.randint(len(tokenizer.special_ids), len(tokenizer), (2, sizes.rows, sizes.length))
    start = targets.new_full((sizes.rows, 1), made.decoder_start)
    shared = {"input_ids": sources, "decoder_input_ids": torch.cat([start, targets[:, :-1]], 1)}
    ours = {"mask": torch.ones_like(sources, dtype=torch.bool), "denoising/labels": targets}
    theirs = {"attention_mask": torch.ones_like(sources), "labels": targets}
    torch.save({"ours": shared | ours, "theirs": shared | theirs}, folder / "batch.pt")
    return candidates(folder, kind, Denoising(), **options)


PUBLISHED_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


def elmo(sizes: Sizes, folder: Path, **options: Any) -> list[Candidate]:
    """The published character network and 2 layers, ours and a plain implementation."""
    rng, rows, length = np.random.default_rng(0), sizes.rows, sizes.length
    vocabulary = [word for word, _ in zip(words(), range(sizes.vocab), strict=False)]
    tokenizer = SpelledWords.from_words(vocabulary)
    settings: dict[str, Any] = {"character_size": 16, "filters": PUBLISHED_FILTERS, "highways": 2}
    settings |= {"layers": sizes.layers, "projection": sizes.size, "cell": 8 * sizes.size, "max_length": sizes.length}
    settings["dropout"] = sizes.dropout
    # Word frequencies by Zipf's law: a batch repeats many words, as text does.
    share = 1 / np.arange(1, len(vocabulary) + 1)
    drawn = rng.choice(len(vocabulary), size=(rows, length + 2), p=share / share.sum())
    texts = [[vocabulary[i].encode() for i in row[1:-1]] for row in drawn]
    batch = collate_words(texts, tokenizer.outputs, max_characters=MAX_CHARACTERS)
    batch |= {"forward/labels": torch.from_numpy(drawn[:, 2:] + 3)}
    batch |= {"backward/labels": torch.from_numpy(drawn[:, :-2] + 3)}
    torch.manual_seed(0)
    Elmo(tokenizer, **settings, cutoffs=[2000, 8000]).save(folder)
    torch.save({"ours": batch, "plain": batch}, folder / "batch.pt")
    plain = partial(plain_elmo_step, folder, {**settings, "cell_clip": 3.0, "projection_clip": 3.0})
    return [
        Candidate("ours", partial(our_step, folder, BidirectionalLM(), device="cpu"), ours=True),
        Candidate("each token's characters, clipped cells step by step, full softmax, float32", plain),
    ]


def plain_elmo_step(folder: Path, settings: dict[str, Any]) -> Built:
    batch, tokenizer = read_tensors(folder, "plain", "cpu"), encoders.load(folder).tokenizer
    assert tokenizer.outputs is not None
    plain = PlainElmo(Elmo(tokenizer, **settings, cutoffs=None), len(tokenizer.outputs) + 3).train()
    return Built(training_step(plain, lambda: plain(batch), fused=False))


class PlainElmo(nn.Module):
    """The network as in the paper, without our kernels and without shared work between equal words."""

    def __init__(self, encoder: Elmo, outputs: int) -> None:
        super().__init__()
        self.encoder, self.softmax = encoder, nn.Linear(encoder.projection, outputs)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        every = batch["characters"][batch["words"].flatten()]
        places = torch.arange(len(every)).view(batch["words"].shape)
        hidden = self.encoder({**batch, "characters": every, "words": places}).layers[-1]
        ahead, back = self.encoder.directions(hidden)
        losses = [
            F.cross_entropy(self.softmax(side).flatten(0, 1), batch[f"{name}/labels"].flatten())
            for side, name in ((ahead, "forward"), (back, "backward"))
        ]
        return torch.stack(losses).sum()
