"""Span corruption (T5, Raffel et al. 2020, 3.1.4, https://arxiv.org/abs/1910.10683): the hidden spans of a text alone.

A sentinel stands for each span in the source, and before it in the target:
`Thank you <X> me to your party <Y> week.` and `<X> for inviting <Y> last`. The paper ends a target with one more.

Shapes: N tokens of a text, S spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.objectives.batch import Batch
from pipeline.objectives.checks import Check, none
from pipeline.objectives.denoising import Denoising, TextRows
from pipeline.objectives.denoising_checks import passes_differ
from pipeline.objectives.infilling import Infilled
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer

PORTION = 1 << 20  # windows at a time


class SpanCorruption(Denoising):
    """The hidden spans of a text.

    Args:
        mask_rate: share of the tokens that are hidden.
        mean_span: tokens of a hidden span, on average.
    """

    main = "spans"
    shown = ("spans_loss", "spans_accuracy", "perplexity")

    def __init__(self, mask_rate: float = 0.15, mean_span: float = 3.0) -> None:
        super().__init__(mask_rate=mask_rate, mean_span=mean_span, permute_sentences=False)

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> TextRows:
        """Raises: UserError, the tokenizer has fewer sentinels than a row may have spans."""
        rows = super().rows(store, tokenizer, length=length, phase=phase, seed=seed)
        _, spans = self.numbers(rows.windows.length)
        if len(tokenizer.sentinels) < spans:
            raise UserError(
                f"A row of {length} tokens has {spans} hidden spans, and the tokenizer {len(tokenizer.sentinels)} "
                f"sentinels for them: set data.tokenizer.sentinels to {spans} at least."
            )
        return rows

    def numbers(self, count: int) -> tuple[int, int]:
        """Of a text of N tokens: how many are hidden, in how many spans."""
        hidden = max(0, min(max(1, round(count * self.mask_rate)), count - 1))
        return hidden, min(max(1, round(hidden / self.mean_span)), hidden, count - hidden)

    def noisy(self, tokens: np.ndarray, inner: np.ndarray, tokenizer: Tokenizer, rng: np.random.Generator) -> Infilled:
        """A text (N,) with sentinels in place of spans, which lie anywhere, with a token between any two."""
        hidden, spans = self.numbers(len(tokens))
        spans = min(spans, len(tokenizer.sentinels))  # of texts to look at, which may be longer than rows
        lengths = composition(hidden, spans, rng)
        kept = composition(len(tokens) - lengths.sum() + 2, spans + 1, rng)
        kept[0] -= 1  # nothing need stand before the first span,
        kept[-1] -= 1  # and behind the last one
        begins = np.cumsum(kept[:-1] + lengths) - lengths
        stays = np.ones(len(tokens), dtype=bool)
        for begin, length in zip(begins, lengths, strict=True):
            stays[begin : begin + length] = False
        return Infilled(np.insert(tokens[stays], np.cumsum(kept[:-1]), tokenizer.sentinels[:spans]), begins, lengths)

    def words_per_token(self, rows: TextRows, store: TokenStore) -> float:
        """A target has its prefix, the hidden tokens, a sentinel for each span, and an end. Windows are cut."""
        [model] = self._model
        counts = np.zeros(rows.windows.length + 1, dtype=np.int64)
        for begin in range(0, len(rows), PORTION):  # an index of all windows could take gigabytes
            _, begins, ends = rows.windows.bounds(np.arange(begin, min(begin + PORTION, len(rows))))
            counts += np.bincount(np.minimum(ends - begins, rows.windows.length), minlength=len(counts))
        sizes, own = np.flatnonzero(counts), len(model.target_prefix) + 1
        tokens = sum(int(counts[size]) * (own + sum(self.numbers(int(size)))) for size in sizes)
        shown = float((sizes * counts[sizes]).sum()) / store.meta["tokens"]
        return shown * store.meta["words"] / tokens

    def marks(self, tokenizer: Tokenizer) -> list[int]:
        return []  # an end is rare beside the sentinels, of which `baselines` knows

    def target(self, tokens: np.ndarray, noisy: Infilled, tokenizer: Tokenizer) -> list[int]:
        spans = zip(tokenizer.sentinels, noisy.begins, noisy.lengths, strict=False)
        return [token for mark, begin, n in spans for token in (mark, *tokens[begin : begin + n].tolist())]

    def baselines(self, store: TokenStore, tokenizer: Tokenizer) -> tuple[float, float]:
        """As the base's; by frequency a sentinel is told from the tokens of the text, and then is sure."""
        uniform, unigram = super().baselines(store, tokenizer)
        marks = 1 / (1 + self.mean_span)
        return uniform, (1 - marks) * (unigram - math.log(1 - marks)) - marks * math.log(marks)

    def checks(self, model: Encoder, steps: StepBatches, batches: Sequence[Batch]) -> Iterator[Check]:
        wrong = other = 0
        special, marks = steps.tokenizer.special_ids, steps.tokenizer.sentinels
        for batch in batches:
            texts, labels = steps.rows(batch.rows.numpy()), batch.targets[self.main].labels
            for (tokens, _), source, target in zip(texts, batch.inputs["input_ids"].tolist(), labels, strict=True):
                spans = spans_of(target[target >= 0].tolist(), marks, special)
                parts = (
                    spans.get(token, []) if token in marks else [token] for token in source if token not in special
                )
                wrong += [token for part in parts for token in part] != tokens.tolist()
                other += (sum(map(len, spans.values())), len(spans)) != self.numbers(len(tokens))
        yield none("source and target together are the text", wrong, "are not")
        yield none("texts have the asked hidden tokens and spans", other, "have others")
        if any(self.numbers(len(tokens))[0] for tokens, _ in steps.rows(batches[0].rows.numpy())):
            yield passes_differ(self, steps, batches[0])


def composition(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """A number as a sum of so many numbers of at least 1 (S,), each such sum as likely as another."""
    ends = np.sort(rng.permutation(total - 1)[: parts - 1]) + 1 if parts else np.zeros(0, dtype=np.int64)
    return np.diff(ends, prepend=0, append=total)[:parts]


def spans_of(target: Sequence[int], marks: Sequence[int], special: Sequence[int]) -> dict[int, list[int]]:
    """The spans of a target, by their sentinels."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token in marks:
            spans[token] = []
        elif token not in special:
            spans[next(reversed(spans))].append(token)
    return spans
