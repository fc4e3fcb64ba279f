"""What becomes of every registered model, at toy size: it is pretrained, resumed, evaluated and fine-tuned."""

from __future__ import annotations

import inspect
import json
import math
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

import pipeline
from pipeline.cli import config
from pipeline.errors import Interrupted, UserError
from pipeline.models import registry
from pipeline.training.checkpoints import Latest
from pipeline.training.requests import PretrainRequest
from tests.conformance import PRETRAINED, TOYS, TRAINED, flags, preset
from tests.conftest import TWO, figures, losses, run, several, surroundings

MODELS = PRETRAINED

trained = pytest.mark.parametrize("model", TRAINED, indirect=True)  # step by step


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def toy(model: str, toys: Callable[[str], Path]) -> Path:
    """Its run folder."""
    return toys(model)


# ---------------------------------------------------------------------- pretraining


def test_it_learns(toy: Path) -> None:
    end = figures(toy)
    losses = [end[name] for name in end if name.startswith("val/") and name.endswith("_loss") and "nsp" not in name]
    assert losses
    for loss in losses:
        assert loss < unigram(end) < uniform(end)
    assert all(math.isfinite(value) for value in end.values() if isinstance(value, float))


def unigram(end: dict[str, float]) -> float:
    return end["baseline/unigram"]


def uniform(end: dict[str, float]) -> float:
    return end["baseline/uniform"]


def test_its_config_repeats_it(model: str, toy: Path) -> None:
    """`--config config.yaml` takes what the run wrote, and gives the same settings."""
    request = PretrainRequest(model=preset(model), overrides=("--config", str(toy / "config.yaml")))
    written = yaml.safe_load((toy / "config.yaml").read_text())
    assert written["precision"] == "32-true"
    assert config.pretraining(request).repeatable == written


@pytest.mark.slow
def test_the_audit_passes(model: str, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("audit", *flags(model))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("pass", "FAIL"))]
    assert all(line.startswith("pass") for line in lines)
    named = " ".join(lines)
    for claim in ("a fresh model's loss", "padding does not matter", "the order in a batch does not matter"):
        assert claim in named
    encoder = pipeline.encoders.load(toy / "encoder")
    kinds = len(set(encoder.context) - {"full"}) + (encoder.reach is not None)
    kinds += encoder.scoring == "seq2seq"  # its decoder
    assert named.count("moves no other output") == kinds
    assert named.count("no gradient reaches") == (0 if TOYS[model].counts else kinds)


def weights(folder: Path, name: str = "encoder") -> dict[str, Tensor]:
    return load_file(folder / name / "model.safetensors")


def same(one: Path, two: Path, name: str = "encoder") -> bool:
    a, b = weights(one, name), weights(two, name)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


VARIANTS = [(model, variant) for model in TRAINED for variant in ("seed=0", *TOYS[model].variants)]


def dropout(model: str, rate: float) -> list[str]:
    """The setting of a rate, where the model has one."""
    constructor = registry.encoder_class(model).__init__
    return [f"model.encoder.init_args.dropout={rate}"] if "dropout" in inspect.signature(constructor).parameters else []


