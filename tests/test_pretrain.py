"""Pretraining through its public command: learning, run folder, accumulation, resume, faults."""

from __future__ import annotations

import csv
import functools
import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

import pipeline
from pipeline.errors import UserError
from pipeline.experiments.resume_test import history
from pipeline.tracking.history import WALL_CLOCK
from pipeline.training.base_module import seed_generators
from pipeline.training.checkpoints import Latest
from pipeline.training.pretraining import Pretraining
from pipeline.training.schedules import rate_at
from pipeline.training.throughput import Speed
from tests.conftest import SMALL, assert_plot, figures, run, several, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow

SHORT = [*SMALL, "--validate_every=4"]


def test_learning_happens_and_the_run_folder_is_whole(pretrained: Path) -> None:
    end = figures(pretrained)
    assert end["val/mlm_loss"] < end["baseline/unigram"] < end["baseline/uniform"]
    assert end["val/perplexity"] == pytest.approx(math.exp(end["val/mlm_loss"]))
    for name in (
        "seconds",
        "tokens",
        "tokens_per_second",
        "parameters",
        "val/mlm_accuracy",
        "val/nsp_loss",
        "val/nsp_accuracy",
        "val/loss",
    ):
        assert name in end
    names = {path.name for path in pretrained.iterdir()}
    assert {"config.yaml", "metrics.json", "metrics.csv", "checkpoints", "encoder", "wandb", "curves.png"} <= names
    assert_plot(pretrained / "curves.png")
    assert [path.name for path in (pretrained / "checkpoints").iterdir()] == ["last.ckpt"]
    with open(pretrained / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    losses = [float(row["train/mlm_loss"]) for row in rows if row["train/mlm_loss"]]
    assert losses[-1] < losses[0] - 0.5
    assert [int(row["step"]) for row in rows] == sorted(int(row["step"]) for row in rows)
    resolved = yaml.safe_load((pretrained / "config.yaml").read_text())
    assert resolved["model"]["encoder"]["init_args"]["size"] == 64
    assert resolved["data"]["sample_documents"] == 300


def test_a_run_says_what_it_gets_out_of_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []
    monkeypatch.setattr(Speed, "on_train_end", lambda self, *_: counted.append(self.per_position), raising=False)
    flags = ["--trainer.max_steps=4", "--trainer.log_every_n_steps=2", "--model.objective.init_args.packing=concat"]
    flags += ["--model.optimization.optimizer=muon"]  # whose own products do not count
    run("pretrain", "--model", "gpt", "--out", str(tmp_path / "run"), *SHORT, *flags)
    end = figures(tmp_path / "run")
    assert {"flops_per_second", "share_of_peak", "data_share"} <= end.keys()
    assert "of what plain matrix products reach" in capsys.readouterr().out
    # Kaplan et al. 2020: 6 operations a parameter of the matrices and a token, and 12 T D a layer for attention's two
    # products, of which the full T x T are computed here.
    encoder = pipeline.encoders.load(tmp_path / "run/encoder")
    layers, size, length = encoder.config["n_layer"], encoder.size, encoder.max_length
    matrices = sum(block.up.weight.numel() * 2 + 4 * size**2 for block in encoder.blocks)
    matrices += encoder.word_embedding.weight.numel()
    assert counted == [pytest.approx(6 * matrices + 12 * layers * length * size, rel=0.02)]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("32-true", torch.float32),
        ("bf16-mixed", torch.bfloat16),
        ("bf16-true", torch.bfloat16),
        ("16-mixed", torch.float16),
        ("16-true", torch.float16),
        ("64-true", torch.float64),
    ],
)
def test_the_peak_is_that_of_the_precision(precision: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.dtype] = []
    monkeypatch.setattr("pipeline.training.throughput.matrix_peak", lambda kind, device: asked.append(kind))
    trainer: Any = SimpleNamespace(precision=precision)
    Speed().on_train_start(trainer, SimpleNamespace(device=torch.device("cpu")))
    assert asked == [dtype]


