"""Causal language modeling: each token from those before it (Radford et al. 2018, equation 1).

The corpus is one stream of documents, cut into blocks of the same length. Shapes: B rows, T positions, D model size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch

from pipeline.data.rows import PackedBlocks
from pipeline.data.token_store import TokenStore
from pipeline.errors import check_choice
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss
from pipeline.objectives.base import Objective, perplexity
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.checks import Check, equal, none
from pipeline.objectives.samples import Table, continuations
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer


class CausalLM(Objective):
    """Each token from those before it.

    Args:
        packing: `concat` (a block is one text, whatever documents it holds) or `document` (attention and
            positions do not cross the boundaries of documents, as if each had its own row).
        stateful: rows continue those of the step before, and so does the state of the model, without its gradient
            (truncated backpropagation through time: Williams and Peng 1990).
    """

    requires = frozenset({"causal"})
    main = "lm"
    shown = ("lm_loss", "lm_accuracy", "perplexity", "bits_per_byte")

    def __init__(self, packing: Literal["concat", "document"] = "concat", stateful: bool = False) -> None:
        super().__init__()
        check_choice("packing", packing, ("concat", "document"))
        self.packing, self.consecutive = packing, stateful
        needed = {"packing": packing == "document", "state": stateful}
        self.requires = self.requires | {name for name, is_needed in needed.items() if is_needed}

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> PackedBlocks:
        return PackedBlocks(store, length, boundary=self.marks(tokenizer), phase=phase)

    def marks(self, tokenizer: Tokenizer) -> list[int]:
        end, begin = tokenizer.id("eos"), tokenizer.id("bos")
        return [end] if begin == end else [end, begin]

    def batch(self, rows: PackedBlocks, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        ids, documents = rows(index)
        mask = documents[:, :-1] >= 0
        labels = np.where((documents[:, 1:] >= 0) & mask, ids[:, 1:], -1)
        inputs = {"input_ids": torch.from_numpy(ids[:, :-1].copy()), "mask": torch.from_numpy(mask)}
        if self.packing == "document":
            inputs["documents"] = torch.from_numpy(documents[:, :-1].copy())
        target = Target(labels=torch.from_numpy(labels), count=torch.tensor((labels >= 0).sum()))
        if rows.store.unknown_nats:  # on average: the tokens do not say which words they were
            unknown = torch.from_numpy((labels == tokenizer.id("unk")).sum(1))
            target.spelling = unknown.double() * rows.store.unknown_nats
        return Batch(inputs=inputs, targets={"lm": target}, rows=torch.from_numpy(index))

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        encoded = model(batch.inputs, batch.state if self.consecutive else None)
        batch.state = encoded.state if self.consecutive else None
        hidden = encoded.layers[-1].flatten(0, 1)
        target = batch.targets["lm"]
        labels, predicted = target.labels.flatten(), target.predicted
        if len(predicted) < len(labels):
            hidden, labels = hidden.index_select(0, predicted), labels[predicted]
        loss = model.token_loss(hidden, labels)
        loss.spelling = target.spelling_sum
        return {"lm": loss}

    def report(self, metrics: dict[str, float], *, per_byte: float) -> dict[str, float]:
        """Bits per byte charge each unknown word its [UNK] and its spelling, where the tokenizer has whole words."""
        loss, spelling = metrics["lm_loss"], metrics.get("lm_spelling", 0.0)
        return {"perplexity": perplexity(loss), "bits_per_byte": (loss + spelling) * per_byte / math.log(2)}

    def samples(self, model: Encoder, store: TokenStore) -> Table:
        return continuations(model, store)

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        wrong = sum(shifted(batch.inputs["input_ids"], batch.targets["lm"].labels, 1) for batch in batches)
        yield none("labels are the next tokens", wrong, "are not")
        if "packing" in model.capabilities():
            with torch.no_grad():
                yield packed(model, steps)


def shifted(ids: torch.Tensor, labels: torch.Tensor, shift: int) -> int:
    """How many labels (B, T) are not the input (B, T) one position further (`shift` 1) or before (-1)."""
    here, there = (labels[:, :-1], ids[:, 1:]) if shift > 0 else (labels[:, 1:], ids[:, :-1])
    return int(((here != there) & (here >= 0)).sum())


def packed(model: Encoder, steps: StepBatches) -> Check:
    """Documents packed into blocks with `packing: document`, compared with each document in its own row."""
    name, worst, count = "packed documents equal one per row", 0.0, 0
    blocks: PackedBlocks = steps.rows
    rows = np.unique((blocks.starts[1:-1][:16] - blocks.offset) // blocks.length)  # blocks that hold a boundary
    rows = rows[(rows >= 0) & (rows < len(blocks))]
    if not len(rows):
        return Check(name, True, "the corpus has no boundary to look at")
    batch = CausalLM("document").batch(blocks, rows, steps.tokenizer, rng=np.random.default_rng(0))
    inputs, hidden = batch.inputs, model(batch.inputs).layers[-1]
    begins = inputs["input_ids"] == steps.tokenizer.id("bos")
    for row in range(len(rows)):
        bounds = [0, *[int(i) for i in begins[row].nonzero() if i > 0], begins.shape[1]]
        for low, high in itertools.pairwise(bounds):
            ids = inputs["input_ids"][row : row + 1, low:high]
            alone = model({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1][0]
            here = hidden[row, low:high][batch.mask[row, low:high]]
            worst = max(worst, float((here - alone[: len(here)]).abs().max())) if len(here) else worst
            count += 1
    check = equal(name, worst)
    return Check(name, check.passed, f"{check.detail}, {count} documents in {len(rows)} rows")
