"""A text token by token: mixtures of two models, loss by context, rows that overlap."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from pipeline import encoders
from pipeline.data.documents import Source
from pipeline.data.store_builder import build
from pipeline.errors import UserError
from pipeline.inspection.context_loss import loss_by_context, table
from pipeline.inspection.mixture import fitted_weight, mix, mixed_log_probs
from pipeline.inspection.token_log_probs import TokenLogProbs, check, token_log_probs
from pipeline.models.base import Encoder
from pipeline.models.recurrent import Recurrent
from pipeline.objectives.causal_lm import CausalLM
from pipeline.tokenization.whole_words import WholeWords
from tests.conftest import assert_plot, run


def scores(log_probs: Any, **others: Any) -> TokenLogProbs:
    """Scores of made-up tokens, two bytes each."""
    log_probs, numbers = np.asarray(log_probs, np.float32), np.arange(len(log_probs))
    known = {"tokens": numbers, "context": numbers + 1, "documents": numbers // 50, "spelling": 0.0 * numbers}
    return TokenLogProbs(**known | others, log_probs=log_probs, per_byte=0.5)


def drawn(seed: int, tokens: int = 4000) -> tuple[TokenLogProbs, TokenLogProbs]:
    """Two models, each better at other tokens, the second one mostly worse."""
    rng = np.random.default_rng(seed)
    one, other = np.log(rng.beta(0.5, 2, (2, tokens)) + 1e-9)
    return scores(one), scores(other - rng.uniform(0, 2))


# ---------------------------------------------------------------------- mixtures


@pytest.mark.parametrize("seed", range(5))
def test_the_weight_is_the_likeliest_one(seed: int) -> None:
    """Against every weight of a grid, models alone included: on the fitted half a mixture is never worse."""
    both = [side.log_probs.astype(float) for side in drawn(seed)]
    weight = fitted_weight(*both)
    fitted = mixed_log_probs(*both, weight).mean()
    grid = np.linspace(0, 1, 101)
    p = np.exp(both)
    others = [np.log(w * p[0] + (1 - w) * p[1]).mean() for w in grid]
    assert fitted >= max(others) - 1e-12
    assert abs(weight - grid[int(np.argmax(others))]) <= 0.01
    assert 0 <= weight <= 1


def test_a_mixture_is_scored_on_the_half_that_it_is_not_fitted_on() -> None:
    first, second = drawn(7)
    mixture = mix(first, second)
    half = slice(2000, None)
    p = [np.exp(side.log_probs[half].astype(float)) for side in (first, second)]
    bits = -np.log2(mixture.weight * p[0] + (1 - mixture.weight) * p[1]).mean() * 0.5
    assert mixture.bits_per_byte[2] == pytest.approx(bits, rel=1e-9)
    assert mixture.bits_per_byte[0] == pytest.approx(-np.log2(p[0]).mean() * 0.5, rel=1e-6)
    assert mixture.weight == fitted_weight(first.log_probs[:2000].astype(float), second.log_probs[:2000].astype(float))
    assert mixture.gain == pytest.approx(min(mixture.bits_per_byte[:2]) - bits)
    assert mixture.interval[0] < mixture.gain < mixture.interval[1]
    assert mixture.units == "40 documents"
    assert mix(second, first).weight == pytest.approx(1 - mixture.weight, abs=1e-5)
    one_text = [replace(side, documents=np.zeros(4000, np.int64)) for side in (first, second)]
    assert mix(*one_text).units == "100 blocks of text"


def test_two_copies_gain_nothing() -> None:
    copy, _ = drawn(3)
    mixture = mix(copy, copy)
    assert mixture.weight == 0.5
    assert mixture.gain == pytest.approx(0, abs=1e-12)
    assert mixture.interval == pytest.approx((0, 0), abs=1e-12)


def test_a_model_without_smoothing_is_mixed_where_the_other_knows_the_token() -> None:
    zero = scores([-np.inf, -1, -1, -np.inf, -1, -1])
    known = scores([-2, -3, -3, -2, -3, -3])
    mixture = mix(zero, known)
    assert 0 < mixture.weight < 1
    assert np.isfinite(mixture.bits_per_byte[2])
    assert mixture.better_half == 1
    with pytest.raises(UserError, match="probability 0"):
        mix(zero, zero)
    with pytest.raises(UserError, match="the same tokens"):
        mix(zero, scores([-1, -1]))


def test_loss_by_context() -> None:
    context = [1, 2, 3, 4, 5, 8, 9, 1]
    buckets = loss_by_context(scores(-np.arange(1.0, 9), context=np.array(context)))
    assert buckets == [(1, 1, 2, 4.5), (2, 2, 1, 2.0), (3, 4, 2, 3.5), (5, 8, 2, 5.5), (9, 9, 1, 7.0)]


def test_a_model_without_long_contexts_leaves_their_cells_empty() -> None:
    longer, shorter = (loss_by_context(scores(-np.ones(size), context=np.arange(size) + 1)) for size in (9, 4))
    rows = [line.split() for line in table({"short": shorter, "long": longer}).splitlines()[1:]]
    assert [len(row) for row in rows] == [4, 4, 4, 3, 3]
    assert [row[0] for row in rows] == ["1", "2", "3-4", "5-8", "9"]


# ---------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def gpt(toys: Callable[[str], Path]) -> Encoder:
    return encoders.load_with_heads(toys("gpt") / "encoder")


@pytest.fixture(scope="module")
def lstm(gpt: Encoder) -> Encoder:
    torch.manual_seed(0)
    return Recurrent(gpt.tokenizer, cell="lstm", size=16, layers=1, max_length=48, dropout=0.0).eval()


@pytest.mark.parametrize("case", ["cut", "stride 1", "stride 5", "stride 12", "stateful"])
def test_each_token_is_scored_once_with_its_context(gpt: Encoder, lstm: Encoder, case: str, tmp_path: Path) -> None:
    """Each log-probability is that of the token after exactly its context, asked alone."""
    text = "The soup was cold. She left the house.\n\nA dog slept.\n\nIt was late, he said.\n"
    (tmp_path / "text.txt").write_text(text)
    store = build(Source(files=[tmp_path / "text.txt"]), gpt.tokenizer, tmp_path, name="text")
    starts, length = store.document_starts, 12
    stream = np.insert(store.tokens.astype(np.int64), starts[:-1], gpt.tokenizer.id("eos")).tolist()
    model, stateful = (lstm, True) if case == "stateful" else (gpt, False)
    stride = int(case.split()[1]) if "stride" in case else None
    found = token_log_probs(model, store, CausalLM(stateful=stateful), length=length, stride=stride, batch_size=2)
    predicted = min(len(stream) // length * length, len(stream) - 1)
    assert found.tokens.tolist() == stream[1 : predicted + 1]
    least = 1 if stride is None else length - stride + 1
    assert all(least <= context or context == place for place, context in enumerate(found.context, start=1))
    assert (found.context.max() > length) == stateful
    without_state = token_log_probs(gpt, store, CausalLM(stateful=True), length=length, batch_size=2)
    assert without_state.context.max() == length
    for place, (context, log_prob) in enumerate(zip(found.context, found.log_probs, strict=True), start=1):
        ids = torch.tensor([stream[place - context : place]])
        with torch.no_grad():
            hidden = model({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}).layers[-1][0, -1]
            alone = model.logits(hidden).log_softmax(-1)[stream[place]]
        assert log_prob == pytest.approx(float(alone), abs=1e-4)


def test_context_does_not_reach_over_the_documents_that_are_not_seen(gpt: Encoder, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("She\n\n" * 40)
    store = build(Source(files=[tmp_path / "text.txt"]), gpt.tokenizer, tmp_path, name="text")
    most = int(np.diff(store.document_starts).max()) + 1  # with the boundary before a document
    for stride in (None, 5):
        seen = token_log_probs(gpt, store, CausalLM("document"), length=16, stride=stride).context
        assert (seen.min(), seen.max()) == (1, most)
    assert token_log_probs(gpt, store, CausalLM(), length=16).context.max() == 16


def test_bits_per_byte_of_whole_words_include_their_spelling(tmp_path: Path) -> None:
    """As those of `evaluate` do: each unknown word is charged its spelling, on average over the text."""
    tokenizer = WholeWords.train(["the soup was cold ."] * 9, vocab_size=100, lowercase=False)
    (tmp_path / "text.txt").write_text("the soup was strange .\n\nthe dog was cold .\n\n" * 3)
    store = build(Source(files=[tmp_path / "text.txt"]), tokenizer, tmp_path, name="text")
    torch.manual_seed(0)
    model = Recurrent(tokenizer, cell="gru", size=8, layers=1, max_length=48, dropout=0.0).eval()
    found, objective = token_log_probs(model, store, CausalLM(), length=8), CausalLM()
    batch = objective.batch(
        objective.rows(store, tokenizer, length=8, phase=0, seed=0), np.arange(4), tokenizer, rng=None
    )
    sums = objective(model, batch)["lm"].statistics()
    figures = {"lm_loss": float(sums[0] / sums[1]), "lm_spelling": float(sums[3] / sums[1])}
    assert figures["lm_spelling"] > 1
    assert found.bits_per_byte == pytest.approx(objective.report(figures, per_byte=found.per_byte)["bits_per_byte"])
    mixture = mix(found, found)
    half = slice(len(found) // 2, None)
    bits = (found.spelling[half] - found.log_probs[half]).mean() * found.per_byte / np.log(2)
    assert mixture.bits_per_byte == pytest.approx([bits] * 3)


def test_evaluate_token_by_token(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: figures of rows that are cut agree with those of `evaluate`; a noisy copy is worth a little."""
    where = ["--model", "gpt", "--from", str(toys("gpt") / "encoder"), "--data.sample_documents=300"]
    other = encoders.load_with_heads(toys("gpt") / "encoder")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.3 * weight.std() * torch.randn_like(weight) if weight.dim() > 1 else 0
    other.save(tmp_path / "noisy")
    run("evaluate", *where, "--mix", "noisy", "--stride", "16", "--by-context", "--out", "found.json")
    shown = capsys.readouterr().out
    found = json.loads(Path("found.json").read_text())
    assert_plot(Path("found.png"))
    name = str(toys("gpt"))
    buckets = found["by_context"][name]
    mean = sum(b["tokens"] * b["loss"] for b in buckets) / sum(b["tokens"] for b in buckets)
    assert mean == pytest.approx(found["lm_loss"], rel=1e-6)
    assert [(b["first"], b["last"]) for b in buckets][-2:] == [(17, 32), (33, 48)]
    assert buckets[0]["loss"] > buckets[-1]["loss"]
    assert found["overlapping"]["models"][name]["bits_per_byte"] == pytest.approx(found["bits_per_byte"], rel=0.02)
    mixture = found["mixture"]
    assert mixture["models"] == [name, "noisy"]
    assert mixture["better_half"] == 0
    for figure in (*mixture["bits_per_byte"], found["overlapping"]["models"]["noisy"]["bits_per_byte"]):
        assert f"{figure:.4f}" in shown


