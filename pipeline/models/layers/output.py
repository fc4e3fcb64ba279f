"""Output layers of causal models: from a vector to the probability of each token.

Shapes: N predictions, D size of the vectors, E size of the embedding, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from pipeline.errors import UserError, check_choice
from pipeline.models.losses import Loss, linear_cross_entropy

OutputKind = Literal["tied", "full", "adaptive"]
FADING = 4.0  # how much narrower the vectors of each cluster are than those of the one before (Grave et al. 2017)


class Output(nn.Module):
    """Probabilities of tokens, of one of three kinds; each begins with an even guess where vectors are small.

    The embedding is an argument of the methods, so that its tensor belongs to one module alone.

    Args:
        kind: `tied` (the embedding is the output matrix: Press and Wolf 2017, Inan et al. 2017; vectors of another
            size are projected to E first), `full` (a matrix of its own) or `adaptive` (an adaptive softmax: frequent
            tokens in one matrix, the rest in clusters of narrower vectors: Grave et al. 2017). Adaptive relies on
            tokens in the order of their frequency, as those of BPE and WordPiece roughly are.
        size: D.
        embedding_size: E.
        vocab_size: V.
        cutoffs: of `adaptive`: the tokens at which a cluster begins; None: an eighth and a half of V.

    Raises:
        UserError: cutoffs that do not rise within the vocabulary, or are given for another kind.
    """

    def __init__(
        self,
        kind: OutputKind,
        *,
        size: int,
        embedding_size: int,
        vocab_size: int,
        cutoffs: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_choice("output", kind, get_args(OutputKind))
        if cutoffs is not None and kind != "adaptive":
            raise UserError(f"cutoffs are of output: adaptive; this one is {kind}.")
        self.project = self.weight = self.bias = self.adaptive = None
        if kind == "adaptive":
            self.adaptive = _adaptive(size, vocab_size, cutoffs)
            return
        if kind == "full":
            self.weight = nn.Parameter(nn.Linear(size, vocab_size).weight.detach())
        elif size != embedding_size:
            self.project = nn.Linear(size, embedding_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def logits(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """Vectors (..., D) and the embedding (V, E) -> (..., V): logits; of `adaptive`, log-probabilities."""
        if self.adaptive is None:
            return nn.functional.linear(self._projected(hidden), self._matrix(embedding), self.bias)
        with torch.autocast(hidden.device.type, enabled=False):  # the library's layer does not take two types
            rows = hidden.reshape(-1, hidden.shape[-1]).to(self.adaptive.head.weight.dtype)
            return self.adaptive.log_prob(rows).reshape(*hidden.shape[:-1], -1)

    def token_loss(self, hidden: Tensor, labels: Tensor, embedding: Tensor, *, smoothing: float = 0.0) -> Loss:
        """Cross entropy, summed, without all logits at once: vectors (N, D), labels (N,), the embedding (V, E).

        What is correct is not known of `adaptive`.

        Args:
            smoothing: share of the probability that is spread over all tokens; 0 of `adaptive`.
        """
        if self.adaptive is None:
            matrix = self._matrix(embedding)
            return linear_cross_entropy(self._projected(hidden), matrix, labels, self.bias, smoothing=smoothing)
        assert not smoothing  # of encoder-decoders alone, and none is adaptive
        head, cutoffs, classes = self.adaptive.head, self.adaptive.cutoffs, labels.clone()
        sums = []
        for index, (first, end) in enumerate(itertools.pairwise(cutoffs)):
            rows = ((labels >= first) & (labels < end)).nonzero()[:, 0]
            classes[rows] = cutoffs[0] + index
            narrow, wide = cast(tuple[nn.Linear, nn.Linear], self.adaptive.tail[index])
            cluster = narrow(hidden.index_select(0, rows))  # also of no row: so every process has every gradient
            sums.append(linear_cross_entropy(cluster, wide.weight, labels[rows] - first).sum)
        sums.append(linear_cross_entropy(hidden, head.weight, classes, head.bias).sum)
        return Loss(torch.stack(sums).sum(), len(labels))

    def _projected(self, hidden: Tensor) -> Tensor:
        return hidden if self.project is None else self.project(hidden)

    def _matrix(self, embedding: Tensor) -> Tensor:
        return embedding if self.weight is None else self.weight


def _cuts(vocab_size: int, cutoffs: Sequence[int] | None) -> list[int]:
    cuts = sorted({max(1, vocab_size // 8), max(1, vocab_size // 2)}) if cutoffs is None else list(cutoffs)
    if not cuts or cuts != sorted(set(cuts)) or cuts[0] < 1 or cuts[-1] >= vocab_size:
        raise UserError(
            f"cutoffs must rise, from 1 to below the {vocab_size:,} tokens of the vocabulary, not {cuts}; null takes "
            "an eighth and a half of it."
        )
    return cuts


def _adaptive(size: int, vocab_size: int, cutoffs: Sequence[int] | None) -> nn.AdaptiveLogSoftmaxWithLoss:
    """With biases of the clusters, so that a zero vector gives every token the same probability."""
    cuts = _cuts(vocab_size, cutoffs)
    if size < (narrowest := int(FADING ** len(cuts))):
        raise UserError(
            f"An adaptive softmax with {len(cuts)} cutoffs needs vectors of at least {narrowest}, not {size}."
        )
    layer = nn.AdaptiveLogSoftmaxWithLoss(size, vocab_size, cuts, div_value=FADING, head_bias=True)
    with torch.no_grad():
        layer.head.bias.zero_()
        sizes = [end - first for first, end in itertools.pairwise(layer.cutoffs)]
        layer.head.bias[layer.shortlist_size :] = torch.tensor(sizes).log()
    return layer
