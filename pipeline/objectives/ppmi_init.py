"""Embeddings from positive pointwise mutual information: similar for tokens that occur in similar places.

A masked LM spends its first thousand steps finding this out by gradients; counting takes seconds. The vectors are
those of Levy and Goldberg (2014, "Neural Word Embedding as Implicit Matrix Factorization") with the settings of Levy,
Goldberg and Dagan (2015): positive pointwise mutual information, contexts smoothed, singular values under a root.
Where a document is a text and its translation, all of it is context too, so that words and their translations have the
same contexts and get similar vectors (Levy, Søgaard and Goldberg 2017).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.data.token_store import TokenStore

WINDOW = 4  # tokens to either side; one that is k away counts 1 / k
SMOOTHING = 0.75  # power of a context's frequency: rare ones count less
CONTEXTS = 8_192  # at most, the most frequent tokens
MOST_COUNTS = 1 << 28  # of (V, contexts) float32: 1 GB; a larger vocabulary has fewer contexts
MOST_TOKENS = 20_000_000  # counted at most, in stretches spread over the corpus
STRETCH = 1_000_000


@torch.no_grad()
def initialize_from_ppmi(
    weight: Tensor, store: TokenStore, *, special: Collection[int], seed: int, by_document: bool = False
) -> None:
    """Replaces the rows of an embedding (V, D) by PPMI vectors, each as long as the rows were on average.

    Special tokens and tokens that the corpus does not have keep their rows. The window reads documents as one stream.

    Args:
        special: ids of special tokens.
        by_document: whether all tokens of a document are contexts too, of each other and of themselves.
    """
    starts = store.document_starts if by_document else None
    vectors = factorise(count(store.tokens, vocab_size=len(weight), starts=starts), weight.shape[1], seed=seed)
    known = vectors.norm(dim=1) > 1e-4  # other tokens have no neighbors, or uninformative ones
    known[list(special)] = False
    length = weight[known].norm(dim=1).mean()
    weight[known] = length * torch.nn.functional.normalize(vectors[known], dim=1)


def count(tokens: np.ndarray, *, vocab_size: int, starts: np.ndarray | None = None) -> np.ndarray:
    """How often token v occurs near context c: (V, C) float32, C the most frequent tokens.

    Args:
        starts: (D + 1,) first token of each document, then N: two tokens of a document count 1 more, and so
            does each with itself. None: they do not.
    """
    begins = np.arange(0, len(tokens), STRETCH)
    if len(tokens) > MOST_TOKENS:
        begins = np.linspace(0, len(tokens) - STRETCH, MOST_TOKENS // STRETCH).astype(int)
    frequency = sum(np.bincount(tokens[begin : begin + STRETCH], minlength=vocab_size) for begin in begins)
    contexts = np.argsort(-frequency, kind="stable")[: min(CONTEXTS, MOST_COUNTS // vocab_size)]
    column = np.full(vocab_size, -1)
    column[contexts] = np.arange(len(contexts))
    counts = np.zeros((vocab_size, len(contexts)), dtype=np.float32)
    for begin in begins:
        stretch = tokens[begin : begin + STRETCH].astype(np.int64)
        for k in range(1, WINDOW + 1):
            _add(counts, stretch[:-k], stretch[k:], column, 1 / k)
        if starts is None:
            continue
        document = np.searchsorted(starts, np.arange(begin, begin + len(stretch)), side="right")
        ones = np.ones(len(stretch), dtype=np.float32)
        occurrences = sparse.coo_array(
            (ones, (document - document[0], stretch)), (document[-1] - document[0] + 1, vocab_size)
        )
        occurrences = occurrences.tocsr()  # of each token in each document
        pairs = (occurrences.T @ occurrences[:, contexts]).tocoo()
        counts[pairs.row, pairs.col] += pairs.data
    return counts


def _add(counts: np.ndarray, first: np.ndarray, second: np.ndarray, column: np.ndarray, weight: float) -> None:
    """Counts tokens (n,) as contexts of each other; `column` has the place of each context, -1 for other tokens."""
    for center, context in ((first, column[second]), (second, column[first])):
        known = context >= 0
        np.add.at(counts.reshape(-1), center[known] * counts.shape[1] + context[known], np.float32(weight))


def factorise(counts: np.ndarray, size: int, *, seed: int) -> Tensor:
    """Counts (V, C) -> vectors (V, D), from the best D-dimensional fit of positive pointwise mutual information.

    The counts are used up: they are large.
    """
    pmi = torch.from_numpy(counts)
    rows, columns = pmi.sum(1, keepdim=True), pmi.sum(0, keepdim=True) ** SMOOTHING
    pmi.mul_(columns.sum() / columns.clamp(min=1e-9)).div_(rows.clamp(min=1e-9))
    pmi.log_().clamp_(min=0)  # the logarithm of nothing is no information
    vectors = torch.zeros(len(pmi), size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        left, values, _ = torch.svd_lowrank(pmi, q=min(size + 20, *pmi.shape), niter=3)
        left *= signs_of(left)
        turn, _ = torch.linalg.qr(torch.randn(size, size))  # so that no dimension dominates
    vectors[:, : left.shape[1]] = (left * values.sqrt())[:, :size]
    return vectors @ turn


def signs_of(vectors: Tensor) -> Tensor:
    """What makes the largest entry of each column of (V, D) positive, (D,): processors differ in the sign they find."""
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return torch.where(largest < 0, -1.0, 1.0).squeeze(0)