def test_the_learning_rate_of_a_step_is_the_one_that_it_took(tmp_path: Path) -> None:
    flags = ["--trainer.max_steps=6", "--trainer.log_every_n_steps=1", "--model.optimization.warmup_steps=2"]
    run("pretrain", "--out", str(tmp_path / "run"), *SHORT, *flags, "--model.optimization.learning_rate=2e-3")
    with open(tmp_path / "run/metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["train/learning_rate"]]
    rates = [2e-3 * rate_at(step, warmup=2, total=6, schedule="linear") for step in range(6)]
    assert [float(row["train/learning_rate"]) for row in rows] == pytest.approx(rates)


def test_profile_writes_a_table_and_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("profile", "--out", str(tmp_path), *SHORT)
    assert "aten::mm" in (tmp_path / "profile.txt").read_text()
    assert "aten::mm" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert not (tmp_path / "encoder").exists()
    run("profile", "--out", str(tmp_path), *SHORT)  # over its own
    (tmp_path / "profile.txt").unlink()
    with pytest.raises(UserError, match="holds an interrupted run"):
        run("profile", "--out", str(tmp_path), *SHORT)


def test_wandb_is_offline_with_the_agreed_names(pretrained: Path) -> None:
    [folder] = (pretrained / "wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    content = file.read_bytes()
    for text in (b"pretrain-finetune", b"val/mlm_loss", b"sample", b"artifact"):
        assert text in content


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "encoder/model.safetensors")


def test_a_run_leaves_nothing_in_its_process(tmp_path: Path) -> None:
    """Signals have the handlers that they had; the models of many runs do not pile up."""

    def models() -> int:
        gc.collect()
        return sum(type(thing) is Pretraining for thing in gc.get_objects())

    before, others = [signal.getsignal(number) for number in Latest.SIGNALS], models()
    for number in range(3):
        run("pretrain", "--out", str(tmp_path / str(number)), *SHORT, "--trainer.max_steps=2")
        assert [signal.getsignal(number) for number in Latest.SIGNALS] == before
    assert models() <= others + 1  # jsonargparse keeps its last parser


def test_no_clipping(tmp_path: Path) -> None:
    """0 is what Lightning calls no clipping, and not a gradient of length 0."""
    for name, value in (("none", "null"), ("zero", "0"), ("tiny", "1e-9")):
        run(
            "pretrain",
            "--out",
            str(tmp_path / name),
            *SHORT,
            "--trainer.max_steps=4",
            f"--trainer.gradient_clip_val={value}",
        )
    none, zero, tiny = (figures(tmp_path / name)["val/loss"] for name in ("none", "zero", "tiny"))
    assert zero == none
    assert tiny > none + 0.01


def test_rows_as_long_as_the_positions_of_an_encoder(tmp_path: Path) -> None:
    sizes = ["--data.length=44", "--model.encoder.init_args.max_length=44"]  # padding is to multiples of 8
    run("pretrain", "--out", str(tmp_path / "run"), *SHORT, "--trainer.max_steps=2", *sizes)
    assert math.isfinite(figures(tmp_path / "run")["val/loss"])


def test_same_seed_same_run_other_seed_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing cached either: the tokenizer is trained twice."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "caches" / name))
        flags = [*SHORT, "--trainer.max_steps=4", "--model.embeddings=cooccurrence"]
        run("pretrain", "--out", str(tmp_path / name), "--seed", str(seed), *flags)
    a, b, c = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["cls.predictions.bias"], c["cls.predictions.bias"])


def test_the_threads_that_users_have_give_equal_weights(tmp_path: Path) -> None:
    """As many as the machine has cores: all other tests have one."""
    environment = {name: value for name, value in surroundings().items() if name != "OMP_NUM_THREADS"}
    runs = [["pretrain", *SHORT, "--trainer.max_steps=4", "--out", str(tmp_path / name)] for name in "ab"]
    _, *script = several(*runs)
    subprocess.run([sys.executable, *script], env=environment, check=True, capture_output=True, timeout=300)
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[name], b[name]) for name in a)


