"""Embeddings that begin with co-occurrences: the counts, their factors, and what training gains from them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.synthetic import corpus as sample
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.objectives import ppmi_init as cooccurrence
from pipeline.tokenization.wordpiece import WordPiece
from tests.conftest import SMALL, run


def store_of(tokens: np.ndarray) -> TokenStore:
    return TokenStore(tokens.astype(np.uint16), np.array([0, len(tokens)]), np.array([0, 1]), {})


def plainly_counted(tokens: list[int], size: int) -> np.ndarray:
    counts = np.zeros((size, size))
    for i, center in enumerate(tokens):
        for j, context in enumerate(tokens):
            if 0 < abs(i - j) <= cooccurrence.WINDOW:
                counts[center, context] += 1 / abs(i - j)
    return counts


def test_tokens_of_a_document_are_contexts_of_each_other() -> None:
    """Of texts with their translations: each pair of positions counts, and a token with itself."""
    tokens, starts = np.random.default_rng(0).integers(3, 20, 300), np.array([0, 40, 41, 200, 300])
    counts = cooccurrence.count(tokens.astype(np.uint16), vocab_size=20, starts=starts)
    expected = plainly_counted(tokens.tolist(), 20)
    for begin, end in pairwise(starts):
        for center in tokens[begin:end]:
            np.add.at(expected[center], tokens[begin:end], 1)
    by_frequency = np.argsort(-np.bincount(tokens, minlength=20), kind="stable")
    np.testing.assert_allclose(counts, expected[:, by_frequency], rtol=1e-5)


def test_counts_are_those_of_a_plain_loop() -> None:
    tokens = np.random.default_rng(0).integers(3, 20, 300)
    counts = cooccurrence.count(tokens.astype(np.uint16), vocab_size=20)
    by_frequency = np.argsort(-np.bincount(tokens, minlength=20), kind="stable")
    np.testing.assert_allclose(counts, plainly_counted(tokens.tolist(), 20)[:, by_frequency], rtol=1e-5)


def test_rare_tokens_are_no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.minimum(np.random.default_rng(0).geometric(0.2, 1000), 19)
    by_frequency = np.argsort(-np.bincount(tokens, minlength=20), kind="stable")
    for name, most in (("CONTEXTS", 5), ("MOST_COUNTS", 20 * 3 + 1)):
        monkeypatch.setattr(cooccurrence, name, most)
        counts = cooccurrence.count(tokens.astype(np.uint16), vocab_size=20)
        frequent = by_frequency[: 5 if name == "CONTEXTS" else 3]
        np.testing.assert_allclose(counts, plainly_counted(tokens.tolist(), 20)[:, frequent], rtol=1e-4)


def test_a_corpus_is_read_in_stretches_and_a_long_one_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cooccurrence, "STRETCH", 400)
    tokens = np.random.default_rng(0).integers(0, 20, 1000)
    for most, parts in ((1000, [(0, 400), (400, 800), (800, 1000)]), (800, [(0, 400), (600, 1000)])):
        monkeypatch.setattr(cooccurrence, "MOST_TOKENS", most)
        counts = cooccurrence.count(tokens.astype(np.uint16), vocab_size=20)
        wanted = sum(plainly_counted(tokens[begin:end].tolist(), 20) for begin, end in parts)
        read = np.concatenate([tokens[begin:end] for begin, end in parts])
        by_frequency = np.argsort(-np.bincount(read, minlength=20), kind="stable")
        np.testing.assert_allclose(counts, wanted[:, by_frequency], rtol=1e-4)


def test_products_of_vectors_are_the_best_fit_of_positive_information() -> None:
    """A symmetric matrix without negative eigenvalues is fitted by V V^T; NumPy says what is best."""
    base = np.abs(np.random.default_rng(0).normal(size=(12, 3)))
    counts = np.exp(base @ base.T).astype(np.float32)
    rows, columns = counts.sum(1, keepdims=True), counts.sum(0, keepdims=True) ** cooccurrence.SMOOTHING
    pmi = np.maximum(0, np.log(counts / rows * columns.sum() / columns))
    left, values, _ = np.linalg.svd(pmi)
    vectors = cooccurrence.factorise(counts.copy(), 4, seed=0).numpy()
    wanted = left[:, :4] * values[:4] @ left[:, :4].T
    np.testing.assert_allclose(vectors @ vectors.T, wanted, atol=1e-3)
    again = cooccurrence.factorise(counts, 4, seed=0).numpy()
    assert (again == vectors).all()


def test_signs_of_vectors_are_those_of_the_largest_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed is one start on every processor: which sign a singular vector has differs."""
    counts = np.exp(np.random.default_rng(0).normal(size=(20, 20))).astype(np.float32)
    found = torch.svd_lowrank

    def turned(*args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        left, values, right = found(*args, **options)
        return -left, values, -right

    plain = cooccurrence.factorise(counts.copy(), 4, seed=0)
    monkeypatch.setattr(torch, "svd_lowrank", turned)
    torch.testing.assert_close(cooccurrence.factorise(counts, 4, seed=0), plain)


def test_special_tokens_and_what_the_corpus_does_not_have_keep_their_vectors() -> None:
    tokens = np.random.default_rng(0).integers(4, 40, 3000)  # one of the special ones stands in the text
    weight = torch.nn.Parameter(0.02 * torch.randn(50, 8))
    before, state = weight.detach().clone(), torch.get_rng_state()
    cooccurrence.initialize_from_ppmi(weight, store_of(tokens), special=range(5), seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    same = (weight == before).all(1)
    assert same.tolist() == [token < 5 or token >= 40 for token in range(50)]
    norms = weight[5:40].norm(dim=1)
    torch.testing.assert_close(norms, before[5:40].norm(dim=1).mean().expand(35))


@pytest.mark.parametrize("tokens", [[7], [7, 7, 7], [7, 8]])
def test_a_corpus_that_tells_nothing_changes_nothing_for_the_worse(tokens: list[int]) -> None:
    weight = torch.randn(12, 8)
    norms = weight.norm(dim=1)
    cooccurrence.initialize_from_ppmi(weight, store_of(np.array(tokens)), special=range(5), seed=0)
    assert torch.isfinite(weight).all()
    assert weight.norm(dim=1).min() >= norms.min() - 1e-4


def test_tokens_of_the_same_surroundings_begin_alike() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 10, 5000)  # token 2k or 2k + 1, then always token 20 + k
    tokens = np.stack([2 * pairs + rng.integers(0, 2, 5000), 20 + pairs], 1).reshape(-1)
    weight = torch.randn(30, 16)
    cooccurrence.initialize_from_ppmi(weight, store_of(tokens), special=[], seed=0)
    alike = torch.nn.functional.cosine_similarity(weight[0:20:2], weight[1:20:2], dim=1)
    others = torch.nn.functional.cosine_similarity(weight[0:20:2], weight[1:20:2].roll(1, 0), dim=1)
    assert alike.min() > 0.9 > 0.6 > others.max()


def test_vectors_of_neighbors_predict_a_token_of_held_out_text(tmp_path: Path) -> None:
    """Near the sum of its neighbors' vectors, and no longer so when the words of the corpus are shuffled."""
    sample.write_corpus(tmp_path, documents_count=600, seed=0)
    tokenizer = WordPiece.train((tmp_path / "train.txt").open(), vocab_size=2000, lowercase=True)
    built = store.build(Source(files=[tmp_path / "train.txt"]), tokenizer, tmp_path / "stores")
    seen, unseen = built.tokens[:-10_000], torch.from_numpy(built.tokens[-10_000:].astype(np.int64))
    five, ranks = unseen.unfold(0, 5, 5), []
    for tokens in (seen, np.random.default_rng(0).permutation(seen)):
        weight = torch.randn(len(tokenizer), 64, generator=torch.Generator().manual_seed(0))
        cooccurrence.initialize_from_ppmi(weight, store_of(tokens), special=tokenizer.special_ids, seed=0)
        near = weight[five[:, [0, 1, 3, 4]]].sum(1) @ weight.T
        ranks.append(float((near > near.gather(1, five[:, 2:3])).sum(1).float().median()))
    assert ranks[0] < 0.6 * ranks[1]


def test_pretraining_begins_so(tmp_path: Path) -> None:
    steps = ["--trainer.max_steps=1", "--model.optimization.learning_rate=1e-12"]
    found = {}
    for how in ("random", "cooccurrence"):
        run("pretrain", "--out", str(tmp_path / how), *SMALL, *steps, f"--model.embeddings={how}")
        found[how] = pipeline.encoders.load(tmp_path / how / "encoder")
    weights = {how: encoder.get_parameter("word_embedding.weight") for how, encoder in found.items()}
    special = found["random"].tokenizer.special_ids
    changed = (weights["random"] - weights["cooccurrence"]).abs().amax(1) > 1e-6
    assert not changed[special].any()
    assert changed.float().mean() > 0.8
    for name, parameter in found["random"].named_parameters():
        if name != "word_embedding.weight":
            torch.testing.assert_close(parameter, found["cooccurrence"].get_parameter(name), atol=1e-6, rtol=0)


def test_an_encoder_that_spells_has_no_such_vectors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a vector for each token"):
        run("pretrain", "--model", "elmo", "--out", str(tmp_path / "elmo"), "--model.embeddings=cooccurrence",
            "--data.sample_documents=50", "--trainer.max_steps=2")  # fmt: skip
