"""Texts scored by pretrained encoders, without a head and without training, as `encoder.scoring` says."""

from __future__ import annotations

import contextlib
import math
import platform
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoding import eval_mode
from pipeline.prompting.bidirectional import BidirectionalScorer
from pipeline.prompting.causal import CausalScorer
from pipeline.prompting.masked import MaskedScorer
from pipeline.prompting.requests import Progress, Request, Scored, Scorer
from pipeline.prompting.seq2seq import Seq2SeqScorer
from tasks.dataset import shortened

SCORERS: dict[str, type[Scorer]] = {
    "causal": CausalScorer,
    "masked": MaskedScorer,
    "bidirectional": BidirectionalScorer,
    "seq2seq": Seq2SeqScorer,
}
CHANGING = threading.Lock()  # of torch's precision, which is that of the process
USING: list[Encoder] = []  # those that are scored with, one for each thread
BEFORE: list[str] = []  # the precision before the first of them


def scorer_of(encoder: Encoder, *, within_word: bool = True, both_ways: bool = True) -> Scorer:
    """The scorer of an encoder; see `score`.

    Raises:
        UserError: the encoder gives no probabilities, or none that depend on a text alone.
    """
    if encoder.scoring not in SCORERS:
        raise UserError(f"Prompts need one of the scorings {', '.join(SCORERS)}; this encoder has {encoder.scoring}.")
    if encoder.carries:
        raise UserError(
            "This encoder carries its state from batch to batch, so its output for a text depends on other texts: "
            "call encoder.forget_between_batches() before."
        )
    encoder.check_lm()
    return SCORERS[encoder.scoring](encoder, within_word=within_word, both_ways=both_ways)


def log_likelihoods(encoder: Encoder, pairs: Iterable[tuple[str, str]], **options: Any) -> list[float]:
    """Nats of each continuation after its context; see `score`.

    Raises:
        UserError: as `score`; or something that is not a pair of texts.
    """
    pairs = list(pairs) if isinstance(pairs, Iterable) else [pairs]  # an iterator is read once
    if not all(isinstance(pair, (tuple, list)) and list(map(type, pair)) == [str, str] for pair in pairs):
        raise UserError('Pairs come in a list, as [("a context", " what follows")].')
    return [scored.total for scored in score(encoder, [Request(*pair) for pair in pairs], **options)]


def score(
    encoder: Encoder,
    requests: Sequence[Request],
    *,
    within_word: bool = True,
    both_ways: bool = True,
    progress: Progress = lambda n: None,
) -> list[Scored]:
    """Scores requests in batches of similar length, in their order.

    Args:
        within_word: of masked models, see MaskedScorer.
        both_ways: of bidirectional models, see BidirectionalScorer.
        progress: called with the number of further requests that are done.

    Raises:
        UserError: a text that cannot be scored, an encoder without an LM head or with weights that are no use, or one
            that carries its state from batch to batch: a score would depend on other requests.
    """
    return score_with(scorer_of(encoder, within_word=within_word, both_ways=both_ways), requests, progress)


@torch.no_grad()
def score_with(scorer: Scorer, requests: Sequence[Request], progress: Progress = lambda n: None) -> list[Scored]:
    """As `score`, with a scorer, which keeps the tokens of texts that it has scored."""
    with eval_mode(scorer.encoder), fast_products(scorer.encoder):
        results = scorer.score(requests, progress)
    for request, scored in zip(requests, results, strict=True):
        if scored.total == -math.inf and scorer.encoder.learning == "counting":
            raise UserError(
                f"'{shortened(request.target)}' has probability 0: the counted text does not have it, and this model "
                "has no smoothing. Count with another model.encoder.init_args.smoothing."
            )
        if not math.isfinite(scored.total):
            raise UserError(
                f"The encoder gives '{shortened(request.target)}' a score that is not finite: its weights are damaged."
            )
    return results


@contextlib.contextmanager
def fast_products(encoder: Encoder) -> Iterator[None]:
    """Float32 products through oneDNN, twice as fast as MKL on some processors, at a relative error below 1e-6.

    Not where the same setting means shorter numbers: on GPUs, on processors with AMX, perhaps on those of ARM.
    """
    x86 = platform.machine() in ("x86_64", "AMD64")
    if encoder.device.type != "cpu" or not x86 or torch.cpu._is_amx_tile_supported():
        yield
        return
    with CHANGING:
        if not USING:
            BEFORE[:] = [torch.get_float32_matmul_precision()]
            torch.set_float32_matmul_precision("medium")
        USING.append(encoder)
    try:
        yield
    finally:
        with CHANGING:
            USING.pop()
            if not USING:
                torch.set_float32_matmul_precision(BEFORE[0])
