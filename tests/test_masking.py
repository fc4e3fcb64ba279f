"""Masks and pairs have the statistics of the paper, on real rows of the sample."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.rows import SentenceWindows
from pipeline.data.synthetic import corpus as sample
from pipeline.data.synthetic.tasks import sentiment
from pipeline.data.token_store import TokenStore
from pipeline.models.bert import Bert
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.causal_rows import MaskedAndCausalLM
from pipeline.objectives.mask_checks import unmasked
from pipeline.objectives.masked_lm import MaskedLM, trim
from pipeline.objectives.masking import mask_tokens
from pipeline.objectives.pair_checks import SIGNS, accuracy_by
from pipeline.objectives.quick_thoughts import QuickThoughts
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.sentence_pairs import _shorter, excess, pair_count, sentence_pairs, swapped_pairs
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.wordpiece import WordPiece
from tests.conftest import wordpiece_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenStore, Tokenizer]:
    return wordpiece_world(tmp_path_factory.mktemp("world"))


def steps(world: tuple[TokenStore, Tokenizer], **options: object) -> StepBatches:
    settings = {"mask_rate": 0.15, "whole_word": False, "next_sentence": "nsp", **options}
    return StepBatches(MaskedLM(**settings), *world, length=64, batch_size=32, seed=1)  # type: ignore[arg-type]


def within(share: float, expected: float, count: int, sigmas: float = 4.5) -> bool:
    return abs(share - expected) < sigmas * math.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("whole_word", [False, True])
def test_mask_rates(world: tuple[TokenStore, Tokenizer], whole_word: bool) -> None:
    tokenizer, make = world[1], steps(world, whole_word=whole_word)
    masked = kept = rows = shortfall = 0
    mask_id, total = tokenizer.id("mask"), 0
    for step in range(60):
        batch = make(step)
        flat, labels = batch.inputs["input_ids"].flatten()[batch.targets["mlm"].predicted], batch.targets["mlm"].labels
        masked += int((flat == mask_id).sum())
        kept += int((flat == labels).sum())
        total += len(flat)
        wanted = (batch.mask.sum(1) * 0.15).round().clamp(min=1).sum()
        shortfall += int(wanted) - len(flat)
        rows += len(batch.mask)
        assert not np.isin(labels, tokenizer.special_ids).any()
        assert batch.mask.flatten()[batch.targets["mlm"].predicted].all()
    assert within(masked / total, 0.8, total)
    # A random replacement may hit the token itself: one time in V.
    assert within(kept / total, 0.1 + 0.1 / len(tokenizer), total)
    assert (shortfall == 0) if not whole_word else (0 <= shortfall < rows)


def test_the_mask_rate_changes_over_a_run_and_not_in_validation(world: tuple[TokenStore, Tokenizer]) -> None:
    objective = MaskedLM(mask_rate=0.15, first_mask_rate=0.45)
    run_of_ten = StepBatches(objective, *world, length=64, batch_size=32, seed=1, total=10)
    validation = StepBatches(objective, *world, length=64, batch_size=32, seed=1)
    for step, rate in ((0, 0.45), (5, 0.3), (10, 0.15)):
        for make, expected in ((run_of_ten, rate), (validation, 0.15)):
            batch = make(step)
            assert len(batch.targets["mlm"].predicted) / int(batch.mask.sum()) == pytest.approx(expected, abs=0.01)


def test_whole_words_stay_whole(world: tuple[TokenStore, Tokenizer]) -> None:
    tokenizer = world[1]
    broken = 0
    for whole_word in (True, False):
        for step in range(10):
            batch = steps(world, whole_word=whole_word)(step)
            chosen = np.zeros(batch.mask.numel(), dtype=bool)
            chosen[batch.targets["mlm"].predicted] = True
            original = unmasked(batch).flatten().numpy()
            inside = tokenizer.continues_word[original]
            splits = inside[1:] & (chosen[1:] != chosen[:-1])
            # A segment cut inside a word may begin with a piece: it follows [CLS] or [SEP].
            splits &= ~np.isin(original[:-1], tokenizer.special_ids)
            if whole_word:
                assert not splits.any()
            broken += int(splits.sum())
    assert broken > 0  # the check can fail: without whole_word words are torn


@pytest.mark.parametrize("objective", [MaskedLM(), MaskedLM(next_sentence="off"), QuickThoughts(), MaskedAndCausalLM()])
def test_the_top_layer_is_computed_only_where_a_loss_reads_it(
    world: tuple[TokenStore, Tokenizer], objective: MaskedLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = StepBatches(objective, *world, length=32, batch_size=16, seed=1)(0)
    sizes = {"size": 16, "layers": 2, "heads": 2, "inner_size": 16, "max_length": 32}
    bert = Bert(world[1], **sizes, dropout=0.0, attention_dropout=0.0, **objective.model_options)  # type: ignore[arg-type]
    losses, gradients, computed = [], [], []
    bert.blocks[-1].down.register_forward_hook(lambda module, given, result: computed.append(result[..., 0].numel()))
    for _ in range(2):
        bert.zero_grad()
        found = objective(bert, batch)
        torch.stack([loss.sum for loss in found.values()]).sum().backward()
        losses.append({name: float(loss.sum.detach()) for name, loss in found.items()})
        gradients.append({name: p.grad.clone() for name, p in bert.named_parameters() if p.grad is not None})
        monkeypatch.setattr(Bert, "pooled_positions", lambda self, mask: None)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, rtol=1e-3, atol=1e-3, msg=name)
    assert computed[1] == batch.mask.numel()
    assert computed[0] == (computed[1] if "clm" in losses[0] else len(batch) + len(batch.targets["mlm"].predicted))


def test_a_batch_without_a_mask_has_a_loss_of_zero(tmp_path: Path) -> None:
    """Characters that the tokenizer does not know may not be masked."""
    tokenizer = WordPiece.train(["some words"] * 3, vocab_size=30, lowercase=True)
    (tmp_path / "a.txt").write_text("☃ ♞ ☃\n\n♞ ☃ ♞\n\n☃ ☃\n")
    built = store.build(Source(files=[tmp_path / "a.txt"]), tokenizer, tmp_path / "stores")
    batch = steps((built, tokenizer))(0)
    assert (len(batch.targets["mlm"].predicted), batch.targets["mlm"].count) == (0, 1)
    bert = Bert(tokenizer, size=8, layers=1, heads=2, inner_size=8, max_length=64, dropout=0.0, attention_dropout=0.0)
    losses = MaskedLM()(bert, batch)
    assert losses["mlm"].sum / batch.targets["mlm"].count == 0


@pytest.mark.parametrize("next_sentence", ["nsp", "sop", "off"])
def test_no_row_is_longer_than_asked_for(world: tuple[TokenStore, Tokenizer], next_sentence: str) -> None:
    maker = MaskedLM(mask_rate=0.15, whole_word=False, next_sentence=next_sentence)  # type: ignore[arg-type]
    batches = StepBatches(maker, *world, length=45, batch_size=32, seed=1)
    assert max(batches(step).mask.shape[1] for step in range(20)) == 45


def test_two_passes_mask_differently_and_a_step_is_reproducible(world: tuple[TokenStore, Tokenizer]) -> None:
    make = steps(world)
    first, again = make(0), steps(world)(0)
    assert all((first.inputs[name] == again.inputs[name]).all() for name in first.inputs)
    for name, target in first.targets.items():
        assert (target.labels == again.targets[name].labels).all()
    rngs: list[np.random.Generator] = []

    class Noting(MaskedLM):
        def batch(self, rows: Any, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
            rngs.append(copy.deepcopy(rng))
            return super().batch(rows, index, tokenizer, rng=rng)

    objective = Noting(mask_rate=0.15, whole_word=False, next_sentence="off")
    noted = StepBatches(objective, *world, length=64, batch_size=16, seed=1)
    for step in (0, noted.steps):
        noted(step)
    same = objective.rows(*world, length=64, phase=0, seed=0)
    passes = [objective.batch(same, np.arange(16), world[1], rng=rng).targets["mlm"].predicted for rng in rngs[:2]]
    assert passes[0].tolist() != passes[1].tolist()  # of the very same rows
    assert (
        make(1).targets["mlm"].labels == steps(world)(1).targets["mlm"].labels
    ).all()  # going back gives the same, too


def test_an_epoch_shows_every_token_about_once(world: tuple[TokenStore, Tokenizer]) -> None:
    windows = SentenceWindows(world[0], 61)
    rows = np.arange(pair_count(windows))
    pairs = sentence_pairs(windows, rows, limit=10_000, seed=5, rng=np.random.default_rng(0))
    own = sum(len(pair.a) * (row % 4 != 3) + len(pair.b) * (row % 4 != 2) for row, pair in enumerate(pairs))
    _, begins, ends = windows.bounds(np.arange(len(windows) // 3 * 3))
    # Without truncation what random pairs cut off comes back as the first text of another pair; one row in
    # ten is cut short on purpose.
    assert 0.88 < own / (ends - begins).sum() <= 1


def test_next_sentence_pairs(world: tuple[TokenStore, Tokenizer]) -> None:
    windows = SentenceWindows(world[0], 61)
    rows = np.arange(pair_count(windows))
    pairs = sentence_pairs(windows, rows, limit=61, seed=5, rng=np.random.default_rng(0))
    labels = np.array([pair.label for pair in pairs])
    assert labels.mean() == 0.5
    text = world[0].tokens.tobytes()
    for pair in pairs[:200]:
        assert (pair.documents[0] != pair.documents[1]) == bool(pair.label)
        assert 0 < len(pair.a) + len(pair.b) <= 61
        assert pair.a.tobytes() in text
        assert pair.b.tobytes() in text
    # Neither lengths nor the tokens at the edges may give the label away.
    sizes = np.array([len(pair.a) + len(pair.b) for pair in pairs])
    assert abs(sizes[labels == 1].mean() - sizes[labels == 0].mean()) < 3
    for name, sign in SIGNS.items():
        assert accuracy_by(sign, pairs) < 0.6, name


def test_sentence_order_pairs(world: tuple[TokenStore, Tokenizer]) -> None:
    windows = SentenceWindows(world[0], 61)
    pairs = swapped_pairs(windows, np.arange(100), limit=10_000, seed=5, rng=np.random.default_rng(0))
    assert sum(pair.label for pair in pairs) == 50
    _, begins, ends = windows.bounds(np.arange(100))
    whole = 0
    for pair, begin, end in zip(pairs, begins, ends, strict=True):
        text = world[0].tokens[begin:end]
        if len(pair.a) + len(pair.b) == len(text):  # not one of those that are cut short
            whole += 1
            assert (np.concatenate([pair.b, pair.a] if pair.label else [pair.a, pair.b]) == text).all()
    assert whole > 80
    alone = [
        swapped_pairs(windows, np.arange(1), limit=10_000, seed=5, rng=np.random.default_rng(seed))[0].label
        for seed in range(200)
    ]
    assert 70 < sum(alone) < 130
    batch = steps(world, next_sentence="sop")(0)
    assert "nsp" in batch.targets
    assert "nsp" not in steps(world, next_sentence="off")(0).targets


# ---------------------------------------------------------------------- BERT's script, written plainly


def truncate_seq_pair(a: list[int], b: list[int], most: int, rng: random.Random) -> None:
    while len(a) + len(b) > most:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)


def gathered(sentences: list[list[int]], target: int) -> list[list[int]]:
    chunk: list[list[int]] = []
    for sentence in sentences:
        chunk.append(sentence)
        if sum(map(len, chunk)) >= target:
            break
    return chunk


def create_instances(documents: list[list[list[int]]], most: int, rng: random.Random) -> Iterator[tuple[Any, ...]]:
    """create_pretraining_data.py of google-research/bert: both texts, whether the second is random, the target."""
    for number, document in enumerate(documents):
        target = rng.randint(2, most) if rng.random() < 0.1 else most
        first = 0
        while first < len(document):
            chunk = gathered(document[first:], target)
            a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:a_end] for token in sentence]
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                other = documents[(number + rng.randint(1, len(documents) - 1)) % len(documents)]
                rest, first = gathered(other[rng.randrange(len(other)) :], target - len(a)), first + a_end
            else:
                rest, first = chunk[a_end:], first + len(chunk)
            b = [token for sentence in rest for token in sentence]
            truncate_seq_pair(a, b, most, rng)
            yield a, b, is_random, target


@pytest.fixture(scope="module")
def toy() -> TokenStore:
    """Every token another one, so that a pair tells where it is from: 40 documents of 150 sentences of 4 to 20."""
    sizes = np.random.default_rng(0).integers(4, 21, 40 * 150)
    sentences = np.concatenate([[0], np.cumsum(sizes)])
    meta = {"documents": 40, "tokens": int(sentences[-1])}
    return TokenStore(np.arange(sentences[-1]), sentences, np.arange(0, 40 * 150 + 1, 150), meta)


def test_pairs_in_sequence_have_no_gap(toy: TokenStore) -> None:
    limit, made, expected, rng = 61, [], [], random.Random(0)
    for phase in range(0, 60, 10):
        windows = SentenceWindows(toy, limit, phase)
        generator = np.random.default_rng(phase)
        made += sentence_pairs(windows, np.arange(pair_count(windows)), limit=limit, seed=phase, rng=generator)
        _, begins, ends = windows.bounds(np.arange(len(windows)))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            edges = [begin, *windows.sentence_starts(begin, end).tolist(), end]
            sentences = [[0] * (b - a) for a, b in itertools.pairwise(edges)]
            target = rng.randint(2, limit) if rng.random() < 0.1 else end - begin
            chunk = max(gathered(sentences, target), sentences[:2], key=len)
            expected.append(min(limit, sum(map(len, chunk))))
    true = [pair for pair in made if pair.label == 0]
    assert len(true) > 4000
    assert all(pair.a[-1] + 1 == pair.b[0] for pair in true)
    edges_of_sentences = set(toy.sentences.tolist())
    assert np.mean([int(pair.b[0]) in edges_of_sentences for pair in made]) > 0.97  # but where there is one sentence
    for label in (0, 1):
        sizes = [len(pair.a) + len(pair.b) for pair in made if pair.label == label]
        assert max(sizes) <= limit
        assert np.mean(sizes) == pytest.approx(np.mean(expected), rel=0.03)
        for share in (0.02, 0.05, 0.1, 0.3):
            assert np.quantile(sizes, share) == pytest.approx(np.quantile(expected, share), abs=4), share


def test_every_pair_has_two_texts(toy: TokenStore) -> None:
    """A first window of one or two tokens has none to split."""
    for task in (sentence_pairs, swapped_pairs):
        for phase in range(55, 61):
            windows = SentenceWindows(toy, 61, phase)
            rows = np.arange(pair_count(windows) if task is sentence_pairs else len(windows))
            made = task(windows, rows, limit=61, seed=0, rng=np.random.default_rng(0))
            assert min(min(len(pair.a), len(pair.b)) for pair in made) > 0


def test_the_originals_script_tells_as_much(toy: TokenStore) -> None:
    """Half of the pairs random or nearly, texts of equal length on average: there and here."""
    texts = [toy.tokens[a:b].tolist() for a, b in itertools.pairwise(toy.sentences)]
    documents = [texts[i : i + 150] for i in range(0, len(texts), 150)]
    theirs = [one for seed in range(4) for one in create_instances(documents, 61, random.Random(seed))]
    windows = SentenceWindows(toy, 61)
    ours = sentence_pairs(windows, np.arange(pair_count(windows)), limit=61, seed=0, rng=np.random.default_rng(0))
    assert np.mean([label for *_, label, _ in theirs]) == pytest.approx(np.mean([p.label for p in ours]), abs=0.08)
    for pairs in ([(a, b) for a, b, *_ in theirs], [(pair.a, pair.b) for pair in ours]):
        assert np.mean([len(a) / (len(a) + len(b)) for a, b in pairs]) == pytest.approx(0.5, abs=0.03)
        assert np.mean([len(a) + len(b) < 40 for a, b in pairs]) == pytest.approx(0.08, abs=0.05)
    gaps = [a[-1] + 1 != b[0] for a, b, is_random, _ in theirs if not is_random]
    assert np.mean(gaps) > 0.5  # it cuts at both ends of both texts


def test_where_a_text_is_cut_does_not_tell_the_order(toy: TokenStore) -> None:
    windows, edges, begins = SentenceWindows(toy, 61), set(toy.sentences.tolist()), ([], [])
    pairs = swapped_pairs(windows, np.arange(len(windows)), limit=61, seed=0, rng=np.random.default_rng(0))
    for pair in pairs:
        begins[pair.label].append(int(pair.a[0]) in edges)
    assert np.mean(begins[0]) < 0.9
    assert np.mean(begins[0]) == pytest.approx(np.mean(begins[1]), abs=0.1)


def test_a_shorter_row_gathers_the_sentences_of_the_original(toy: TokenStore) -> None:
    windows, rng = SentenceWindows(toy, 125), np.random.default_rng(0)
    _, begins, ends = windows.bounds(np.arange(len(windows)))
    for begin, end in zip(begins[:300].tolist(), ends[:300].tolist(), strict=True):
        edges = [begin, *windows.sentence_starts(begin, end).tolist(), end]
        sentences = [list(range(a, b)) for a, b in itertools.pairwise(edges)]
        target = int(rng.integers(2, 126))
        for last in (False, True):  # from its begin, or from its end
            expected = gathered(sentences[::-1] if last else sentences, target)
            if len(expected) == 1:  # two texts take two sentences
                expected = (sentences[::-1] if last else sentences)[:2]
            found = _shorter(windows, begin, end, target, last)
            places = [token for sentence in expected for token in sentence]
            assert found == (min(places), max(places) + 1)


def test_too_long_a_pair_loses_tokens_as_in_the_original() -> None:
    rng = random.Random(0)
    for _ in range(500):
        sizes, limit = (rng.randint(1, 30), rng.randint(1, 30)), rng.randint(2, 40)
        a, b = ([0] * size for size in sizes)
        truncate_seq_pair(a, b, limit, rng)
        assert excess(*sizes, limit) == (sizes[0] - len(a), sizes[1] - len(b))


def test_special_tokens_are_never_drawn_as_replacements(world: tuple[TokenStore, Tokenizer]) -> None:
    tokenizer = world[1]
    ids = np.full((64, 100), 50)
    masked = mask_tokens(
        ids,
        np.ones(ids.shape, dtype=bool),
        np.full(64, 100),
        np.random.default_rng(0),
        rate=0.5,
        mask_id=tokenizer.id("mask"),
        replacements=tokenizer.ordinary_ids,
    )
    changed = masked.ids[(masked.ids != 50) & (masked.ids != tokenizer.id("mask"))]
    assert len(changed)
    assert not np.isin(changed, tokenizer.special_ids).any()


def test_parts_of_a_batch_are_the_batch(world: tuple[TokenStore, Tokenizer]) -> None:
    make = steps(world)
    batch = make(3)
    parts = [make.part(batch, i, 4) for i in range(4)]
    assert sum(map(len, parts)) == len(batch)
    labels = [label for part in parts for label in part.targets["mlm"].labels.tolist()]
    assert labels == batch.targets["mlm"].labels.tolist()
    for part in parts:
        assert part.targets["mlm"].count == batch.targets["mlm"].count
        hidden = part.inputs["input_ids"].flatten()[part.targets["mlm"].predicted]
        assert ((hidden == world[1].id("mask")).float().mean() > 0.5).item()


def test_sample_is_deterministic_and_rich(tmp_path: Path) -> None:
    first, second = (list(sample.documents(3000, seed=0)) for _ in range(2))
    assert first == second
    assert all(5 <= len(document) <= 12 for document in first)
    words = {word.strip('.,!?"').lower() for document in first for line in document for word in line.split()}
    assert len(words) >= 1500
    shown = {
        split: {word for row in sentiment(split) for word in row["text"].lower().split()} for split in ("train", "test")
    }
    polar = {*sample.lexicon()["good"], *sample.lexicon()["bad"]}
    unseen = {word.strip(".,!") for word in shown["test"]} & polar
    assert unseen
    assert not unseen & {word.strip(".,!") for word in shown["train"]}
    assert unseen <= words


def test_labels_in_the_shape_of_rows_are_trimmed_with_them() -> None:
    """Of an accumulated step, whose parts have shorter rows; labels with positions are moved."""
    mask = torch.zeros(2, 64, dtype=torch.bool)
    mask[0, :5], mask[1, :9] = True, True
    labels, places = torch.full((2, 64), -1), torch.tensor([3, 64 + 8])
    labels[0, 3], labels[1, 8] = 7, 9
    targets = {
        "rows": Target(labels, torch.tensor(2)),
        "places": Target(torch.tensor([7, 9]), torch.tensor(2), places),
        "pair": Target(torch.tensor([0, 1]), torch.tensor(2)),
    }
    short = trim(Batch({"mask": mask, "input_ids": mask.long()}, targets, torch.arange(2)))
    width = short.mask.shape[1]
    assert 9 <= width < 64
    assert short.targets["rows"].labels.shape == short.mask.shape
    assert short.targets["rows"].predicted.tolist() == short.targets["places"].predicted.tolist() == [3, width + 8]
    assert short.targets["pair"].labels.tolist() == [0, 1]
