"""How the translations of a model depend on the way it decodes: beam search, greedy, and with the right words given.

In training each word follows the right ones (teacher forcing, Williams and Zipser 1989), in use those that the model
has chosen, so that one error may lead to others (Ranzato et al. 2016). Words that are chosen one by one after the right
ones need not make phrases, though. A wider beam finds translations that are more probable, and beyond some width no
better ones (Koehn and Knowles 2017, section 3.6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch

from pipeline.finetuning.heads.translation import TranslationHead
from pipeline.finetuning.model import FineTunedModel
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.tracking.tables import markdown_table
from tasks.translation import score, word_precision

BATCH = 64  # sources


@dataclass(frozen=True)
class Way:
    """A way to decode.

    Attributes:
        beam: hypotheses that are kept; None: none, each token follows the right ones.
        length_penalty: of beam search.
    """

    beam: int | None
    length_penalty: float = 1.0

    @property
    def name(self) -> str:
        if self.beam is None:
            return "right words given"
        return "greedy" if self.beam == 1 else f"beam {self.beam}, length penalty {self.length_penalty:g}"


@dataclass(frozen=True)
class Decoded:
    """What a way gave.

    Attributes:
        bleu, chrf: of all texts, by sacrebleu.
        words: percent of its words that are in the reference.
        length: tokens of the outputs by those of the references.
        nats: log-probability of an output, on average over the texts.
        seconds: of decoding alone.
    """

    way: str
    bleu: float
    chrf: float
    words: float
    length: float
    nats: float
    seconds: float


def compare(
    model: FineTunedModel, sources: Sequence[str], references: Sequence[str], ways: Sequence[Way]
) -> Iterator[Decoded]:
    """Decodes the sources in each way."""
    tokens = sum(map(len, model.encoder.tokenize(references)))
    for way in ways:
        begun = time.perf_counter()
        outputs = with_right_words(model, sources, references) if way.beam is None else searched(model, sources, way)
        seconds = time.perf_counter() - begun
        yield Decoded(
            way=way.name,
            bleu=score("bleu", references, outputs),
            chrf=score("chrf", references, outputs),
            words=word_precision(references, outputs),
            length=sum(map(len, model.encoder.tokenize(outputs))) / tokens,
            nats=mean_log_probability(model, sources, outputs),
            seconds=seconds,
        )


def searched(model: FineTunedModel, sources: Sequence[str], way: Way) -> list[str]:
    """The translations that a search finds."""
    head = cast(TranslationHead, model.head)
    size = max(1, BATCH * 10 // max(10, way.beam or 1))  # memory grows with both
    before = head.options
    head.options = replace(before, beam=way.beam or 1, length_penalty=way.length_penalty)
    try:
        return [prediction.label for prediction in model.predictions(sources, batch_size=size)]
    finally:
        head.options = before


@torch.no_grad()
def with_right_words(model: FineTunedModel, sources: Sequence[str], references: Sequence[str]) -> list[str]:
    """The most probable token at each place of the reference, given the source and the reference before it."""
    head, encoder = cast(TranslationHead, model.head), cast(EncoderDecoder, model.encoder)
    outputs: list[str] = []
    for begin in range(0, len(sources), BATCH):
        features = model.features(sources[begin : begin + BATCH])
        labels, _ = head.collate(encoder, references[begin : begin + BATCH], features)
        batch = head.inputs(encoder, features) | {"decoder_input_ids": encoder.shifted(labels)}
        best = encoder.logits(encoder.teacher_forced(encoder.on_device(batch))).argmax(-1).cpu()
        rows = [row[there].tolist() for row, there in zip(best, labels >= 0, strict=True)]
        outputs += [encoder.tokenizer.decode(encoder.without_special(row)).strip() for row in rows]
    return outputs


@torch.no_grad()
def mean_log_probability(model: FineTunedModel, sources: Sequence[str], outputs: Sequence[str]) -> float:
    """Nats of an output with its end, on average."""
    encoder, total = cast(EncoderDecoder, model.encoder), 0.0
    for begin in range(0, len(sources), BATCH):
        batch = model.head.inputs(encoder, model.features(sources[begin : begin + BATCH]))
        targets = encoder.collate_targets(encoder.target_ids(outputs[begin : begin + BATCH]))
        total += float(encoder.log_probs(encoder.on_device(batch | targets)).sum())
    return total / len(sources)


def table(found: Sequence[Decoded]) -> str:
    """The ways as a Markdown table."""
    head = ["decoding", "BLEU", "chrF", "words right, %", "tokens by the reference's", "nats of an output", "seconds"]
    rows = [
        [
            *(decoded.way, f"{decoded.bleu:.2f}", f"{decoded.chrf:.2f}", f"{decoded.words:.1f}"),
            *(f"{decoded.length:.3f}", f"{decoded.nats:.2f}", f"{decoded.seconds:.1f}"),
        ]
        for decoded in found
    ]
    return markdown_table(head, rows)


def figures(found: Sequence[Decoded]) -> dict[str, dict[str, float | str]]:
    """The ways as JSON, by their names."""
    return {decoded.way: asdict(decoded) for decoded in found}