def test_what_cannot_be_scored_token_by_token_is_refused(toys: Callable[[str], Path], tmp_path: Path) -> None:
    where = ["--model", "gpt", "--from", str(toys("gpt") / "encoder"), "--data.sample_documents=300"]
    strange = encoders.load_with_heads(toys("gpt") / "encoder")
    strange.tokenizer.backend.normalizer = tokenizers.normalizers.Lowercase()
    strange.save(tmp_path / "strange")
    refused = {
        "--stride=49": "The stride is 49, but rows have 48 tokens",
        f"--mix={toys('gpt') / 'encoder'}": "is the evaluated encoder itself",
    }
    for flag, message in refused.items():
        with pytest.raises(UserError, match=message):
            run("evaluate", *where, *flag.split("=", 1))
    for extra in ([], ["--by-context"]):
        with pytest.raises(UserError, match="CausalLM needs a model that can do state; Gpt does"):
            run("evaluate", *where, "--model.objective.stateful=true", *extra)
    with pytest.raises(UserError, match="different tokenizers"):
        run("evaluate", *where, "--mix", "strange")
    strange.scoring = "masked"  # type: ignore[misc]
    with pytest.raises(UserError, match="gpt is masked: only causal models"):
        check(strange, CausalLM(), length=48, stride=None)
    Path("found.png").touch()
    with pytest.raises(UserError, match="png is there already"):
        run("evaluate", *where, "--by-context", "--out", "found.json")
