"""Text from causal models and from decoders: greedy, sampling, beam search.

Shapes: R rows that are written, S sources, k hypotheses of each, P tokens of a prompt, U tokens so far, V vocabulary,
H heads, d size of a head.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeline.errors import UserError
from tasks.translation import MOST_PENALTY, WIDEST_BEAM

if TYPE_CHECKING:
    from pipeline.models.base import Encoder

COLDEST = 1e-6  # a temperature below would divide logits beyond what float32 holds

# All tokens of rows (R, U), how many of them are new, and the state before these -> logits of the next token (R, V),
# and the state behind.
Reader = Callable[[Tensor, int, Any], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Search:
    """How tokens are chosen.

    Attributes:
        tokens: most new tokens of a text, its end included.
        beam: k, hypotheses that beam search keeps; it draws nothing. 1: greedy, or sampling.
        length_penalty: of beam search, which compares sums of log-probabilities divided by length ** length_penalty.
        temperature: divides the logits; 0, or almost 0, takes the likeliest token each time.
        top_k: draw from the k likeliest only; 0: all.
        top_p: and only from the fewest tokens that hold this share of probability (Holtzman et al. 2019).
        seed: of the first row; each further one has the next.

    Raises:
        UserError: a number out of its range.
    """

    tokens: int = 60
    beam: int = 1
    length_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("tokens", 1), ("beam", 1), ("temperature", 0), ("top_k", 0), ("length_penalty", -math.inf)):
            if not low <= (value := getattr(self, name)) < math.inf:  # nan is neither
                bound = "that is finite" if low == -math.inf else f"of at least {low}"
                raise UserError(f"{name.replace('_', '-')} must be a number {bound}, not {value}.")
        if self.beam > WIDEST_BEAM:
            raise UserError(f"beam is {self.beam:,}; it must be at most {WIDEST_BEAM:,}.")
        if abs(self.length_penalty) > MOST_PENALTY:
            most = MOST_PENALTY
            raise UserError(f"length-penalty is {self.length_penalty}; it must be from -{most} to {most}.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p}; it is a share, above 0 and at most 1.")


def checked_ids(model: Encoder, prompt: Sequence[int]) -> list[int]:
    """The ids of a prompt.

    Raises:
        UserError: there are none, or others than the model's.
    """
    try:
        ids = [operator.index(token) for token in prompt]
    except TypeError:  # others than whole numbers
        ids = []
    if not ids or not all(0 <= token < len(model.tokenizer) for token in ids):
        raise UserError(f"A prompt is a list of token ids, at least one, below {len(model.tokenizer):,}.")
    return ids


def select(state: Any, rows: Tensor) -> Any:
    """The state of some rows, each as often as it is named: `rows` (R',) are numbers of those that it has.

    A state is tensors (R, ...), what has such a method `select`, None, or lists, tuples and dicts of these.
    """
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, (list, tuple)):
        return type(state)(select(part, rows) for part in state)
    if isinstance(state, dict):
        return {name: select(part, rows) for name, part in state.items()}
    return None if state is None else state.select(rows)


def check_rows(state: Any, rows: int) -> None:
    """Raises: TypeError, a tensor of a state does not begin with the rows; those of torch's recurrent layers do not."""
    if isinstance(state, Tensor) and (not state.dim() or len(state) != rows):
        raise TypeError(
            f"The state of a decoder has a tensor {tuple(state.shape)}; its first dimension must be {rows}."
        )
    for part in state.values() if isinstance(state, dict) else state if isinstance(state, (list, tuple)) else ():
        check_rows(part, rows)


def copies(state: Any, count: int, device: torch.device) -> Any:
    """The state of one row, for `count` rows."""
    return select(state, torch.zeros(count, dtype=torch.long, device=device))


@torch.no_grad()
def generate(model: Encoder, prompt: Sequence[int], how: Search) -> list[int]:
    """Continues `prompt` (ids) by a causal model until the end of text, `how.tokens`, or its last position.

    Returns:
        The new ids, without the end of text.
    """

    def read(ids: Tensor, new: int, state: Any) -> tuple[Tensor, Any]:
        step = ids if state is None else ids[:, -new:]
        encoded = model({"input_ids": step, "mask": torch.ones_like(step, dtype=torch.bool)}, state)
        return model.logits(encoded.layers[-1][:, -1]), encoded.state

    ids = torch.tensor([list(prompt)], device=model.device)
    most = min(how.tokens, model.max_length - len(prompt))
    if most < 1:
        return []
    return search(read, model.new_state(), ids, how, end=model.tokenizer.id("eos"), most=[most])[0]


def search(read: Reader, state: Any, prompts: Tensor, how: Search, *, end: int, most: Sequence[int]) -> list[list[int]]:
    """Continues prompts (R, P) until `end`, or for as many tokens as `most` has for each, at least one; returns what is
    new, without the end.
    """
    most = [max(1, one) for one in most]
    return (_draw if how.beam == 1 else _beam)(read, state, prompts, how, end, most)


def _draw(read: Reader, state: Any, ids: Tensor, how: Search, end: int, most: Sequence[int]) -> list[list[int]]:
    """The likeliest token each time, or one that is drawn; rows that have ended are dropped."""
    results: list[list[int]] = [[] for _ in ids]
    generators = [torch.Generator().manual_seed(how.seed + row) for row in range(len(ids))]
    running, new = list(range(len(ids))), ids.shape[1]
    for _ in range(max(most)):
        logits, state = read(ids, new, state)
        tokens = choose(logits, how, [generators[number] for number in running])
        for number, token in zip(running, tokens, strict=True):
            if token != end:
                results[number].append(token)
        lengths = [len(results[number]) for number in running]
        going = [i for i, token in enumerate(tokens) if token != end and lengths[i] < most[running[i]]]
        if not going:
            break
        ids, new = torch.cat([ids, ids.new_tensor(tokens)[:, None]], 1), 1
        if len(going) < len(running):
            running, rows = [running[place] for place in going], ids.new_tensor(going)
            ids, state = select((ids, state), rows)
    return results


def choose(logits: Tensor, how: Search, generators: Sequence[torch.Generator]) -> list[int]:
    """A token for each row, from logits (R, V): the likeliest, or one that is drawn by the row's own generator."""
    if how.temperature < COLDEST:
        return logits.argmax(-1).tolist()
    tokens = []
    for row, generator in zip(logits.float().cpu(), generators, strict=True):
        scores, order = (row / how.temperature).sort(descending=True)
        if how.top_k:
            scores, order = scores[: how.top_k], order[: how.top_k]
        p = scores.softmax(-1)
        if how.top_p < 1:
            p[p.double().cumsum(-1) - p >= how.top_p] = 0  # the token that crosses the share stays
        tokens.append(int(order[torch.multinomial(p, 1, generator=generator)]))
    return tokens


@dataclass
class _Finished:
    """The best hypotheses of a source that have ended: [(score, tokens)], the best first."""

    best: list[tuple[float, list[int]]] = field(default_factory=list)

    def add(self, score: float, tokens: list[int], most: int) -> None:
        self.best = sorted([*self.best, (score, tokens)], key=lambda one: -one[0])[:most]

    def beyond(self, score: float, most: int) -> bool:
        """Whether there are `most`, and none is worse than a score."""
        return len(self.best) == most and score <= self.best[-1][0]


def _beam(read: Reader, state: Any, ids: Tensor, how: Search, end: int, most: Sequence[int]) -> list[list[int]]:
    """Beam search, as `generate(num_beams=k, early_stopping=False)` of transformers has it.

    Of the 2 k best continuations of a source the k best unfinished ones are continued, and what has ended among the
    first k is kept. A source is done when k have ended, and no unfinished one has a better score at its present length,
    or at its most tokens.
    """
    k, prompt, new = how.beam, ids.shape[1], ids.shape[1]
    finished = [_Finished() for _ in ids]
    sources = list(range(len(ids)))  # those that are not done; each has as many rows, side by side
    scores = torch.zeros(len(ids), device=ids.device)  # of rows: sums of log-probabilities
    for length in range(1, max(most) + 1):
        logits, state = read(ids, new, state)
        values, tokens, rows = _continuations(logits.float(), scores, len(sources), 2 * k)
        last = [length == most[source] for source in sources]
        ends = (tokens == end) | torch.tensor(last, device=ids.device)[:, None]
        final = by_length(values, length, how)
        for source, place in ends[:, :k].nonzero().tolist():
            text = [*ids[rows[source, place], prompt:].tolist(), int(tokens[source, place])]
            finished[sources[source]].add(float(final[source, place]), text[:-1] if text[-1] == end else text, most=k)
        values, chosen = values.masked_fill(ends, -torch.inf).topk(min(k, values.shape[1]))
        best = by_length(values[:, 0], length, how).tolist()
        going = [i for i, source in enumerate(sources) if not last[i] and not finished[source].beyond(best[i], k)]
        if not going:
            break
        kept = ids.new_tensor(going)
        sources, scores = [sources[i] for i in going], values[kept].flatten()
        rows, tokens = (part.gather(1, chosen)[kept].flatten() for part in (rows, tokens))
        ids, state, new = torch.cat([ids[rows], tokens[:, None]], 1), select(state, rows), 1
    return [hypotheses.best[0][1] for hypotheses in finished]


def by_length(scores: Tensor, length: int, how: Search) -> Tensor:
    """Log-probabilities (...) of hypotheses of one length -> (...) float64, comparable between lengths, on the CPU.

    In float32 large penalties would make all alike.
    """
    return scores.cpu().double() / length**how.length_penalty  # Apple's GPUs have no float64


def _continuations(logits: Tensor, scores: Tensor, sources: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each source: logits of its rows (R, V) and their scores (R,) -> (S, count) each.

    Returns:
        Scores, the best first; tokens; rows that they continue.
    """
    width = len(logits) // sources
    best, tokens = logits.topk(min(count, logits.shape[1]))
    best = best - logits.logsumexp(-1, keepdim=True) + scores[:, None]
    per_row = best.shape[1]
    values, place = best.view(sources, -1).topk(min(count, width * per_row))
    rows = place // per_row + width * torch.arange(sources, device=place.device)[:, None]
    return values, tokens.view(sources, -1).gather(1, place), rows
