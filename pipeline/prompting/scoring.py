"""Texts scored by pretrained encoders: no head, no training.

GPT: log p of a continuation after its context. BERT: pseudo-log-likelihood, each token masked in turn (Salazar et
al. 2020). ELMo: forward log-likelihood of a continuation, forward and backward of a whole text.

The boundary follows lm-evaluation-harness: a context's last spaces belong to the continuation, both are tokenised as
one text and cut where the context's tokens end, an empty context is one token of begin, and what is too long loses
its left end.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.errors import UserError
from pipeline.models.base import Batch, Encoder
from pipeline.models.bert import Bert
from pipeline.models.elmo import BEGIN, END, Elmo, collate_words
from pipeline.models.gpt import Gpt
from pipeline.models.layers.spelled_words import UNKNOWN
from pipeline.models.layers.transformer import KeyValues

BUDGET = {"cpu": 2_048}  # positions of a batch: what stays in the cache
LARGE_BUDGET = 65_536  # elsewhere
CHUNK = 512  # rows whose logits exist at once
SHARED = 8  # tokens of a context from which on its candidates share one row


@dataclass
class Request:
    """`target` is scored between `left` and `right`: GPT and ELMo score both it and what is right of it."""

    left: str
    target: str
    right: str = ""


@dataclass
class Scored:
    """What a request got.

    Attributes:
        total: nats of log-likelihood.
        tokens: how many were scored.
        cut: how many tokens did not fit into the encoder's positions, from the left.
        greedy: whether each token was the likeliest one.
        unknown: scored words that an ELMo does not know by name.
    """

    total: float
    tokens: int
    cut: int = 0
    greedy: bool = False
    unknown: tuple[str, ...] = ()


Progress = Callable[[int], Any]  # is told how many more requests are done


def log_likelihoods(encoder: Encoder, pairs: Sequence[tuple[str, str]], **options: Any) -> list[float]:
    """Nats of each continuation after its context; see `score`."""
    return [found.total for found in score(encoder, [Request(*pair) for pair in pairs], **options)]


@torch.no_grad()
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
        within_word: BERT: hide also the pieces of the same word that come later (Kauf and Ivanova 2023), since what
            is left of a word gives it away; False: one token at a time, as the original.
        both_ways: ELMo: score whole texts in both directions; False: forward only, as any continuation.
        progress: called as requests get done.

    Raises:
        UserError: a text that cannot be scored, an encoder without an LM head or with weights that are no use, or one
            that carries its state from batch to batch: a request would depend on the others.
    """
    if encoder.carries:
        raise UserError(
            "This encoder carries its state from batch to batch, so that what it says of a text depends on others: "
            "call encoder.forget_between_batches() before."
        )
    encoder.check_lm()
    encoder.eval()
    with fast_products(encoder):
        if isinstance(encoder, Gpt):
            found = _score_gpt(encoder, requests, progress)
        elif isinstance(encoder, Bert):
            found = _score_bert(encoder, requests, within_word, progress)
        else:
            assert isinstance(encoder, Elmo)
            found = _score_elmo(encoder, requests, both_ways, progress)
    for request, one in zip(requests, found, strict=True):
        if not math.isfinite(one.total):
            raise UserError(f"The encoder gives '{request.target[:60]}' no finite score: its weights are damaged.")
    return found


