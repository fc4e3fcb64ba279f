"""BERT with rows that are read from left to right: batches, losses against transformers, audit, learning."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import BertLMHeadModel

from pipeline import encoders
from pipeline.errors import UserError
from pipeline.models.bert import Bert
from pipeline.objectives.causal_rows import MaskedAndCausalLM, evenly
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.sampling import StepBatches
from tests.conformance import CAUSAL_ROWS
from tests.conftest import figures, run, wordpiece_world

TOTAL = 20


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> StepBatches:
    return StepBatches(
        MaskedAndCausalLM(),
        *wordpiece_world(tmp_path_factory.mktemp("world")),
        length=48,
        batch_size=16,
        seed=1,
        total=TOTAL,
    )


def small(steps: StepBatches) -> Bert:
    torch.manual_seed(0)
    sizes = {"size": 32, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 64}
    return Bert(steps.tokenizer, **sizes, dropout=0.0, attention_dropout=0.0, initialization="local").eval()  # type: ignore[arg-type]


def test_a_share_of_the_rows_is_read_from_left_to_right_and_later_none(steps: StepBatches) -> None:
    plain = StepBatches(MaskedLM(), steps.store, steps.tokenizer, length=48, batch_size=16, seed=1, total=TOTAL)
    batch, masked = steps(0), plain(0)
    causal = batch.inputs["causal"]
    assert causal.sum() == 4
    clean = masked.inputs["input_ids"].flatten().clone()
    clean[masked.targets["mlm"].predicted] = masked.targets["mlm"].labels
    clean = clean.view(masked.mask.shape)
    assert torch.equal(batch.inputs["input_ids"][causal], clean[causal])
    assert torch.equal(batch.inputs["input_ids"][~causal], masked.inputs["input_ids"][~causal])
    assert not batch.inputs["token_type_ids"][causal].any()
    mlm, clm, nsp = (batch.targets[name] for name in ("mlm", "clm", "nsp"))
    width = batch.mask.shape[1]
    assert mlm.positions is not None
    assert clm.positions is not None
    assert not causal[mlm.positions // width].any()
    assert mlm.count == len(mlm.labels)
    expected = [token for row in clean[causal] for token in row[1:][row[1:] != 0].tolist()]
    assert clm.labels.tolist() == expected
    assert clm.count == len(expected)
    assert (nsp.labels[causal] == -1).all()
    assert torch.equal(nsp.labels[~causal], masked.targets["nsp"].labels[~causal])
    assert nsp.count == 12
    assert "clm" in steps(TOTAL * 3 // 4 - 1).targets
    late, same = steps(TOTAL * 3 // 4), plain(TOTAL * 3 // 4)
    assert set(late.targets) == {"mlm", "nsp"}
    assert torch.equal(late.inputs["input_ids"], same.inputs["input_ids"])


def test_rows_are_spread() -> None:
    assert evenly(8, 0.25, begin=0).tolist() == [False, False, False, True] * 2
    assert evenly(8, 0.25, begin=0.5).tolist() == [False, True, False, False] * 2
    assert evenly(100, 0.53, begin=0).sum() == 53
    found = [int(evenly(2, 0.25, begin=number / 100).sum()) for number in range(100)]
    assert sum(found) == 50  # of 200


def test_the_losses_are_those_of_transformers(steps: StepBatches, tmp_path: Path) -> None:
    model, batch = small(steps), steps(0)
    model.save(tmp_path)
    theirs, info = BertLMHeadModel.from_pretrained(tmp_path, is_decoder=True, output_loading_info=True)
    assert not info["missing_keys"]
    losses = MaskedAndCausalLM()(model, batch)
    causal = batch.inputs["causal"]
    ids, mask = batch.inputs["input_ids"][causal], batch.mask[causal]
    with torch.no_grad():
        logits = theirs.eval()(input_ids=ids, attention_mask=mask.long()).logits
    labels = ids[:, 1:].masked_fill(~mask[:, 1:], -100)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    assert losses["clm"].sum.item() == pytest.approx(expected.item(), rel=1e-4)
    first = int(causal.nonzero()[0]) + 1
    plain = MaskedLM()(model, batch.select(slice(first, first + 3)))  # rows between two that are causal
    width = batch.mask.shape[1]
    kept = (batch.targets["mlm"].predicted >= first * width) & (batch.targets["mlm"].predicted < (first + 3) * width)
    hidden = model(batch.inputs).layers[-1].flatten(0, 1)[batch.targets["mlm"].predicted[kept]]
    assert model.token_loss(hidden, batch.targets["mlm"].labels[kept]).sum.item() == pytest.approx(
        plain["mlm"].sum.item(), rel=1e-4
    )
    assert losses["nsp"].count == 12


def test_parts_of_a_batch_give_the_same_sums(steps: StepBatches) -> None:
    model, batch, objective = small(steps), steps(1), MaskedAndCausalLM()
    whole = objective(model, batch)
    parts = [objective(model, objective.part(batch, index, 3)) for index in range(3)]
    for name, loss in whole.items():
        assert sum(part[name].sum.item() for part in parts) == pytest.approx(loss.sum.item(), rel=1e-4)


def test_the_audit_sees_a_leak(steps: StepBatches) -> None:
    model, objective = small(steps), MaskedAndCausalLM()
    after = StepBatches(objective, steps.store, steps.tokenizer, length=48, batch_size=16, seed=1)
    batches = [after(step) for step in range(2)]
    assert not [str(check) for check in objective.checks(model, after, batches) if not check.passed]
    forward = model.forward
    model.forward = lambda batch, state=None: forward({k: v for k, v in batch.items() if k != "causal"})  # type: ignore[assignment]
    failed = {check.name for check in objective.checks(model, after, batches) if not check.passed}
    assert failed == {"rows from left to right do not see what follows"}


@pytest.mark.slow
def test_it_is_learned_and_generates_in_transformers(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = [f"--model.encoder.init_args.{name}={size}" for name, size in (("layers", 1), ("size", 64), ("heads", 2))]
    flags = [*sizes, "--model.encoder.init_args.inner_size=128", "--data.sample_documents=600", "--data.length=48"]
    flags += ["--data.tokenizer.vocab_size=500"]
    flags += ["--trainer.max_steps=200", "--model.optimization.warmup_steps=20", "--precision=32-true"]
    flags += ["--model.optimization.learning_rate=4e-3", "--validate_every=200"]
    run("pretrain", "--model=bert", f"--out={out}", f"--model.objective={CAUSAL_ROWS}", *flags)
    metrics = figures(out)
    assert metrics["val/mlm_loss"] < metrics["baseline/unigram"] - 0.1
    assert "val/clm_loss" not in metrics
    with open(out / "metrics.csv", newline="") as file:
        causal = [float(row["train/clm_loss"]) for row in csv.DictReader(file) if row.get("train/clm_loss")]
    assert causal[-1] < metrics["baseline/unigram"] - 0.5
    model = BertLMHeadModel.from_pretrained(out / "encoder", is_decoder=True)
    ids = encoders.load(out / "encoder").encode(["the cook"]).input_ids[:, :-1]
    assert model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5).shape[1] > ids.shape[1]


@pytest.mark.parametrize("options", [{"causal_share": 1.0}, {"causal_until": 0.0}], ids=str)
def test_what_is_no_share_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} must lie between 0 and 1"):
        MaskedAndCausalLM(**options)
