"""Checks of denoising: as many tokens are hidden, in spans as long, as the paper has it; targets are the text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.objectives.batch import Batch
from pipeline.objectives.checks import SIGMAS, Check, none, share
from pipeline.objectives.infilling import permute

if TYPE_CHECKING:
    from pipeline.objectives.denoising import Denoising
    from pipeline.objectives.sampling import StepBatches

Text = tuple[np.ndarray, np.ndarray]  # its tokens, and where sentences begin, but for the first


def noise_checks(objective: Denoising, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
    """Of real batches, of the noise of their texts, and of two passes over them."""
    tokenizer = steps.tokenizer
    special = [*tokenizer.special_ids, *tokenizer.languages.values()]
    texts: list[Text] = [text for batch in batches for text in steps.rows(batch.rows.numpy())]
    sources = [_without(special, row) for batch in batches for row in batch.inputs["input_ids"]]
    targets = [_without(special, row[row >= 0]) for batch in batches for row in batch.targets[objective.main].labels]
    other = sum(not np.array_equal(target, tokens) for target, (tokens, _) in zip(targets, texts, strict=True))
    yield none("targets are the text", other, f"of {len(targets):,} are not")
    pairs = list(zip(sources, targets, strict=True))
    foreign = sum((Counter(source.tolist()) - Counter(target.tolist())).total() for source, target in pairs)
    yield none("what a source shows is of its text", foreign, "tokens are not")
    if tokenizer.languages and steps.store.languages is not None:
        yield none("rows name the language of their text", _other_language(steps, batches), "do not")
    hidden = np.array([len(target) - len(source) for source, target in pairs])
    yield share("hidden tokens", hidden.sum(), sum(map(len, targets)), objective.mask_rate)
    masks = sum(int((batch.inputs["input_ids"] == tokenizer.id("mask")).sum()) for batch in batches)
    yield _mean_span(hidden, masks, objective.mean_span)
    yield _insertions(objective, steps, texts)
    if objective.permute_sentences:
        yield _permutations(texts)
    yield passes_differ(objective, steps, batches[0])


def passes_differ(objective: Denoising, steps: StepBatches, batch: Batch) -> Check:
    first, second = (
        objective.batch(steps.rows, batch.rows.numpy(), steps.tokenizer, rng=np.random.default_rng(seed)).inputs
        for seed in (0, 1)
    )
    same = torch.equal(first["input_ids"], second["input_ids"])
    return Check("two passes have other noise", not same, "the same sources" if same else "other sources")


def _without(special: list[int], ids: torch.Tensor) -> np.ndarray:
    row = ids.numpy()
    return row[~np.isin(row, special)]


def _other_language(steps: StepBatches, batches: Sequence[Batch]) -> int:
    """How many rows have other tokens of languages than that of their document, in source and target."""
    codes, wrong = list(steps.tokenizer.languages.values()), 0
    for batch in batches:
        rows = zip(batch.inputs["input_ids"], batch.inputs["decoder_input_ids"], strict=True)
        own = steps.rows.languages(batch.rows.numpy())
        for (source, target), code in zip(rows, own, strict=True):
            named = [np.intersect1d(ids.numpy(), codes).tolist() for ids in (source, target)]
            wrong += named not in ([[code], [code]], [[], []])  # none: the model reads no languages
    return wrong


def _mean_span(hidden: np.ndarray, masks: int, mean: float) -> Check:
    """By the number of hidden tokens of each row (B,): a row with a few has a shorter span."""
    some = hidden[hidden > 0]
    expected = np.maximum(some / mean, 1).sum()
    width = SIGMAS * math.sqrt(len(some)) / 2 + 1  # of a row the number is rounded up or down
    detail = (
        f"{hidden.sum() / max(1, masks):.2f} tokens, expected {hidden.sum() / max(1, expected):.2f} "
        f"({masks:,} spans, expected {expected:,.0f} ± {width:.0f})"
    )
    return Check("mean length of a hidden span", abs(masks - expected) <= width, detail)


def _insertions(objective: Denoising, steps: StepBatches, texts: Sequence[Text]) -> Check:
    """Spans of length 0: of S spans with N tokens one is empty with probability (1 - 1 / S) ** N."""
    rng = np.random.default_rng(0)
    lengths = [objective.noisy(*text, steps.tokenizer, rng).lengths for text in texts]
    empty, total = sum(int((one == 0).sum()) for one in lengths), sum(map(len, lengths))
    expected = sum(len(one) * (1 - 1 / len(one)) ** one.sum() for one in lengths if len(one)) / max(1, total)
    return share("masks that stand for nothing", empty, total, expected)


def _permutations(texts: Sequence[Text]) -> Check:
    """Of k sentences one order in k! is the text's own."""
    rng, several = np.random.default_rng(0), [(tokens, inner) for tokens, inner in texts if len(inner)]
    places = [permute(np.arange(len(tokens)), inner, rng) for tokens, inner in several]
    own = sum(bool((np.diff(one) == 1).all()) for one in places)
    expected = sum(1 / math.factorial(min(20, len(inner) + 1)) for _, inner in several) / max(1, len(several))
    return share("texts of several sentences in their own order", own, len(several), expected)
