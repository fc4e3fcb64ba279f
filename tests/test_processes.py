"""Several processes: the same losses and scores as one, each row once, no waiting for one another at ragged ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import UserError
from pipeline.training.trainer import is_alone
from tests.conftest import SMALL, TWO, command, figures, losses, run, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow

EVERY = ["--trainer.log_every_n_steps=1", "--validate_every=10", "--trainer.max_steps=20"]


@pytest.mark.parametrize(
    ("second", "said"),
    [  # what a process of another machine may have of its own: a tokenizer, or no checkpoint, so that it is at step 0
        ("module.identity['content of the tokenizer'] = 'other'", "The processes have different data"),
        ("type(module).global_step = property(lambda self: 4)", "The machines do not see the same run folder"),
    ],
)
def test_processes_that_differ_are_told(tmp_path: Path, second: str, said: str) -> None:
    (tmp_path / "callback.py").write_text(
        "import os, lightning\n"
        "class Other(lightning.Callback):\n"
        "    def setup(self, trainer, module, stage):\n"
        "        if os.environ.get('LOCAL_RANK', '0') == '1':\n"
        f"            {second}\n"
    )
    settings = [*SMALL, *EVERY, *TWO, "--trainer.callbacks+=callback.Other"]
    done = command("pretrain", "--out", str(tmp_path / "two"), *settings, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("devices", "alone"),
    [(1, True), ("1", True), ([3], True), ("3,", True), (2, False), ([0, 1], False), ("auto", False)],
)
def test_one_device_by_its_number_is_one_process(devices: object, alone: bool) -> None:
    assert is_alone(SimpleNamespace(devices=devices, num_nodes=1)) == alone
    assert not is_alone(SimpleNamespace(devices=devices, num_nodes=2))


def test_batches_of_fine_tuning_can_be_made_in_processes_that_are_spawned(pretrained: Path, tmp_path: Path) -> None:
    """As on macOS."""
    script = "import multiprocessing, sys; from pipeline.__main__ import main\n"
    script += f"multiprocessing.set_start_method('spawn'); multiprocessing.set_executable({sys.executable!r})\n"
    script += "sys.exit(main())"
    settings = ["--task", "sentiment", "--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    settings += ["--data.train_rows=64", "--data.epochs=1", "--validations=1", "--data.workers=1"]
    done = subprocess.run(
        [python(), "-c", script, "finetune", *settings],
        capture_output=True,
        text=True,
        env=surroundings(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_fine_tuning_in_two_processes_with_ragged_ends(pretrained: Path, tmp_path: Path) -> None:
    # 129 rows in batches of 32: the last has one row, so one process has none; the parts to score are uneven too.
    settings = ["--task", "tagging", "--from", str(pretrained / "encoder"), "--data.train_rows=129", "--data.epochs=4"]
    settings += ["--model.recipe.dropout=0", "--precision=32-true", "--trainer.log_every_n_steps=1"]
    run("finetune", "--out", str(tmp_path / "one"), *settings)
    done = command("finetune", "--out", str(tmp_path / "two"), *settings, *TWO)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two"), abs=1e-4)
    ends = [figures(tmp_path / name) for name in ("one", "two")]
    for name in ("test/span_f1", "test/token_accuracy", "test/loss", "val/best_span_f1", "tokens"):
        assert ends[0][name] == pytest.approx(ends[1][name], abs=2e-3), name
    lines = [(tmp_path / name / "predictions.jsonl").read_text().count("\n") for name in ("one", "two")]
    assert lines[0] == lines[1] == ends[0]["test/rows"]


def test_fine_tuning_refuses_sharded_weights_by_any_name(pretrained: Path, tmp_path: Path) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    for strategy in ("fsdp", "lightning.pytorch.strategies.FSDPStrategy"):
        with pytest.raises(UserError, match="Sharded weights"):
            run("finetune", *where, f"--trainer.strategy={strategy}")