def distinct(asked: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where each distinct one comes first, and for each its place among these.

    What is asked twice is computed once: in another batch its score would be rounded otherwise, and a tie be none.
    """
    places: dict[Hashable, int] = {}
    which = [places.setdefault(one, len(places)) for one in asked]
    firsts: dict[int, int] = {}
    for number, place in enumerate(which):
        firsts.setdefault(place, number)
    return list(firsts.values()), which


@contextlib.contextmanager
def fast_products(encoder: Encoder) -> Iterator[None]:
    """Float32 products through oneDNN, twice as fast as MKL on some processors, at a relative error below 1e-6.

    Not where the same setting means shorter numbers: on GPUs, and on processors with AMX.
    """
    before = torch.get_float32_matmul_precision()
    exact = encoder.device.type == "cpu" and not torch.cpu._is_amx_tile_supported()
    torch.set_float32_matmul_precision("medium" if exact else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def split(encoder: Encoder, parts: Sequence[tuple[str, str]]) -> list[tuple[list[Any], list[Any]]]:
    """Tokens of contexts and of what goes on with them.

    Raises:
        UserError: a text has no tokens, or is the end of the context's last word to an encoder of words: it would get
            a likelihood of 1, and any comparison be won by it.
    """
    texts = []
    for left, target in parts:
        spaces = len(left) - len(left.rstrip())
        if spaces:
            left, target = left[:-spaces], left[-spaces:] + target
        texts += [left + target, left]
    ids = encoder.tokenize(texts)
    pairs = [(list(before), list(whole[len(before) :])) for whole, before in zip(ids[::2], ids[1::2], strict=True)]
    for number, ((left, target), whole, (before, rest)) in enumerate(zip(parts, ids[::2], pairs, strict=True)):
        if isinstance(encoder, Gpt) and whole and not rest:  # both are in one token: that one is scored
            shared = min(_common([list(whole), before]), len(whole) - 1)
            pairs[number] = (list(whole[:shared]), list(whole[shared:]))
        elif not rest or (not isinstance(encoder, Gpt) and list(whole[: len(before)]) != before):
            bare = not left or not target.strip()
            why = ": it has no tokens" if bare else f" after '{left[-30:]}': it needs a space in front"
            raise UserError(f"'{target[:60]}' cannot be scored{why}.")
    return pairs


def beginning(encoder: Encoder, text: str, room: int) -> str:
    """The longest beginning of a text in whole words that has at most `room` tokens, but for one word at least."""
    words = [match.group() for match in itertools.islice(re.finditer(r"\s*\S+", text), max(1, room))]
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(encoder.tokenize(["".join(words[:middle])])[0]) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return "".join(words[:low])


def log_probs_of(encoder: Gpt | Bert, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, D) and tokens (N,) -> their log-probabilities, and whether they are the likeliest; logits in chunks."""
    nats, greedy = [], []
    for rows, asked in zip(hidden.split(CHUNK), labels.split(CHUNK), strict=True):
        logits = encoder.logits(rows).float()
        chosen, top = logits.gather(-1, asked[:, None]), logits.amax(-1, keepdim=True)
        greedy.append((chosen >= top)[:, 0])
        nats.append((chosen - top - logits.sub_(top).exp_().sum(-1, keepdim=True).log())[:, 0])
    return torch.cat(nats), torch.cat(greedy)


def batches(encoder: Encoder, lengths: Sequence[int]) -> list[list[int]]:
    """Indices of similar length together, longest first."""
    budget = BUDGET.get(encoder.device.type, LARGE_BUDGET)
    result: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not result or len(result[-1]) * lengths[result[-1][0]] >= budget:
            result.append([])
        result[-1].append(index)
    return result


# ---------------------------------------------------------------------- GPT


def _parts(requests: Sequence[Request]) -> list[tuple[str, str]]:
    return [(request.left, request.target + request.right) for request in requests]


@dataclass
class _Row:
    """A context and the continuations that are scored after it, side by side."""

    context: list[int]
    targets: list[list[int]]
    requests: list[int]

    def __len__(self) -> int:
        return len(self.context) + sum(len(target) - 1 for target in self.targets)


def _score_gpt(gpt: Gpt, requests: Sequence[Request], progress: Progress) -> list[Scored]:
    return score_tokens(gpt, split(gpt, _parts(requests)), progress)


def score_tokens(gpt: Gpt, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
    """As `score`, of pairs of contexts and continuations in tokens."""
    firsts, which = distinct([(tuple(context), tuple(target)) for context, target in pairs])
    progress(len(pairs) - len(firsts))
    found = _score_rows(gpt, [pairs[first] for first in firsts], progress)
    return [found[place] for place in which]


def _score_rows(gpt: Gpt, pairs: Sequence[tuple[list[int], list[int]]], progress: Progress) -> list[Scored]:
    rows: list[_Row] = []
    cuts = []
    for number, (context, target) in enumerate(pairs):
        context = context or [gpt.tokenizer.id("bos")]
        lost = max(0, len(target) - gpt.max_length)
        target = target[lost:]
        kept = context[max(0, len(context) + len(target) - gpt.max_length - 1) :]
        cuts.append(len(context) - len(kept) + lost)
        if rows and rows[-1].context == kept and len(kept) >= SHARED and len(rows[-1]) + len(target) <= gpt.max_length:
            rows[-1].targets.append(target)
            rows[-1].requests.append(number)
        else:
            rows.append(_Row(kept, [target], [number]))
    shared = _common([row.context[:-1] for row in rows]) if len(rows) > 1 else 0
    past = _read(gpt, rows[0].context[:shared]) if shared >= SHARED else None
    seen = shared if past else 0
    found: list[Scored | None] = [None] * len(pairs)
    for batch in batches(gpt, [len(row) - seen for row in rows]):
        chosen = [rows[i] for i in batch]
        for row, scores in zip(chosen, _continuations(gpt, chosen, past, seen), strict=True):
            for number, target, (total, greedy) in zip(row.requests, row.targets, scores, strict=True):
                found[number] = Scored(total, len(target), cuts[number], greedy)
            progress(len(row.requests))
    return [scored for scored in found if scored is not None]


def _common(rows: Sequence[list[int]]) -> int:
    """How many tokens all rows begin with."""
    low, high = min(rows), max(rows)
    return next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


def _read(gpt: Gpt, ids: Sequence[int]) -> list[KeyValues]:
    past = [KeyValues() for _ in gpt.blocks]
    tokens = torch.tensor([list(ids)], device=gpt.device)
    gpt({"input_ids": tokens, "mask": torch.ones_like(tokens, dtype=torch.bool)}, past)
    return past


def _continuations(
    gpt: Gpt, rows: Sequence[_Row], past: list[KeyValues] | None, seen: int
) -> list[list[tuple[float, bool]]]:
    """Nats of each continuation of each row, and whether it is the greedy one."""
    length = max(map(len, rows)) - seen
    ids, part = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -1)
    positions = torch.zeros(len(rows), length, dtype=torch.long)
    places: list[tuple[int, list[int]]] = []  # of each continuation: its row, and where its tokens are predicted
    for number, row in enumerate(rows):
        context = row.context[seen:]
        at = len(context)
        ids[number, :at], part[number, :at] = torch.tensor(context), 0
        positions[number, :at] = torch.arange(seen, seen + at)
        for index, target in enumerate(row.targets, start=1):
            size = len(target) - 1
            ids[number, at : at + size], part[number, at : at + size] = torch.tensor(target[:-1]), index
            positions[number, at : at + size] = len(row.context) + torch.arange(size)
            places.append((number, [len(context) - 1, *range(at, at + size)]))
            at += size
    batch: Batch = {"input_ids": ids, "mask": part >= 0, "positions": positions}
    if any(len(row.targets) > 1 for row in rows):  # a continuation sees the context and itself
        batch["attend"] = (part[:, None, :] == 0) | (part[:, :, None] == part[:, None, :])
    batch = {name: value.to(gpt.device) for name, value in batch.items()}
    caches = None if past is None else [_copies(cache, len(rows)) for cache in past]
    hidden = gpt(batch, caches).layers[-1]
    asked = torch.tensor([(row, place) for row, all_places in places for place in all_places], device=gpt.device)
    labels = torch.tensor([token for row in rows for target in row.targets for token in target], device=gpt.device)
    chosen, greedy = log_probs_of(gpt, hidden[asked[:, 0], asked[:, 1]], labels)
    sizes = [len(all_places) for _, all_places in places]
    results = iter(
        (float(nats.double().sum()), bool(best.all()))
        for nats, best in zip(chosen.split(sizes), greedy.split(sizes), strict=True)
    )
    return [[next(results) for _ in row.targets] for row in rows]


def _copies(cache: KeyValues, count: int) -> KeyValues:
    copy = KeyValues()
    assert cache.keys is not None
    assert cache.values is not None
    copy.keys, copy.values = cache.keys.expand(count, -1, -1, -1), cache.values.expand(count, -1, -1, -1)
    return copy


# ---------------------------------------------------------------------- BERT


def _score_bert(bert: Bert, requests: Sequence[Request], within_word: bool, progress: Progress) -> list[Scored]:
    tokenizer, room = bert.tokenizer, bert.max_length - 2
    mask, continues = tokenizer.id("mask"), tokenizer.continues_word
    copies: list[list[int]] = []  # a copy of the text for each token that is asked for
    asked: list[tuple[int, int, int]] = []  # of each copy: its request, the place, the token
    results = []
    pairs = split(bert, _parts(requests))
    behind = bert.tokenize([request.right for request in requests])
    for number, (request, (left, rest), right) in enumerate(zip(requests, pairs, behind, strict=True)):
        size = len(rest) - len(right)
        if size < 1 or rest[size:] != list(right):  # would be scored in part, or not at all and so win
            raise UserError(
                f"'{request.target[:60]}' cannot be scored before '{request.right[:30]}': it needs a space behind it."
            )
        cut = max(0, len(left) + len(rest) - room)
        text = [*left, *rest][cut:][:room]
        first = max(0, len(left) - cut)
        last = min(len(text), first + size)
        results.append(Scored(0.0, last - first, cut, greedy=True))
        for place in range(first, last):
            copy = list(text)
            copy[place] = mask
            later = place + 1
            while within_word and later < last and continues[text[later]]:
                copy[later] = mask
                later += 1
            copies.append(copy)
            asked.append((number, place + 1, text[place]))
    left_over = [found.tokens for found in results]
    progress(sum(not count for count in left_over))
    firsts, which = distinct([(tuple(copy), *of[1:]) for copy, of in zip(copies, asked, strict=True)])
    owners: list[list[int]] = [[] for _ in firsts]
    for (number, _, _), place in zip(asked, which, strict=True):
        owners[place].append(number)
    for i, value, best in at_masks(bert, [copies[first] for first in firsts], [asked[first][1:] for first in firsts]):
        for number in owners[i]:
            results[number].total += value
            results[number].greedy &= best
            left_over[number] -= 1
            progress(left_over[number] == 0)
    return results


def at_masks(
    bert: Bert, copies: Sequence[list[int]], asked: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, float, bool]]:
    """Of each text with masks, by its number and as batches get done: nats of a token, and whether it is the likeliest.

    Args:
        copies: texts in tokens, without the special ones.
        asked: of each its place, [CLS] counted, and the token.
    """
    for chosen in batches(bert, [len(copy) + 2 for copy in copies]):
        batch = {name: value.to(bert.device) for name, value in bert.collate([copies[i] for i in chosen]).items()}
        places, labels = (torch.tensor([asked[i][k] for i in chosen], device=bert.device) for k in (0, 1))
        hidden = bert(batch).layers[-1][torch.arange(len(chosen), device=bert.device), places]
        yield from zip(chosen, *(found.tolist() for found in log_probs_of(bert, hidden, labels)), strict=True)


