"""What version 0.12 wrote still opens, is scored as it was, and goes on: folders made by its code, at toy size."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path

import pytest
import torch

import pipeline
from tests.conftest import figures, run

pytestmark = pytest.mark.slow

MODELS = ("bert", "gpt", "elmo")
DATA = ["--data.sample_documents=120", "--data.tokenizer.vocab_size=200", "--data.length=24", "--data.batch_size=8"]
DATA += ["--data.validation_rows=16", "--model.optimization.warmup_steps=2", "--trainer.log_every_n_steps=2"]
DATA += ["--precision=32-true", "--trainer.max_steps=8", "--validate_every=4"]
SIZES = [f"--model.encoder.init_args.{size}" for size in ("size=16", "layers=1", "heads=2", "inner_size=32")]
SIZES += ["--model.encoder.init_args.max_length=32"]
WORDS = [f"--model.encoder.init_args.{size}" for size in ("filters=[[1,8],[2,8]]", "projection=8", "cell=16")]
WORDS += ["--model.encoder.init_args.cutoffs=[50]"]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MODEL/straight: a pretraining of 8 steps; killed: the same, killed after 6; tuned: its encoder, fine-tuned."""
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(Path(__file__).parent / "data/runs-0.12.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize("model", MODELS)
def test_a_killed_run_goes_on(older: Path, model: str) -> None:
    out = older / model / "killed"
    sizes = WORDS if model == "elmo" else SIZES
    run("pretrain", "--model", model, "--out", str(out), *DATA, *sizes, "--resume")
    end = figures(out)
    assert end["steps"] == 8
    older_end = figures(older / model / "straight")
    with open(out / "metrics.csv", newline="") as file:
        first, *_ = csv.DictReader(file)
    assert not [name for name in [*first, *end] if name.startswith("floor/")]
    for name in ("uniform", "unigram"):  # 0.12 logged them as floor/..., in the row that this run has kept
        near = 5e-3 if name == "unigram" else 1e-3  # 0.12 left the ends of documents out
        assert end[f"baseline/{name}"] == pytest.approx(older_end[f"floor/{name}"], rel=near)
        assert float(first[f"baseline/{name}"]) == pytest.approx(end[f"baseline/{name}"], rel=near)
    if model != "bert":  # whose pairs of sentences are others since
        before = pipeline.encoders.load(older / model / "straight/encoder")
        for name, value in pipeline.encoders.load(out / "encoder").state_dict().items():
            torch.testing.assert_close(value, before.state_dict()[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_fine_tuned_model_answers_as_it_did(older: Path, model: str) -> None:
    rows = [json.loads(line) for line in (older / model / "tuned/predictions.jsonl").read_text().splitlines()[:20]]
    answers = pipeline.load(older / model / "tuned/model").predict([row.get("text") or row["words"] for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        if model == "elmo":
            assert answer["tags"] == row["tags"]
        else:
            assert answer["probability"] == pytest.approx(row["probability"], abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_an_encoder_is_fine_tuned_and_evaluated(
    older: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = str(older / model / "straight/encoder")
    small = ["--data.epochs=1", "--data.train_rows=16", "--validations=1", "--trainer.max_steps=1"]
    run("finetune", "--model", model, "--from", encoder, "--out", str(tmp_path / "tuned"), *small)
    assert figures(tmp_path / "tuned")["steps"] == 1
    run("evaluate", "--model", model, "--from", encoder, *DATA[:1], "--data.length=24", "--data.batch_size=8")
    assert "loss" in capsys.readouterr().out
    if model != "elmo":  # whose few words are none of the prompts'
        run("zeroshot", "--model", model, "--from", encoder, "--out", str(tmp_path / "asked"), "--limit", "4")
        assert (tmp_path / "asked/predictions.jsonl").is_file()
