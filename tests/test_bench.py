"""The benchmarks measure what they say, at toy size: that the numbers are right is for `make bench` to show."""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.bench import __main__ as bench
from pipeline.bench import commands, decoding, output, scaling, steps, timing
from pipeline.bench.steps import Sizes
from pipeline.bench.timing import Built, Candidate, interleave
from pipeline.errors import UserError
from pipeline.models.layers.transformer_block import Block
from pipeline.objectives.batch import Batch, Target
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.training.hardware import best_precision, measured_peak

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _forks() -> Iterator[None]:
    """Candidates in forks of a process that has imported the libraries, instead of in processes that begin anew."""
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["lightning.pytorch", "transformers.models.bert", "transformers.models.gpt2"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SPAWN", forks)
        yield


TOY = Sizes(rows=4, length=16, size=32, layers=2, heads=2, vocab=600)


def sleeping(seconds: float) -> Built:
    return Built(lambda: time.sleep(seconds))


def products() -> Built:
    return Built(lambda: time.sleep(0.01), flops=1.0, dtype=torch.float32)  # bf16 is slow where it is not native


def slow() -> Built:
    return sleeping(0.2)


def quick() -> Built:
    return sleeping(0.02)


def broken() -> Built:
    raise ValueError("no such model")


def short_lived() -> Built:
    threading.Timer(0.3, os._exit, (1,)).start()  # as one that the system ends for memory while it waits
    return sleeping(0.0)


def test_candidates_take_turns_and_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    order, receive = [], timing._receive

    def noted(pipe: Any, name: str, **asked: Any) -> Any:
        order.append(name)
        return receive(pipe, name, **asked)

    monkeypatch.setattr(timing, "_receive", noted)
    results = interleave([Candidate("ours", quick, ours=True), Candidate("theirs", slow)], rounds=3)
    assert len(results["ours"].seconds) == len(results["theirs"].seconds) == 3
    assert min(results["ours"].seconds) >= 0.02  # as long as they sleep
    assert min(results["theirs"].seconds) >= 0.2
    turns = ["ours", "theirs"]
    assert order[: 2 * 4] == turns * 4  # both are built, then three rounds


def test_the_peak_is_measured_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be slower in one round than in another."""
    peaks: list[list[float]] = []

    def median(values: list[float]) -> float:
        peaks.append(values)
        return values[0]

    monkeypatch.setattr("pipeline.bench.timing.statistics", SimpleNamespace(median=median))
    interleave([Candidate("ours", products, ours=True)], rounds=3)
    assert len(set(peaks[0])) == 3


def test_a_candidate_that_fails_ends_the_comparison() -> None:
    with pytest.raises(UserError, match="process of 'ours' died"):
        interleave([Candidate("ours", broken)], rounds=1)
    with pytest.raises(UserError, match="process of 'ours' died"):
        interleave([Candidate("theirs", slow), Candidate("ours", short_lived)], rounds=9)


def test_output_layers_by_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"VOCABULARIES": (1024,), "ROWS": 2, "LENGTH": 8, "SIZE": 32}.items():
        monkeypatch.setattr(output, name, value)
    monkeypatch.setattr("sys.argv", ["bench", "output", "--rounds", "1", "--out", str(tmp_path)])
    assert bench.main() == 0
    said = capsys.readouterr().out
    assert "| 1,024 |" in said
    with open(tmp_path / "bench.csv", newline="") as file:
        assert [row["against"] for row in csv.DictReader(file)] == ["full output", "adaptive output"]


def test_a_row_says_where_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU: output layers where --device says, commands there, token stores on the processor."""
    measured = {"against": "another", "ratio": 1.0, "ours": 1.0, "theirs": 1.0, "unit": "s"}
    for name in ("output", "pretraining", "token-store"):
        monkeypatch.setitem(bench.WHOLE, name, lambda options, name=name: [{"work": name, **measured}])
    monkeypatch.setattr(bench, "best_precision", lambda: "bf16-mixed")  # would ask the GPU
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("sys.argv", ["bench", "output", "pretraining", "token-store", "--out", str(tmp_path)])
    assert bench.main() == 0
    with open(tmp_path / "bench.csv", newline="") as file:
        devices = {row["work"]: row["device"] for row in csv.DictReader(file)}
    assert devices == {"output": "cpu", "pretraining": "cuda", "token-store": "cpu"}


@pytest.mark.parametrize("name", ["bert-base", "gpt2-small", "bart", "elmo"])
def test_a_row_of_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The losses of ours and theirs are compared in it, in float32 and bf16."""
    toy = Sizes(rows=4, length=16, size=16, layers=1, heads=0, vocab=600) if name == "elmo" else TOY
    monkeypatch.setitem(bench.STEPS, name, (bench.STEPS[name][0], toy))
    monkeypatch.setattr("sys.argv", ["bench", name, "--rounds", "2", "--out", str(tmp_path)])
    assert bench.main() == 0
    with open(tmp_path / "bench.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    if name == "bart":
        beam = rows.pop()
        assert (beam["work"], beam["against"]) == ("bart, beam 5", "transformers, generate(num_beams=5)")
        assert float(beam["ratio"]) > 0
    assert len(rows) == (1 if name == "elmo" else 2)
    if name != "elmo":  # others have bf16 where ours have it
        native = best_precision("cpu") == "bf16-mixed"
        fastest = f"transformers {'bf16' if native else 'float32'}, fused AdamW"
        assert [row["against"] for row in rows] == ["transformers float32, AdamW", fastest]
    assert all(float(row["ratio"]) > 0 and 0 < float(row["share_of_peak"]) < 1 for row in rows)
    assert "times as fast" in capsys.readouterr().out


def test_searches_that_write_less_likely_texts_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(ours: list[int], theirs: list[int]) -> None:
        made = [[[token] for token in tokens] for tokens in (ours, theirs)]
        results = {name: timing.Result([1.0], {}, 0.0, 0.0, 0.0, texts) for name, texts in zip("ab", made, strict=True)}
        monkeypatch.setattr(decoding, "interleave", lambda candidates, rounds: results)
        decoding.decoding("transformer", TOY, argparse.Namespace(device="cpu", rounds=1))

    written([5, 6, 7, 8], [5, 6, 7, 8])
    assert "the same tokens for 4" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nats less likely than that of transformers"):
        written([5, 6, 7, 8], [6, 5, 8, 7])  # whichever is likelier, one of a pair is worse


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_compiled_steps_are_compiled(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(graph: torch.fx.GraphModule, inputs: object) -> object:
        return lambda *args: (calls.append(graph), graph(*args))[1]

    monkeypatch.setattr(Block, "compile", lambda block: torch.nn.Module.compile(block, backend=counting))
    plain, compiled, *_ = getattr(steps, kind)(TOY, tmp_path, device="cpu", compiled=True)
    ours = compiled.build()
    assert ours.losses == pytest.approx(plain.build().losses, rel=1e-5)
    ours.step()
    before = len(calls)
    ours.step()
    assert len(calls) - before >= TOY.layers


def test_rows_that_are_not_there_or_lack_their_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments, said in ((["bertt"], "no row bertt"), (["fine-tuning"], "needs DATA=")):
        monkeypatch.setattr("sys.argv", ["bench", *arguments, "--out", str(tmp_path)])
        assert bench.main() == 2
        assert said in capsys.readouterr().err


def test_pairs_for_the_trainer_are_ours_unmasked() -> None:
    """[CLS] 7 [MASK] [SEP] 8 [SEP] and padding, 9 masked."""
    batch = Batch(
        inputs={
            "input_ids": torch.tensor([[2, 7, 4, 3, 8, 3, 0, 0]]),
            "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 0, 0]]),
            "mask": torch.tensor([[True] * 6 + [False] * 2]),
        },
        targets={
            "mlm": Target(torch.tensor([9]), count=torch.tensor(1), positions=torch.tensor([2])),
            "nsp": Target(torch.tensor([1]), count=torch.tensor(1)),
        },
        rows=torch.tensor([0]),
    )
    expected = {"input_ids": [2, 7, 9, 3, 8, 3], "token_type_ids": [0, 0, 0, 0, 1, 1], "next_sentence_label": 1}
    assert commands.pairs_of(batch) == [expected]


def test_a_batch_costs_the_same_from_a_corpus_of_any_size() -> None:
    tokenizer = ByteBpe.train(scaling.steps.words(), vocab_size=400)
    small, large = (scaling.random_store(tokens, 300) for tokens in (20_000, 2_000_000))
    assert large.meta["tokens"] > 90 * small.meta["tokens"]
    maker = scaling.CausalLM("concat")
    assert scaling.batch_milliseconds(maker, small, tokenizer, 3) > 0
    peaks = []
    for store in (small, large):  # what a batch of a large corpus would touch more of, it would copy
        scaling.batch_milliseconds(maker, store, tokenizer, 1)
        tracemalloc.start()
        scaling.batch_milliseconds(maker, store, tokenizer, 3)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_the_peak_is_one_of_matrix_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 n^3 operations, in what is a quarter of a second by this clock."""
    monkeypatch.setattr("time.perf_counter", itertools.count(0, 0.25).__next__)
    assert measured_peak(torch.float32, torch.device("cpu")) == 2 * 1024**3 / 0.25
