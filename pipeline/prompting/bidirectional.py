"""Scores of models that read left to right and right to left: a continuation by the first, a text by both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.prompting.requests import Progress, Request, Scored, Scorer, distinct, length_batches, split


class BidirectionalScorer(Scorer):
    """Forward log-likelihood of a continuation, and of what is right of it; forward and backward of a whole text.

    Args:
        both_ways: score texts without a context in both directions; False: forward only, as any continuation.
    """

    def describe(self, shapes: set[str]) -> str:
        return "forward log-likelihood after a context, forward and backward of whole texts"

    def score(self, requests: Sequence[Request], progress: Progress) -> list[Scored]:
        texts, bounds, results = [], [], []
        for left, rest in split(self.tokens, requests):
            cut = max(0, len(left) + len(rest) - self.room)
            texts.append([*left, *rest][cut:])
            bounds.append((max(0, len(left) - cut), len(texts[-1]), self.both_ways and not left))
            unknown = tuple(self.encoder.unknown_words(rest))
            results.append(Scored(0.0, min(len(rest), self.room), cut, unknown=unknown))
        firsts, which = distinct([(tuple(text), bound) for text, bound in zip(texts, bounds, strict=True)])
        progress(len(texts) - len(firsts))
        special = self.encoder.special.count()
        for indices in length_batches(self.encoder, [len(texts[first]) + special for first in firsts]):
            chosen = [firsts[index] for index in indices]
            self._score_batch([texts[i] for i in chosen], [bounds[i] for i in chosen], [results[i] for i in chosen])
            progress(len(chosen))
        for result, index in zip(results, which, strict=True):
            result.total, result.greedy = results[firsts[index]].total, results[firsts[index]].greedy
        return results

    def token_scores(self, tokens: Sequence[Any]) -> dict[str, list[float]]:
        batch = self.encoder.on_device(self.encoder.collate([tokens]))
        begin = self.encoder.special.prefix
        ahead, back = self.encoder.log_probs(batch)[0, begin : begin + len(tokens)].T.tolist()
        return {"given those before": ahead, "given those after": back}

    def _score_batch(self, texts: list[list[Any]], bounds: list[tuple[int, int, bool]], results: list[Scored]) -> None:
        """Writes `total` and `greedy` of texts that are scored from one bound to the other, or whole, into results."""
        encoder, begin = self.encoder, self.encoder.special.prefix
        batch = encoder.on_device(encoder.collate(texts))
        encoded = encoder(batch)
        scores = encoder.log_probs(batch, encoded=encoded).cpu().double()
        for number, ((first, last, whole), result) in enumerate(zip(bounds, results, strict=True)):
            first, last = begin + first, begin + last
            # A whole text is a sentence: the marks of its end and its begin belong to it.
            if whole:
                result.total = float(scores[number, begin : last + 1, 0].sum() + scores[number, :last, 1].sum())
            else:
                result.total = float(scores[number, first:last, 0].sum())
            likeliest = encoder.likeliest_next(encoded.layers[-1][number, first - 1 : last - 1])
            result.greedy = not result.unknown and likeliest.equal(batch["input_ids"][number, first:last])
