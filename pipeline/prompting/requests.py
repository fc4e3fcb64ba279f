"""What is scored, and how texts become batches: the boundary of context and continuation, lengths, log-probabilities.

The boundary follows lm-evaluation-harness: a context's last spaces belong to the continuation, both are tokenized as
one text and cut where the context's tokens end.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from tasks.dataset import shortened

BUDGET = {"cpu": 2_048}  # positions of a batch: what stays in the cache
LARGE_BUDGET = 65_536  # elsewhere
CHUNK = 512  # rows whose logits exist at once

Progress = Callable[[int], Any]  # called with the number of further requests that are done


@dataclass
class Request:
    """`target` is scored between `left` and `right`; whether `right` is scored with it, see `Scorer.scores_right`."""

    left: str
    target: str
    right: str = ""


@dataclass
class Scored:
    """The score of a request.

    Attributes:
        total: log-likelihood in nats.
        tokens: number of scored tokens.
        cut: number of tokens that did not fit into the encoder's positions, from the left.
        greedy: whether each token was the likeliest one.
        unknown: scored words that the encoder cannot predict by name.
    """

    total: float
    tokens: int
    cut: int = 0
    greedy: bool = False
    unknown: tuple[str, ...] = ()


class TokenizedTexts:
    """The tokens of texts, without special ones; each text is tokenized once, until it is forgotten."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._tokens: dict[str, list[Any]] = {}

    def __call__(self, texts: Sequence[str]) -> list[list[Any]]:
        """The tokens of each text; the lists are shared, so do not change them."""
        new = [text for text in dict.fromkeys(texts) if text not in self._tokens]
        if new:
            self._tokens.update(zip(new, self.encoder.tokenize(new), strict=True))
        return [self._tokens[text] for text in texts]

    def __len__(self) -> int:
        return len(self._tokens)

    def forget(self, first: int) -> None:
        """Forgets all texts but the `first` ones."""
        for text in list(self._tokens)[first:]:
            del self._tokens[text]


class Scorer(ABC):
    """One way to get probabilities out of an encoder; `scoring.py` chooses it by `encoder.scoring`.

    Args:
        encoder: see `score`.
        within_word: see MaskedScorer.
        both_ways: see BidirectionalScorer.

    Attributes:
        scores_right: whether what is right of a candidate is scored with it.
        tokens: tokenizes texts.
    """

    scores_right: ClassVar[bool] = True

    def __init__(self, encoder: Encoder, *, within_word: bool = True, both_ways: bool = True) -> None:
        self.encoder, self.within_word, self.both_ways = encoder, within_word, both_ways
        self.tokens = TokenizedTexts(encoder)

    @property
    def room(self) -> int:
        """Tokens of a text that fit between the special ones."""
        return self.encoder.max_length - self.encoder.special.count()

    @abstractmethod
    def score(self, requests: Sequence[Request], progress: Progress) -> list[Scored]:
        """Scores requests, without gradients; see `scoring.score`."""

    @abstractmethod
    def token_scores(self, tokens: Sequence[Any]) -> dict[str, list[float]]:
        """What each token of a text costs: headings -> nats of each token."""

    @abstractmethod
    def describe(self, shapes: set[str]) -> str:
        """How prompts of these shapes are scored, in words."""


class ContinuationScorer(Scorer):
    """Of models that read a context, and then the tokens that follow it: equal pairs of the two are scored once."""

    def score(self, requests: Sequence[Request], progress: Progress) -> list[Scored]:
        return self.score_tokens(split(self.tokens, requests, within_token=True), progress)

    def score_tokens(self, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
        """As `score`, of contexts and continuations in tokens."""
        firsts, which = distinct([(tuple(context), tuple(target)) for context, target in pairs])
        progress(len(pairs) - len(firsts))
        scores = self.score_distinct([pairs[first] for first in firsts], progress)
        return [scores[place] for place in which]

    @abstractmethod
    def score_distinct(self, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
        """As `score_tokens`, of pairs of which no two are alike."""


def split(
    tokens: TokenizedTexts, requests: Sequence[Request], *, within_token: bool = False
) -> list[tuple[list[Any], list[Any]]]:
    """Tokens of contexts, and of their continuations: of the target and what is right of it.

    Args:
        within_token: whether a continuation that lies within the context's last token is scored by that token.

    Raises:
        UserError: a text has no tokens, or shares its first token with the context: it would get a likelihood of 1, and
            win any comparison.
    """
    texts = []
    for request in requests:
        texts += [request.left + request.target + request.right, request.left.rstrip()]
    ids = tokens(texts)
    return [
        _cut_at_context(request, whole, context, within_token=within_token)
        for request, whole, context in zip(requests, ids[::2], ids[1::2], strict=True)
    ]


def _cut_at_context(
    request: Request, whole: list[Any], context: list[Any], *, within_token: bool
) -> tuple[list[Any], list[Any]]:
    rest = list(whole[len(context) :])
    target = request.target + request.right
    if within_token and whole and not rest and target.strip():
        shared = min(common_prefix([whole, context]), len(whole) - 1)
        return list(whole[:shared]), list(whole[shared:])
    if rest and (within_token or list(whole[: len(context)]) == list(context)):
        return list(context), rest
    bare = not request.left or not target.strip()
    why = ": it has no tokens" if bare else f" after '{request.left[-30:]}': it needs a space in front"
    raise UserError(f"'{shortened(target)}' cannot be scored{why}.")


def common_prefix(rows: Sequence[list[Any]]) -> int:
    """The number of tokens that all rows begin with."""
    low, high = min(rows), max(rows)
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


def beginning(encoder: Encoder, text: str, room: int) -> str:
    """The longest beginning of a text in whole words that has at most `room` tokens, but for one word at least."""
    words = [match.group() for match in itertools.islice(re.finditer(r"\s*\S+", text), max(1, room))]
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(encoder.tokenize(["".join(words[:middle])])[0]) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return "".join(words[:low])


def distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where each distinct key comes first, and for each key its place among these.

    What is requested twice is computed once: in another batch its score would round differently, and a tie be none.
    """
    places: dict[Hashable, int] = {}
    which = [places.setdefault(key, len(places)) for key in keys]
    firsts: dict[int, int] = {}
    for number, place in enumerate(which):
        firsts.setdefault(place, number)
    return list(firsts.values()), which


def length_batches(encoder: Encoder, lengths: Sequence[int]) -> list[list[int]]:
    """Indices of similar length together, longest first."""
    budget = BUDGET.get(encoder.device.type, LARGE_BUDGET)
    result: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not result or len(result[-1]) * lengths[result[-1][0]] >= budget:
            result.append([])
        result[-1].append(index)
    return result


def log_probs_of(encoder: Encoder, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) and tokens (N,) -> their log-probabilities, and whether they are the likeliest; logits in chunks."""
    log_probs, greedy = [], []
    for rows, tokens in zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True):
        logits = encoder.logits(rows).float()
        chosen, top = logits.gather(-1, tokens[:, None]), logits.amax(-1, keepdim=True)
        greedy.append((chosen >= top)[:, 0])
        log_probs.append((chosen - top - logits.sub_(top).exp_().sum(-1, keepdim=True).log())[:, 0])
    return torch.cat(log_probs), torch.cat(greedy)
