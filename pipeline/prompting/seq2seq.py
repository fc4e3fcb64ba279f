"""Scores of encoder-decoders: the encoder reads the context, the decoder's probability of what follows is the score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import select
from pipeline.prompting.requests import (
    ContinuationScorer,
    Progress,
    Scored,
    distinct,
    length_batches,
    log_probs_of,
)


class Seq2SeqScorer(ContinuationScorer):
    """Log-likelihood of a continuation, and of what is right of it, as the beginning of the context's target.

    The end of the target is not scored, as in causal models. Each context of a batch is read once.
    """

    encoder: EncoderDecoder

    def describe(self, shapes: set[str]) -> str:
        return "log-likelihood of what follows, as the target of the context"

    def token_scores(self, tokens: Sequence[Any]) -> dict[str, list[float]]:
        [(nats, _)] = self._score_batch([[]], [list(tokens)])
        return {"given those before, of an empty source": nats.tolist()}

    def score_distinct(self, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
        most = self.encoder.max_length - len(self.encoder.target_prefix)
        contexts = [context[max(0, len(context) - self.room) :] for context, _ in pairs]
        targets = [target[max(0, len(target) - most) :] for _, target in pairs]
        scores: dict[int, Scored] = {}
        lengths = [len(context) + len(target) for context, target in zip(contexts, targets, strict=True)]
        for indices in length_batches(self.encoder, lengths):
            results = self._score_batch([contexts[i] for i in indices], [targets[i] for i in indices])
            for i, (nats, greedy) in zip(indices, results, strict=True):
                cut = sum(map(len, pairs[i])) - lengths[i]
                scores[i] = Scored(float(nats.double().sum()), len(targets[i]), cut, bool(greedy.all()))
            progress(len(indices))
        return [scores[number] for number in range(len(pairs))]

    def _score_batch(
        self, contexts: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Of each target the nats of its tokens, and which of them are the likeliest."""
        encoder, device = self.encoder, self.encoder.device
        firsts, which = distinct([tuple(context) for context in contexts])
        sources = encoder.on_device(encoder.collate([contexts[i] for i in firsts]))
        state = select(encoder.begin(encoder.read(sources)), torch.tensor(which, device=device))
        batch = encoder.collate_targets(targets)
        hidden = encoder.decode(batch["decoder_input_ids"].to(device), state)
        begin, sizes = len(encoder.target_prefix), [len(target) for target in targets]
        scored = torch.cat([hidden[row, begin : begin + size] for row, size in enumerate(sizes)])
        labels = torch.tensor([token for target in targets for token in target], device=device)
        nats, greedy = log_probs_of(encoder, scored, labels)
        return list(zip(nats.split(sizes), greedy.split(sizes), strict=True))
