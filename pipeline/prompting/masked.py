"""Scores of masked models: pseudo-log-likelihood, each token masked in turn (Salazar et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.prompting.requests import (
    Progress,
    Request,
    Scored,
    Scorer,
    distinct,
    length_batches,
    log_probs_of,
    split,
)
from tasks.dataset import shortened


class MaskedScorer(Scorer):
    """Pseudo-log-likelihood of the candidate alone, given all that is left and right of it.

    Args:
        within_word: hide also the later pieces of the same word (Kauf and Ivanova 2023), since what is left of a word
            gives it away; False: one token at a time, as the original.
    """

    scores_right = False

    def describe(self, shapes: set[str]) -> str:
        if "cloze" in shapes:
            return "log-likelihood at the masks"
        return "pseudo-log-likelihood, each token masked in turn (a masked model does not continue a text)"

    def score(self, requests: Sequence[Request], progress: Progress) -> list[Scored]:
        copies: list[list[int]] = []  # the text with masks, a copy for each scored token
        scored: list[tuple[int, int, int]] = []  # of each copy: its request, the place, the token
        results = []
        for number, (text, first, last, cut) in enumerate(self._spans(requests)):
            unknown = tuple(self.encoder.unknown_words(text[first:last]))
            results.append(Scored(0.0, last - first, cut, greedy=not unknown, unknown=unknown))
            for place in range(first, last):
                copies.append(self._masked(text, place, last))
                scored.append((number, place, text[place]))
        waiting = [result.tokens for result in results]
        progress(sum(not count for count in waiting))
        firsts, which = distinct([(tuple(copy), *of[1:]) for copy, of in zip(copies, scored, strict=True)])
        owners: list[list[int]] = [[] for _ in firsts]
        for (number, _, _), index in zip(scored, which, strict=True):
            owners[index].append(number)
        distinct_copies, places = [copies[first] for first in firsts], [scored[first][1:] for first in firsts]
        for index, log_prob, greedy in score_masks(self.encoder, distinct_copies, places):
            for number in owners[index]:
                results[number].total += log_prob
                results[number].greedy &= greedy
                waiting[number] -= 1
                progress(waiting[number] == 0)
        return results

    def token_scores(self, tokens: Sequence[Any]) -> dict[str, list[float]]:
        mask = self.encoder.tokenizer.id("mask")
        copies = [[*tokens[:place], mask, *tokens[place + 1 :]] for place in range(len(tokens))]
        scores = sorted(score_masks(self.encoder, copies, list(enumerate(tokens))))
        return {"given all others": [nats for _, nats, _ in scores]}

    def _spans(self, requests: Sequence[Request]) -> Iterator[tuple[list[int], int, int, int]]:
        """Of each request the tokens of its text, the candidate's first place, the one behind its last, and the cut.

        Raises:
            UserError: the candidate shares a token with what is right of it: it would be scored in part, or not at all
                and so win; or no token of it fits beside what is right of it.
        """
        pairs, behind = split(self.tokens, requests), self.tokens([request.right for request in requests])
        for request, (left, rest), right in zip(requests, pairs, behind, strict=True):
            size = len(rest) - len(right)
            if size < 1 or rest[size:] != list(right):
                target, following = shortened(request.target), request.right[:30]
                raise UserError(f"'{target}' cannot be scored before '{following}': it needs a space after it.")
            cut = max(0, len(left) + len(rest) - self.room)
            text = [*left, *rest][cut:][: self.room]
            first = max(0, len(left) - cut)
            if len(left) + size <= cut:
                raise UserError(
                    f"'{shortened(request.target)}' cannot be scored: the {len(right)} tokens behind it fill a row."
                )
            yield text, first, min(len(text), len(left) + size - cut), cut

    def _masked(self, text: Sequence[int], place: int, last: int) -> list[int]:
        """A text with a mask at `place`, and at the later pieces of the same word before `last`."""
        copy, mask, continues = list(text), self.encoder.tokenizer.id("mask"), self.encoder.tokenizer.continues_word
        copy[place] = mask
        later = place + 1
        while self.within_word and later < last and continues[text[later]]:
            copy[later] = mask
            later += 1
        return copy


def score_masks(
    encoder: Encoder, copies: Sequence[list[int]], places: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, float, bool]]:
    """The number of each text with masks, as batches get done, nats of a token, and whether it is the likeliest.

    Args:
        copies: texts in tokens, without the special ones.
        places: of each text a place, and the token that is scored there.
    """
    special, device = encoder.special, encoder.device
    for chosen in length_batches(encoder, [len(copy) + special.count() for copy in copies]):
        batch = encoder.on_device(encoder.collate([copies[i] for i in chosen]))
        columns = torch.tensor([special.prefix + places[i][0] for i in chosen], device=device)
        labels = torch.tensor([places[i][1] for i in chosen], device=device)
        rows, length = batch["mask"].shape
        asked = torch.arange(0, rows * length, length, device=device) + columns
        hidden = encoder(encoder.asked(batch, asked)).layers[-1].flatten(0, 1)[asked]
        yield from zip(chosen, *(part.tolist() for part in log_probs_of(encoder, hidden, labels)), strict=True)
