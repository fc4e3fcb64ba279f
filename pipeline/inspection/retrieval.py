"""Which text of another language is the translation: the one whose vector is nearest (Artetxe and Schwenk 2019).

A model that was trained on both languages has learned what they share as far as the right one is found. Nothing is
trained here. The vector of a text is the mean over its tokens; layers differ much, and the middle ones are best (Pires
et al. 2019), so the layer is chosen on the validation part.

Shapes: N texts of either language, T positions, D model size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from pipeline.console.progress import progress
from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.objectives import ppmi_init
from pipeline.tracking import plots
from pipeline.tracking.tables import markdown_table

BATCH = 128  # texts
Sides = tuple[Sequence[str], Sequence[str]]  # sources and their targets
NEIGHBORS = 4  # of the margin, as in the paper


@dataclass(frozen=True)
class Found:
    """How often the nearest text is the translation, of N.

    Attributes:
        there: from the first language to the second.
        back: from the second to the first.
    """

    there: float
    back: float

    @property
    def mean(self) -> float:
        return (self.there + self.back) / 2


@dataclass(frozen=True)
class Retrieval:
    """What an encoder found.

    Attributes:
        texts: N.
        languages: of sources and targets.
        layers: from the embeddings to the top.
        chosen: the layer that was best on the validation part.
        tokens: by the tokens that both have, rare ones more.
        counted: by counts in the training part, see `counted_vectors`; None: tokens of the encoder are bytes.
        truncated: texts that are longer than the encoder reads.
    """

    texts: int
    languages: tuple[str, str]
    layers: tuple[Found, ...]
    chosen: int
    tokens: Found
    counted: Found | None
    truncated: int

    @property
    def best(self) -> Found:
        return self.layers[self.chosen]


def retrieve(
    encoder: Encoder,
    training: Sides,
    validation: Sides,
    test: Sides,
    *,
    languages: tuple[str, str],
) -> Retrieval:
    """Finds the translations of sources among the targets of the same part, and the other way round.

    Args:
        training, validation, test: sources and their targets, one for one; of the first ones baselines learn.

    Raises:
        UserError: the model has no vectors, since it counts.
    """
    if encoder.learning == "counting":
        raise UserError(f"Retrieval needs vectors of texts, and a {encoder.model_type} has none.")
    by_part = []
    for name, sides in (("validation", validation), ("test", test)):
        sources, targets = (
            text_vectors(encoder, texts, language=language, name=name)
            for texts, language in zip(sides, languages, strict=True)
        )
        by_part.append([nearest(a, b, sides) for a, b in zip(sources, targets, strict=True)])
    tuned, tested = by_part
    tokens = [encoder.tokenize(side) for side in test]
    room = encoder.max_length - encoder.special.count()
    counted = None if encoder.tokenizer.spells else nearest(*counted_vectors(encoder, training, test), test)
    return Retrieval(
        texts=len(test[0]),
        languages=languages,
        layers=tuple(tested),
        chosen=int(np.argmax([found.mean for found in tuned])),
        tokens=nearest(*token_vectors(*tokens), test),
        counted=counted,
        truncated=sum(len(text) > room for side in tokens for text in side),
    )


def text_vectors(encoder: Encoder, texts: Sequence[str], *, language: str, name: str) -> list[Tensor]:
    """(N, D) of each layer: the mean over the tokens of a text, without special ones."""
    parts: list[list[Tensor]] = []
    begins = range(0, len(texts), BATCH)
    for begin in progress(begins, desc=name, unit="batch", leave=False, delay=1):
        with _in_language(encoder, language):
            out = encoder.encode(list(texts[begin : begin + BATCH]), batch_size=BATCH)
        place, length = torch.arange(out.mask.shape[1], device=out.mask.device), out.mask.sum(1, keepdim=True)
        inside = (place >= encoder.special.prefix) & (place < length - encoder.special.suffix)
        weights = (inside / inside.sum(1, keepdim=True).clamp(min=1))[:, None]
        parts.append([(weights.to(layer) @ layer)[:, 0].float() for layer in out.layers])
    return [torch.cat(layers) for layers in zip(*parts, strict=True)]


def _in_language(encoder: Encoder, language: str) -> AbstractContextManager[None]:
    """Inside, texts are in this language: encoder-decoders may mark it, and others read all alike."""
    return cast(EncoderDecoder, encoder).in_language(language) if encoder.scoring == "seq2seq" else nullcontext()


def token_vectors(sources: Sequence[Sequence[Any]], targets: Sequence[Sequence[Any]]) -> tuple[Tensor, Tensor]:
    """Tokens of texts -> (N, K) of each side, counts of tokens times the logarithm of their rarity (tf-idf)."""
    index: dict[Any, int] = {}
    texts = [[index.setdefault(token, len(index)) for token in text] for text in (*sources, *targets)]
    counts = torch.zeros(len(texts), len(index))
    for row, tokens in enumerate(texts):
        counts[row] = torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=len(index))
    counts *= (len(texts) / (counts > 0).sum(0)).log()
    return counts[: len(sources)], counts[len(sources) :]


def counted_vectors(encoder: Encoder, training: Sides, test: Sides) -> tuple[Tensor, Tensor]:
    """Means (N, D) of vectors of tokens that are counted, not trained (Levy, Søgaard and Goldberg 2017).

    All tokens of a training text and its translation are contexts of each other: see ppmi_init.py.
    """
    pairs = zip(*(encoder.tokenizer.encode_batch(list(side)) for side in training), strict=True)
    documents = [[*source, *target] for source, target in pairs]
    starts = np.cumsum([0, *map(len, documents)])
    tokens = np.fromiter(chain.from_iterable(documents), dtype=np.int64, count=int(starts[-1]))
    counts = ppmi_init.count(tokens, vocab_size=len(encoder.tokenizer), starts=starts)
    vectors = ppmi_init.factorise(counts, encoder.size, seed=0)
    sides = ([vectors[ids].mean(0) for ids in encoder.tokenizer.encode_batch(list(side))] for side in test)
    source, target = (torch.stack(side).nan_to_num() for side in sides)  # a text may have no token
    return source, target


def nearest(sources: Tensor, targets: Tensor, texts: Sides) -> Found:
    """How often row i of either side (N, D) has the highest margin with row i of the other, or with an equal text."""
    scores = margins(sources, targets)
    found = zip(texts, (scores.argmax(0), scores.argmax(1)), strict=True)
    back, there = (float(np.mean([side[b] == side[i] for i, b in enumerate(best.tolist())])) for side, best in found)
    return Found(there, back)


def margins(sources: Tensor, targets: Tensor) -> Tensor:
    """(N, N): the cosine of two texts over the mean of those with the nearest texts of either (equation 3, ratio).

    A text that is near to all others is not the best one for each of them.
    """
    unit = [torch.nn.functional.normalize(side, dim=1) for side in (sources, targets)]
    cosines = unit[0] @ unit[1].T
    k = min(NEIGHBORS, len(cosines))
    around = [cosines.topk(k, dim=dim).values.mean(dim, keepdim=True) for dim in (1, 0)]
    return cosines / ((around[0] + around[1]) / 2).clamp(min=1e-6)


def table(found: Retrieval) -> str:
    """The layers, the chosen one marked, as a Markdown table."""
    a, b = found.languages
    rows = [("tokens in common", found.tokens)]
    if found.counted is not None:
        rows.append(("counted in the training texts", found.counted))
    for layer, of_layer in enumerate(found.layers):
        rows.append((f"layer {layer}" + (" (best in validation)" if layer == found.chosen else ""), of_layer))
    cells = [[name, *(f"{share:.1%}" for share in (of.there, of.back))] for name, of in rows]
    return markdown_table(["vector", f"{a} to {b}", f"{b} to {a}"], cells)


def figures(found: Retrieval) -> dict[str, Any]:
    """What was found, as JSON."""
    return asdict(found) | {"best": asdict(found.best)}


def plot(found: Retrieval, file: Path, *, title: str) -> None:
    """The share that is found by layer, a line for each direction."""
    figure, axes = plots.subplots(figsize=(6.5, 4), title=title)
    a, b = found.languages
    for name, of in ((f"{a} to {b}", "there"), (f"{b} to {a}", "back")):
        axes.plot([100 * getattr(layer, of) for layer in found.layers], marker="o", label=name)
    axes.axhline(100 * found.tokens.mean, linestyle=":", color="gray", label="tokens in common")
    if found.counted is not None:
        axes.axhline(100 * found.counted.mean, linestyle="--", color="gray", label="counted in the training texts")
    axes.set_xticks(range(len(found.layers)), ["embeddings", *(str(n) for n in range(1, len(found.layers)))])
    axes.set_ylim(0, 102)
    axes.set_xlabel("layer")
    axes.set_ylabel(f"translations found among {found.texts:,} texts (%)")
    axes.legend(fontsize="small", frameon=False)
    plots.save_figure(figure, file)
