"""Small worlds for the tests: everything offline, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("WANDB_SILENT", "true")
os.environ["OMP_NUM_THREADS"] = "1"  # before torch: models this small are faster so, and runs comparable

SMALL = [
    "--data.sample_documents=300",
    "--data.tokenizer.vocab_size=500",
    "--data.length=48",
    "--data.batch_size=16",
    "--data.validation_rows=64",
    "--model.encoder.init_args.size=64",
    "--model.encoder.init_args.layers=2",
    "--model.encoder.init_args.heads=2",
    "--model.encoder.init_args.inner_size=128",
    "--model.encoder.init_args.max_length=48",
    "--model.optimization.learning_rate=1e-3",
    "--model.optimization.warmup_steps=2",
    "--trainer.log_every_n_steps=2",
    "--precision=32-true",
]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _surroundings(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache for all tests, and a working directory for each."""
    monkeypatch.setenv("PIPELINE_CACHE", str(cache))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/dev/null")
    monkeypatch.chdir(tmp_path)


def run(*args: str, wandb: bool = False) -> None:
    """A verb in this process, as `python -m pipeline` would run it."""
    from pipeline import cli

    if not wandb:
        os.environ["WANDB_MODE"] = "disabled"
    try:
        cli.main(list(args))
    finally:
        os.environ.pop("WANDB_MODE", None)


def command(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ...` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "WANDB_MODE": "disabled", **environment},
        timeout=300,
    )


def figures(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The run folder of a small BERT, pretrained on the sample for a few steps."""
    folder = tmp_path_factory.mktemp("run") / "bert"
    os.environ["PIPELINE_CACHE"] = str(cache)
    steps = [
        "--trainer.max_steps=300",
        "--model.optimization.warmup_steps=50",
        "--validate_every=150",
        "--model.optimization.learning_rate=3e-3",
    ]
    run("pretrain", "--out", str(folder), *SMALL, *steps, wandb=True)
    return folder
