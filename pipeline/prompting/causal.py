"""Scores of causal models: log p(continuation | context), as lm-evaluation-harness has it.

An empty context is the token that begins a text, and what is too long loses its left end. Continuations of one
context share a row where the model can keep them apart (`attend`), and contexts that begin alike share the state of
their beginning where it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.models.generation import copies
from pipeline.models.inputs import Inputs
from pipeline.prompting.requests import (
    ContinuationScorer,
    Progress,
    Scored,
    common_prefix,
    length_batches,
    log_probs_of,
)

SHARED = 8  # tokens of a context from which on its continuations share one row


@dataclass
class _Row:
    """A context and the continuations that are scored after it, side by side."""

    context: list[int]
    targets: list[list[int]]
    requests: list[int]

    def __len__(self) -> int:
        return len(self.context) + sum(len(target) - 1 for target in self.targets)


class CausalScorer(ContinuationScorer):
    """Log-likelihood of a continuation, and of what is right of it, after its context."""

    def describe(self, shapes: set[str]) -> str:
        return "log-likelihood of what follows the context"

    def token_scores(self, tokens: Sequence[Any]) -> dict[str, list[float]]:
        batch = self.encoder.on_device(self.encoder.collate([tokens]))
        begin = self.encoder.special.prefix
        return {"given those before": self.encoder.log_probs(batch)[0, begin : begin + len(tokens)].tolist()}

    def score_distinct(self, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
        rows, cuts = self._rows(pairs)
        shared = common_prefix([row.context[:-1] for row in rows]) if len(rows) > 1 else 0
        state = self._read(rows[0].context[:shared]) if shared >= SHARED else None
        read = 0 if state is None else shared
        scores: dict[int, Scored] = {}
        for indices in length_batches(self.encoder, [len(row) - read for row in rows]):
            chosen = [rows[i] for i in indices]
            for row, results in zip(chosen, self._score_rows(chosen, state, read), strict=True):
                for number, target, (total, greedy) in zip(row.requests, row.targets, results, strict=True):
                    unknown = tuple(self.encoder.unknown_words(target))
                    scores[number] = Scored(total, len(target), cuts[number], greedy and not unknown, unknown)
                progress(len(row.requests))
        return [scores[number] for number in range(len(pairs))]

    def _rows(self, pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[list[_Row], list[int]]:
        """Pairs as rows, and how many tokens of each do not fit."""
        longest, packs = self.encoder.max_length, "attend" in self.encoder.offers
        rows: list[_Row] = []
        cuts = []
        for number, (context, target) in enumerate(pairs):
            context = context or [self.encoder.tokenizer.id("bos")]
            lost = max(0, len(target) - longest)
            context, target = [*context, *target[:lost]], target[lost:]
            kept = context[max(0, len(context) + len(target) - longest - 1) :]
            cuts.append(len(context) - len(kept))
            joins = packs and rows and rows[-1].context == kept and len(kept) >= SHARED
            if joins and len(rows[-1]) + len(target) <= longest:
                rows[-1].targets.append(target)
                rows[-1].requests.append(number)
            else:
                rows.append(_Row(kept, [target], [number]))
        return rows, cuts

    def _read(self, tokens: Sequence[int]) -> Any:
        """The state after the beginning of all contexts; None: the model has none."""
        ids = torch.tensor([list(tokens)], device=self.encoder.device)
        batch = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
        return self.encoder(batch, self.encoder.new_state()).state

    def _score_rows(self, rows: Sequence[_Row], state: Any, read: int) -> list[list[tuple[float, bool]]]:
        """Nats of each continuation of each row, and whether it is the greedy one; `state` has seen `read` tokens."""
        batch, places = _batch(rows, read)
        device = self.encoder.device
        length = batch["mask"].shape[1]
        at = torch.tensor([row * length + place for row, columns in places for place in columns])
        batch = self.encoder.on_device(self.encoder.asked(batch, at.unique()))
        encoded = self.encoder(batch, copies(state, len(rows), device))
        labels = torch.tensor([token for row in rows for target in row.targets for token in target], device=device)
        log_probs, greedy = log_probs_of(self.encoder, encoded.layers[-1].flatten(0, 1)[at.to(device)], labels)
        sizes = [len(columns) for _, columns in places]
        results = iter(
            (float(nats.double().sum()), bool(best.all()))
            for nats, best in zip(log_probs.split(sizes), greedy.split(sizes), strict=True)
        )
        return [[next(results) for _ in row.targets] for row in rows]


def _batch(rows: Sequence[_Row], read: int) -> tuple[Inputs, list[tuple[int, list[int]]]]:
    """A batch of rows, and of each continuation its row and the columns where its tokens are predicted."""
    length = max(map(len, rows)) - read
    ids, part = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -1)
    positions = torch.zeros(len(rows), length, dtype=torch.long)
    places: list[tuple[int, list[int]]] = []
    for number, row in enumerate(rows):
        context = row.context[read:]
        at = len(context)
        ids[number, :at], part[number, :at] = torch.tensor(context), 0
        positions[number, :at] = torch.arange(read, read + at)
        for index, target in enumerate(row.targets, start=1):
            size = len(target) - 1
            ids[number, at : at + size], part[number, at : at + size] = torch.tensor(target[:-1]), index
            positions[number, at : at + size] = len(row.context) + torch.arange(size)
            places.append((number, [len(context) - 1, *range(at, at + size)]))
            at += size
    batch: Inputs = {"input_ids": ids, "mask": part >= 0, "positions": positions}
    if any(len(row.targets) > 1 for row in rows):  # a continuation sees the context and itself
        batch["attend"] = (part[:, None, :] == 0) | (part[:, :, None] == part[:, None, :])
    return batch, places