@pytest.mark.slow
@pytest.mark.parametrize(("model", "variant"), VARIANTS, indirect=["model"])
def test_interrupted_and_resumed_equals_uninterrupted(
    tmp_path: Path, model: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "save_at_words=[300,2000,2001]"
    averaged = "model.optimization.average_share=0.6"  # from step 5 on: the run is interrupted within
    more = flags(
        model, "trainer.max_steps=12", "validate_every=5", *dropout(model, 0.1), *variant.split(), points, averaged
    )
    run("pretrain", "--out", str(tmp_path / "straight"), *more)
    original = Latest.on_step_end

    def stop(self: Latest, trainer: Any, module: Any) -> None:
        self.stop_requested |= trainer.global_step == 7
        original(self, trainer, module)

    with monkeypatch.context() as patch:
        patch.setattr(Latest, "on_step_end", stop)
        with pytest.raises(Interrupted):
            run("pretrain", "--out", str(tmp_path / "halves"), *more)
    run("pretrain", "--out", str(tmp_path / "halves"), "--resume", *more)
    assert same(tmp_path / "straight", tmp_path / "halves")
    saved = [sorted(path.name for path in (tmp_path / run / "encoders").iterdir()) for run in ("straight", "halves")]
    assert saved == [["2001-words", "2k-words", "300-words"]] * 2
    assert all(same(tmp_path / "straight", tmp_path / "halves", f"encoders/{name}") for name in saved[0])
    early, late = (pipeline.encoders.load(tmp_path / "halves/encoders" / name) for name in ("300-words", "2k-words"))
    assert any(not torch.equal(a, b) for a, b in zip(early.parameters(), late.parameters(), strict=True))


@pytest.mark.slow
@trained
def test_accumulated_parts_give_the_same_weights(tmp_path: Path, model: str) -> None:
    for name, parts in (("whole", 1), ("parts", 4)):
        settings = ("trainer.max_steps=4", "validate_every=4", f"trainer.accumulate_grad_batches={parts}")
        run("pretrain", "--out", str(tmp_path / name), *flags(model, *settings, *dropout(model, 0.0)))
    one, four = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    # Adam divides by the root of tiny second moments, so rounding shows up to the order of the rate.
    for name, value in one.items():
        assert (value - four[name]).abs().max() < 5e-4, name
    ends = [figures(tmp_path / name) for name in ("whole", "parts")]
    assert ends[0]["val/loss"] == pytest.approx(ends[1]["val/loss"], abs=1e-4)
    assert ends[0]["tokens"] == ends[1]["tokens"]


def rows_seen(trace: Path) -> dict[int, list[int]]:
    """Micro-batch -> the rows that all processes saw in it."""
    found: dict[int, list[int]] = {}
    for line in trace.read_text().splitlines():
        row = json.loads(line)
        found[row["batch"]] = sorted([*found.get(row["batch"], []), *row["rows"]])
    return found


def in_one_or_two(model: str, folder: Path) -> list[str]:
    """A pretraining that notes its rows; the same in one process and in two."""
    settings = ("trainer.accumulate_grad_batches=2", "trainer.log_every_n_steps=1", "trainer.max_steps=8")
    trace = ["--trainer.callbacks+=pipeline.experiments.resume_test.Trace", f"--trainer.callbacks.file={folder}.jsonl"]
    return [
        "pretrain",
        "--out",
        str(folder),
        *flags(model, *settings, *dropout(model, 0.0), "validate_every=4"),
        *trace,
    ]


@pytest.fixture(scope="module")
def two_processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of all models that are tested, one after the other in the same two processes."""
    folder, asking = tmp_path_factory.mktemp("two"), test_two_processes_are_as_one.__name__
    models = [item.callspec.params["model"] for item in request.session.items if item.originalname == asking]  # type: ignore[attr-defined]
    runs = [[*in_one_or_two(model, folder / model), *TWO] for model in models]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "NODE_RANK": "0"}
    processes = [
        subprocess.Popen(
            several(*runs),
            env=surroundings(**address, LOCAL_RANK=str(rank)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for process in processes:
        error = process.communicate(timeout=300)[1]
        assert process.returncode == 0, error
    return folder


@pytest.mark.slow
@trained
def test_two_processes_are_as_one(two_processes: Path, model: str, tmp_path: Path) -> None:
    run(*in_one_or_two(model, tmp_path / "one"))
    there = two_processes / model
    assert rows_seen(tmp_path / "one.jsonl") == rows_seen(two_processes / f"{model}.jsonl")
    one, two = losses(tmp_path / "one"), losses(there)
    assert len(one) == len(two) == 8
    assert one == pytest.approx(two, abs=1e-5)
    ends = [figures(tmp_path / "one"), figures(there)]
    assert ends[0]["tokens"] == ends[1]["tokens"]
    for name in ends[0]:
        if name.startswith("val/"):
            assert ends[0][name] == pytest.approx(ends[1][name], rel=1e-5), name


# ---------------------------------------------------------------------- what becomes of it


def test_evaluate_gives_the_losses_of_validation(toy: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--from", str(toy / "encoder"), "--data.batch_size=16", "--data.sample_documents=300"]
    run("evaluate", "--model", preset(model), *args)
    shown = dict(line.split() for line in capsys.readouterr().out.splitlines() if len(line.split()) == 2)
    end = figures(toy)
    for name in ("perplexity", "bits_per_byte", "unknown"):
        if f"val/{name}" in end:  # there on 64 rows, here on all
            assert float(shown[name]) == pytest.approx(end[f"val/{name}"], rel=0.1, abs=0.02)


def fine_tune(toy: Path, model: str, task: str, arm: str, out: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The saved model, and the predictions of its test."""
    small = ["--data.epochs=1", "--data.train_rows=64", "--validations=1", "--precision=32-true"]
    where = ["--from", str(toy / "encoder"), "--out", str(out)]
    run("finetune", "--model", preset(model), "--task", task, "--arm", arm, *where, *small)
    tuned, before = load_file(out / "model/model.safetensors"), weights(toy)
    assert all(torch.equal(tuned.get(name, value[:0]), value) for name, value in before.items()) == (arm == "frozen")
    assert (out / "mix.png").exists() == (arm == "frozen")
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert len(rows) == figures(out)["test/rows"] > 100
    return pipeline.load(out / "model"), rows


@trained
@pytest.mark.parametrize("arm", ["frozen", "scratch"])  # in full: pairs and tags
def test_it_classifies_texts(toy: Path, model: str, arm: str, tmp_path: Path) -> None:
    tuned, rows = fine_tune(toy, model, "sentiment", arm, tmp_path / "run")
    for row, answer in zip(rows[:12], tuned.predict([row["text"] for row in rows[:12]]), strict=True):
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)


@trained
def test_it_classifies_pairs(toy: Path, model: str, tmp_path: Path) -> None:
    tuned, rows = fine_tune(toy, model, "entailment", "full", tmp_path / "run")
    for row, answer in zip(rows[:12], tuned.predict([tuple(row["text"]) for row in rows[:12]]), strict=True):
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-4)
    with pytest.raises(UserError, match="reads pairs"):
        tuned.predict(["one text"])


@trained
def test_it_tags_words(toy: Path, model: str, tmp_path: Path) -> None:
    tuned, rows = fine_tune(toy, model, "tagging", "full", tmp_path / "run")
    answers = tuned.predict([row["words"] for row in rows[:12]])
    assert [answer["tags"] for answer in answers] == [row["tags"] for row in rows[:12]]
