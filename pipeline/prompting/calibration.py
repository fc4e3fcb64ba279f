"""From log-likelihoods to scores of candidates, under every rule the field uses: lengths, PMI, calibration."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from pipeline.prompting.few_shot import solve, with_examples
from pipeline.prompting.requests import Request, Scored, Scorer
from pipeline.prompting.scoring import score_with
from tasks.prompts import MASK, Prompt, Question

RULES = ("sum", "per_token", "per_character", "per_byte", "pmi", "calibrated")
CONTENT_FREE = ("N/A", "", MASK)  # Zhao et al. 2021, 3
TINY = 1e-300  # a probability whose logarithm is finite
Words = tuple[tuple[str, str], ...]  # of a question, see there


class Calibration:
    """The calibration of a prompt's candidates, scored once for all its questions.

    Args:
        questions: with their examples.
        shown: the examples, which stand before the empty prompts too.
    """

    def __init__(
        self, scorer: Scorer, prompt: Prompt, questions: Sequence[Question], shown: Sequence[Question]
    ) -> None:
        self.scores_right = scorer.scores_right
        self.priors: dict[tuple[Words, int], dict[str, float]] = {}  # of words, after so many examples
        self.shares: list[float] = []
        if prompt.shape not in ("pair", "last_word"):
            for question in questions:
                self.priors.setdefault(premise_of(question), {}).update(dict.fromkeys(question.candidates, 0.0))
            for (words, examples), candidates in self.priors.items():
                same = shown[len(shown) - examples :]
                totals = score_empty(scorer, prompt, "", list(candidates), same, words=dict(words))
                candidates.update(zip(candidates, totals, strict=True))
        if isinstance(prompt.candidates, dict) and len({tuple(question.candidates) for question in questions}) == 1:
            self.shares = content_free(scorer, prompt, questions[0].candidates, shown)

    def scores(self, question: Question, scored: Sequence[Scored]) -> dict[str, list[float]]:
        """Rule -> score of each candidate of a question."""
        totals = [one.total for one in scored]
        right = question.right if self.scores_right else ""
        texts = [(candidate + right).removeprefix(" ") for candidate in question.candidates]  # as lm-eval counts them
        scores = {
            "sum": totals,
            "per_token": [one.total / max(1, one.tokens) for one in scored],
            "per_character": [total / max(1, len(text)) for total, text in zip(totals, texts, strict=True)],
            "per_byte": [total / max(1, len(text.encode())) for total, text in zip(totals, texts, strict=True)],
        }
        if self.priors:
            priors = self.priors[premise_of(question)]
            scores["pmi"] = [t - priors[c] for t, c in zip(totals, question.candidates, strict=True)]
        if self.shares:
            log_probs = softmax_over(totals).clamp(min=TINY).log().tolist()
            scores["calibrated"] = [a - math.log(p) for a, p in zip(log_probs, self.shares, strict=True)]
        return scores


def premise_of(question: Question) -> tuple[Words, int]:
    """What a question shares with the empty prompt: its own words, and the number of examples that fit."""
    return tuple(sorted(question.words.items())), question.examples


def empty_prompt(prompt: Prompt, text: str, words: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The prompt with `text` in place of every field but those of `words`: what is left and right of the candidate.

    The space in front of a mask stays: without it the candidate would be the end of the word before.
    """
    parts = string.Formatter().parse(prompt.text)
    known = words or {}
    plain = "".join(literal + ("" if name is None else known.get(name, text)) for literal, name, *_ in parts)
    left, _, right = plain.partition(MASK) if prompt.shape == "cloze" else (plain, "", "")
    return left.lstrip(), right


def score_empty(
    scorer: Scorer,
    prompt: Prompt,
    text: str,
    candidates: Sequence[str],
    shown: Sequence[Question],
    words: Mapping[str, str] | None = None,
) -> list[float]:
    """Nats of candidates in the prompt with `text` in place of its fields, after the same examples.

    The log-likelihoods after the prompt without its fields are the prior of domain-conditional PMI (Holtzman et al.
    2021, whose premise of COPA is `because` or `therefore` too).

    Args:
        words: of the prompt's own, which stay.
    """
    left, right = empty_prompt(prompt, text, words)
    requests = [Request("".join(solve(shown)) + left, candidate, right) for candidate in candidates]
    return [scored.total for scored in score_with(scorer, requests)]


def content_free(scorer: Scorer, prompt: Prompt, candidates: Sequence[str], shown: Sequence[Question]) -> list[float]:
    """How likely each label is to begin with: the mean over inputs that say nothing (Zhao et al. 2021)."""
    texts = CONTENT_FREE if prompt.shape != "cloze" else CONTENT_FREE[:2]
    sides = [empty_prompt(prompt, text) for text in texts]
    empty = [Question(left, list(candidates), right, 0) for left, right in sides]
    fitting = [shown[len(shown) - question.examples :] for question in with_examples(scorer, empty, shown)]
    shares = [
        softmax_over(score_empty(scorer, prompt, text, candidates, same)).tolist()
        for text, same in zip(texts, fitting, strict=True)
    ]
    return [max(TINY, statistics.fmean(column)) for column in zip(*shares, strict=True)]


def softmax_over(scores: Sequence[float]) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64).softmax(-1)