# ---------------------------------------------------------------------- ELMo


def _score_elmo(elmo: Elmo, requests: Sequence[Request], both_ways: bool, progress: Progress) -> list[Scored]:
    outputs, room = elmo.tokenizer.outputs, elmo.max_length - 2
    rows, bounds, results = [], [], []
    for left, rest in split(elmo, _parts(requests)):
        cut = max(0, len(left) + len(rest) - room)
        rows.append([BEGIN, *[*left, *rest][cut:], END])
        bounds.append((1 + max(0, len(left) - cut), len(rows[-1]) - 1, both_ways and not left))
        unknown = tuple(word.decode(errors="replace") for word in rest if word not in outputs)
        results.append(Scored(0.0, min(len(rest), room), cut, unknown=unknown))
    firsts, which = distinct([(tuple(row), bound) for row, bound in zip(rows, bounds, strict=True)])
    progress(len(rows) - len(firsts))
    for chosen in ([firsts[i] for i in part] for part in batches(elmo, [len(rows[first]) for first in firsts])):
        batch = collate_words([rows[i] for i in chosen], outputs, max_characters=elmo.max_characters)
        batch = {name: value.to(elmo.device) for name, value in batch.items()}
        encoded = elmo(batch)
        scores = elmo.log_probs(batch, encoded=encoded).cpu().double()
        for number, (i, row) in enumerate(zip(chosen, scores, strict=True)):
            first, last, whole = bounds[i]
            # A whole text is a sentence: the marks of its end and its begin belong to it.
            results[i].total = (
                float(row[1 : last + 1, 0].sum() + row[:last, 1].sum()) if whole else float(row[first:last, 0].sum())
            )
            said = elmo.guesses(encoded.layers[-1][number, first - 1 : last - 1])
            results[i].greedy = not results[i].unknown and said.equal(batch["input_ids"][number, first:last])
        progress(len(chosen))
    for result, place in zip(results, which, strict=True):
        result.total, result.greedy = results[firsts[place]].total, results[firsts[place]].greedy
    return results


def is_unknown(elmo: Elmo, text: str) -> list[str]:
    """Words of a text that are all the same to an ELMo's softmax."""
    [words] = elmo.tokenize([text])
    return [word.decode(errors="replace") for word in words if elmo.tokenizer.outputs.get(word, UNKNOWN) == UNKNOWN]


def softmax_over(scores: Sequence[float]) -> Tensor:
    return F.softmax(torch.tensor(scores, dtype=torch.float64), -1)
