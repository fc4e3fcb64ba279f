"""What `make evaluate` adds token by token: a mixture with another model, loss by context, rows that overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.errors import UserError
from pipeline.inspection import context_loss, mixture
from pipeline.inspection.context_loss import Bucket
from pipeline.inspection.mixture import Mixture
from pipeline.inspection.token_log_probs import TokenLogProbs, check, token_log_probs
from pipeline.models.base import Encoder
from pipeline.training.corpus_data import CorpusData


@dataclass(frozen=True)
class Wanted:
    """What is scored token by token beside the figures of `evaluate`.

    Args:
        by_context: the loss by tokens of context.
        stride: tokens from the beginning of a row to that of the next, which overlaps it.
        mixed: a mixture of both models.
    """

    by_context: bool
    stride: int | None
    mixed: bool

    def __bool__(self) -> bool:
        return self.by_context or self.stride is not None or self.mixed


@dataclass(frozen=True)
class TokenReport:
    """Results by the names of the models, the evaluated one first; what was not wanted is empty or None.

    Attributes:
        cut, strided: scores in rows of `length` that are cut anywhere, and in rows that overlap.
        by_context: of the rows that are cut anywhere.
        mixture: of the rows that overlap, where there are such.
    """

    cut: Mapping[str, TokenLogProbs]
    strided: Mapping[str, TokenLogProbs] = field(default_factory=dict)
    by_context: Mapping[str, list[Bucket]] = field(default_factory=dict)
    mixture: Mixture | None = None
    length: int = 0
    stride: int | None = None

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {}
        if self.strided:
            models = {name: _summary(scores) for name, scores in self.strided.items()}
            found["overlapping"] = {"length": self.length, "stride": self.stride, "models": models}
        if self.by_context:
            buckets = {name: [bucket._asdict() for bucket in curve] for name, curve in self.by_context.items()}
            found["by_context"] = buckets
        if self.mixture is not None:
            found["mixture"] = {"models": list(self.cut), **asdict(self.mixture)}
        return found

    def __str__(self) -> str:
        parts = []
        if self.strided:
            parts.append(self._overlapping())
        if self.by_context:
            parts.append(context_loss.table(self.by_context))
        if self.mixture is not None:
            parts.append(mixture.table(self.mixture, list(self.cut)))
        return "\n\n".join(parts)

    def _overlapping(self) -> str:
        """Bits per byte of each model in both kinds of rows."""
        assert self.stride is not None
        width = max(map(len, self.cut))
        lines = [
            f"Bits per byte in rows of {self.length} tokens: cut anywhere, and one every {self.stride} tokens, so that "
            f"each prediction has at least {self.length - self.stride + 1} tokens of context:",
            f"{'':<{width}}  cut anywhere  overlapping",
        ]
        for name, scores in self.strided.items():
            lines.append(f"{name:<{width}}  {self.cut[name].bits_per_byte:>12.4f}  {scores.bits_per_byte:>11.4f}")
        return "\n".join(lines)


def check_models(encoders: Mapping[str, Encoder], data: CorpusData, wanted: Wanted) -> None:
    """Raises UserError, before anything is computed, where the models cannot be scored token by token, or mixed."""
    for name, encoder in encoders.items():
        check(encoder, data.objective, length=data.length, stride=wanted.stride, name=name)
        data.objective.check_model(encoder)
    first, *others = encoders
    for other in others:
        if not encoders[first].tokenizer.reads_as(encoders[other].tokenizer):
            raise UserError(
                f"{first} and {other} have different tokenizers: a mixture needs models of one tokenizer, whose "
                "probabilities are of the same tokens."
            )


def token_report(encoders: Mapping[str, Encoder], data: CorpusData, wanted: Wanted) -> TokenReport:
    """Scores the validation part token by token, by one model or two, which `check_models` allows."""

    def scores(stride: int | None) -> dict[str, TokenLogProbs]:
        options: dict[str, Any] = {"length": data.length, "stride": stride, "batch_size": data.batch_size}
        return {
            name: token_log_probs(encoder, data.evaluation_store(encoder.tokenizer), data.objective, **options)
            for name, encoder in encoders.items()
        }

    cut = scores(None)
    strided = scores(wanted.stride) if wanted.stride is not None else {}
    return TokenReport(
        cut=cut,
        strided=strided,
        by_context={name: context_loss.loss_by_context(cut[name]) for name in cut} if wanted.by_context else {},
        mixture=mixture.mix(*(strided or cut).values()) if wanted.mixed else None,
        length=data.length,
        stride=wanted.stride,
    )


def _summary(scores: TokenLogProbs) -> dict[str, float]:
    return {"loss": scores.loss, "perplexity": scores.perplexity, "bits_per_byte": scores.bits_per_byte}
