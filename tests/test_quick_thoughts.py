"""Which text stands next to which: the loss against PyTorch's, its texts, its parts, and that it is learned."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertForMaskedLM

from pipeline import encoders
from pipeline.objectives.quick_thoughts import GROUP, NeighborRows, QuickThoughts
from pipeline.objectives.sampling import StepBatches
from tests.conformance import QUICK_THOUGHTS
from tests.conftest import figures, run, wordpiece_world

QUICK = f"--model.objective={QUICK_THOUGHTS}"
SIZES = {"layers": 1, "size": 64, "inner_size": 128, "heads": 2}
SMALL_BERT = ["--data.sample_documents=2000", "--data.length=64", "--trainer.max_steps=150", "--precision=32-true"]
SMALL_BERT += ["--model.optimization.learning_rate=4e-3", "--model.optimization.warmup_steps=20"]
SMALL_BERT += [f"--model.encoder.init_args.{name}={size}" for name, size in SIZES.items()]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> StepBatches:
    return StepBatches(
        QuickThoughts(), *wordpiece_world(tmp_path_factory.mktemp("world")), length=64, batch_size=32, seed=1
    )


def test_neighbors_stand_next_to_each_other(steps: StepBatches) -> None:
    rows, tokens = steps.rows, steps.store.tokens
    assert isinstance(rows, NeighborRows)
    index = torch.arange(len(rows)).numpy()
    _, begins, ends = rows.windows.bounds(index)
    texts = [pair.a.tolist() for pair in rows.draw(index, None)]  # type: ignore[arg-type]
    assert max(map(len, texts)) <= 62
    assert min(map(len, texts)) > 0
    whole = lost = 0
    for window, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        both = texts[2 * window] + texts[2 * window + 1]
        text = tokens[begin:end].tolist()
        whole += both == text
        lost += len(text) - len(both)
        assert any(text[cut : cut + len(both)] == both for cut in range(len(text) - len(both) + 1))
    assert whole > 0.95 * len(index)
    assert lost < 0.01 * len(tokens)


def test_the_loss_is_a_softmax_over_the_other_texts_of_a_group(steps: StepBatches) -> None:
    vectors = torch.randn(2 * GROUP, 8, generator=torch.Generator().manual_seed(0))

    class Fixed:
        pooled = staticmethod(lambda encoded: vectors)
        token_loss = staticmethod(lambda hidden, labels: None)

    batch = steps(0).select(slice(0, len(vectors)))
    encoded = type("Encoded", (), {"layers": [torch.zeros(*batch.mask.shape, 8)]})()
    ours = QuickThoughts().losses(Fixed(), encoded, batch)["neighbor"]  # type: ignore[arg-type]
    expected, correct = torch.zeros(()), 0
    for text in range(len(vectors)):
        low = text // GROUP * GROUP
        others = [other for other in range(low, low + GROUP) if other != text]
        logits = torch.stack([vectors[text] @ vectors[other] for other in others]) / 8**0.5
        neighbor = others.index(text + 1 if text % 2 == 0 else text - 1)
        expected = expected + F.cross_entropy(logits, torch.tensor(neighbor))
        correct += int(logits.argmax()) == neighbor
    assert ours.count == len(vectors)
    assert ours.sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert ours.correct is not None
    assert ours.correct.item() == correct


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_parts_hold_whole_groups(steps: StepBatches, parts: int) -> None:
    """So that every way of computing a step has one gradient."""
    batch = steps(3)
    shares = [steps.part(batch, index, parts) for index in range(parts)]
    assert [text for share in shares for text in share.rows.tolist()] == batch.rows.tolist()
    labels = torch.cat([share.targets["neighbor"].labels for share in shares])
    assert labels.tolist() == batch.targets["neighbor"].labels.tolist()
    assert all(len(share) % GROUP == 0 for share in shares)
    assert {int(share.targets["neighbor"].count) for share in shares} == {len(batch)}


@pytest.mark.parametrize(("windows", "counted"), [(3, 6), (8, 16), (10, 16), (23, 32)])
def test_texts_that_fill_no_group_have_no_neighbor(steps: StepBatches, windows: int, counted: int) -> None:
    """To choose among fewer texts is easier: the loss would depend on the size of batches."""
    rng = np.random.default_rng(0)
    batch = QuickThoughts().batch(steps.rows, np.arange(windows), steps.tokenizer, rng=rng)
    vectors = torch.zeros(2 * windows, 8, requires_grad=True)

    class Alike:
        pooled = staticmethod(lambda encoded: vectors[: len(encoded.layers[-1])])
        token_loss = staticmethod(lambda hidden, labels: None)

    losses = []
    for index in range(3):  # of one group each, of what fills none, or of nothing
        share = steps.objective.part(batch, index, 3)
        if len(share):
            encoded = type("Encoded", (), {"layers": [torch.zeros(*share.mask.shape, 8)]})()
            losses.append(QuickThoughts().losses(Alike(), encoded, share)["neighbor"])  # type: ignore[arg-type]
    assert int(batch.targets["neighbor"].count) == sum(loss.count for loss in losses) == counted
    total = torch.stack([loss.sum for loss in losses]).sum()
    total.backward()
    assert total.item() == pytest.approx(counted * math.log(min(counted, GROUP) - 1), rel=1e-5)


@pytest.mark.slow
def test_it_is_learned_and_opens_in_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    run("pretrain", "--out", str(out), *SMALL_BERT, QUICK)
    found = figures(out)
    assert found["val/neighbor_accuracy"] > 2 / (GROUP - 1)
    assert "neighbor_accuracy" in "".join(capsys.readouterr())
    encoder = encoders.load(out / "encoder")
    _, report = BertForMaskedLM.from_pretrained(out / "encoder", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    vectors = encoder.pooled(encoder.encode(["The cook likes the soup.", "The cook likes the soup.", "It rains."]))
    same, other = (F.cosine_similarity(vectors[0], vectors[i], dim=0) for i in (1, 2))
    assert same > other