LONGER = [*SMALL, "--validate_every=6", "--trainer.max_steps=36", "--trainer.accumulate_grad_batches=2"]
LONGER += ["--model.embeddings=cooccurrence"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "run"
    os.environ["PIPELINE_CACHE"] = str(cache)
    run("pretrain", "--out", str(folder), *LONGER)
    return folder


def test_interrupted_and_resumed_equals_uninterrupted(straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "interrupted"
    process = subprocess.Popen(
        [python(), "-m", "pipeline", "pretrain", "--out", str(out), *LONGER],
        env=surroundings(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (out / "checkpoints/last.ckpt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert not (out / "metrics.json").exists()
    state = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    assert state["global_step"] < 36
    with pytest.raises(UserError, match="interrupted run"):
        run("pretrain", "--out", str(out), *LONGER)
    run("pretrain", "--out", str(out), "--resume", *LONGER)
    one, two = weights(straight), weights(out)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert history(straight) == history(out)
    assert figures(out)["seconds"] > state["seconds"] > 0  # of both parts


def test_signals_ask_for_a_stop_while_a_run_trains(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in Latest.SIGNALS}
    for number in Latest.SIGNALS:
        latest = Latest(tmp_path / "last.ckpt")
        latest.on_train_start(None, None)  # type: ignore[arg-type]
        os.kill(os.getpid(), number)
        assert latest.stop_requested
        latest.on_exception(None, None, KeyboardInterrupt())
        assert {number: signal.getsignal(number) for number in Latest.SIGNALS} == before


def test_a_finished_run_is_not_overwritten(pretrained: Path, tmp_path: Path) -> None:
    before = (pretrained / "metrics.json").read_text()
    with pytest.raises(UserError, match="finished run"):
        run("pretrain", "--out", str(pretrained), *SHORT)
    assert (pretrained / "metrics.json").read_text() == before
    out = tmp_path / "again"
    run("pretrain", "--out", str(out), *SHORT, "--trainer.max_steps=2")
    (out / "notes.txt").write_text("mine")
    run("pretrain", "--out", str(out), "--overwrite", *SHORT, "--trainer.max_steps=3")
    assert figures(out)["steps"] == 3
    assert (out / "notes.txt").read_text() == "mine"


def test_a_finished_run_has_nothing_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, flags = tmp_path / "run", [*SHORT, "--trainer.max_steps=8"]
    run("pretrain", "--out", str(out), *flags)
    before = {path: path.read_bytes() for path in (out / "encoder").iterdir()}
    before |= {
        out / name: (out / name).read_bytes() for name in ("metrics.json", "metrics.csv", "lineage.json", "config.yaml")
    }
    run("pretrain", "--out", str(out), "--resume", *flags)
    assert "nothing left to do" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    run("pretrain", "--out", str(out), "--resume", *flags, "--trainer.log_every_n_steps=7")  # which has made nothing
    assert {path: path.read_bytes() for path in before} == before
    # Killed after its last step, before its figures were written.
    first = figures(out)
    (out / "metrics.json").unlink()
    run("pretrain", "--out", str(out), "--resume", *flags)
    again = figures(out)
    assert again.keys() == first.keys()
    facts = {"precision", "device", "version", "date", "energy_wh", "energy_source"}
    for name in first.keys() - {*facts, "seconds", *WALL_CLOCK}:
        assert again[name] == pytest.approx(first[name], rel=1e-6), name
    assert 0 < again["seconds"] <= first["seconds"]
    assert ": 8 steps of" in (out / "encoder/README.md").read_text()
    for path in (out / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="no checkpoint to resume"):
        run("pretrain", "--out", str(out), "--resume", *flags)
    assert (out / "encoder/model.safetensors").exists()


def test_a_loss_that_is_not_finite_stops_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.objectives.masked_lm import MaskedLM

    original, calls = MaskedLM.forward, []

    @functools.wraps(original)
    def breaks(self: MaskedLM, encoder: object, batch: object) -> dict:
        losses = original(self, encoder, batch)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 3 * 2:  # the last part of the third step
            losses["mlm"].sum = losses["mlm"].sum * math.nan
        return losses

    flags = [*SHORT, "--trainer.max_steps=9", "--trainer.accumulate_grad_batches=2"]
    with monkeypatch.context() as patch:
        patch.setattr(MaskedLM, "forward", breaks)
        with pytest.raises(UserError, match="not finite at step 2"):
            run("pretrain", "--out", str(tmp_path / "run"), *flags)
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    assert state["global_step"] == 2
    found = json.loads((tmp_path / "run/not_finite.json").read_text())
    assert (found["step"], found["what"], len(found["rows"]), len(found["texts"])) == (2, "loss", 16, 16)
    assert "[MASK]" in " ".join(found["texts"])
    assert all(value.isfinite().all() for value in state["state_dict"].values() if value.is_floating_point())
    run("pretrain", "--out", str(tmp_path / "run"), "--resume", *flags)  # nothing was wrong but the loss of that time
    run("pretrain", "--out", str(tmp_path / "straight"), *flags)
    one, two = weights(tmp_path / "straight"), weights(tmp_path / "run")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert history(tmp_path / "straight") == history(tmp_path / "run")


def test_a_step_asks_the_device_once(tmp_path: Path) -> None:
    """A GPU works ahead of Python until a figure is asked for: one is, whether loss and gradient are finite."""

    class Asked(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    counts = []
    for steps in (8, 16):
        with Asked() as asked:
            flags = ["--validate_every=100", "--trainer.log_every_n_steps=100", f"--trainer.max_steps={steps}"]
            run("pretrain", "--out", str(tmp_path / str(steps)), *SHORT, *flags)
        counts.append(asked.count)
    assert counts[1] - counts[0] == 2 * 8  # the other, whether there is padding, only a CPU is asked


def test_a_step_is_seeded_without_stack_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` keeps one for each kind of device that is not there, at every step."""
    torch.manual_seed(7)
    expected = torch.rand(3)
    monkeypatch.setattr("traceback.format_stack", lambda: pytest.fail("a stack trace"))
    seed_generators(7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), expected)


def test_one_warning_when_the_loss_stays_at_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model.optimization.learning_rate=1e-9", "--trainer.max_steps=16"]
    run("pretrain", "--out", str(tmp_path / "run"), *SHORT, *flags)
    printed = "".join(capsys.readouterr())
    assert printed.count("sits at the unigram baseline") == 1


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_schedule(schedule: str) -> None:
    rates = [rate_at(step, warmup=10, total=100, schedule=schedule) for step in range(101)]
    assert rates[0] > 0
    assert max(rates) == rates[10] == 1
    assert rates[100] == pytest.approx(0)
    assert rates == sorted(rates[:11]) + sorted(rates[11:], reverse=True)


@pytest.mark.parametrize("objective", ["sop", "off"])
def test_the_other_sentence_objectives_run(tmp_path: Path, objective: str) -> None:
    flags = [f"--model.objective.init_args.next_sentence={objective}", "--trainer.max_steps=4"]
    run("pretrain", "--out", str(tmp_path / "run"), *SHORT, *flags, "--model.objective.init_args.whole_word=true")
    assert ("val/nsp_loss" in figures(tmp_path / "run")) == (objective == "sop")
    config = json.loads((tmp_path / "run/encoder/config.json").read_text())
    assert config["architectures"] == ["BertForPreTraining" if objective == "sop" else "BertForMaskedLM"]


def test_loader_workers_change_nothing(tmp_path: Path) -> None:
    for workers in (0, 2):
        flags = [f"--data.workers={workers}", "--trainer.max_steps=4"]
        run("pretrain", "--out", str(tmp_path / str(workers)), *SHORT, *flags)
    one, two = weights(tmp_path / "0"), weights(tmp_path / "2")
    assert all(torch.equal(one[name], two[name]) for name in one)
