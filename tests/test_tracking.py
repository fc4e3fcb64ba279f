"""What a run tells: one W&B run without gap or step back, lineage, nothing secret; killed runs end as straight ones."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline import verify_resume
from pipeline.folders import sha256
from pipeline.tracking import CLOCKED, public
from tests.conftest import SMALL, command, run

SHORT = [*SMALL, "--validate_every=4", "--trainer.max_steps=12"]


def records(folder: Path) -> Iterator[Any]:
    """What an offline run of W&B has recorded: protocol buffers in the log format of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        content, place, parts = file.read_bytes(), 7, b""
        while place + 7 <= len(content):
            if 32768 - place % 32768 < 7:  # the end of a block is padded
                place += 32768 - place % 32768
                continue
            _, size, kind = struct.unpack("<IHB", content[place : place + 7])
            parts += content[place + 7 : place + 7 + size]
            place += 7 + size
            if kind in (1, 4):  # whole, or the last part
                record = wandb_internal_pb2.Record()
                record.ParseFromString(parts)
                yield record
                parts = b""


def history(folder: Path) -> list[dict[str, float]]:
    """Rows of figures, as W&B has them."""
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return [row for row in rows if "trainer/global_step" in row]


def test_a_killed_run_goes_on_in_the_same_run_without_gap_or_step_back(tmp_path: Path) -> None:
    run("pretrain", "--out", str(tmp_path / "straight"), *SHORT, wandb=True)
    out = tmp_path / "killed"
    kill = ["--trainer.callbacks+=pipeline.verify_resume.Kill", "--trainer.callbacks.step=11"]
    flags = ["pretrain", "--out", str(out), *SHORT]
    done = command(*flags, *kill, "--trainer.callbacks.moment=step", WANDB_MODE="offline")
    assert done.returncode == -signal.SIGKILL, done.stderr
    run(*flags, "--resume", wandb=True)
    for _ in range(100):  # W&B's own process has the last word
        if any(record.WhichOneof("record_type") == "exit" for record in records(out)):
            break
        time.sleep(0.1)
    parts = list((out / "wandb").glob("offline-run-*"))
    assert {part.name.split("-")[-1] for part in parts} == {(out / "wandb/run-id").read_text()}
    one, two = by_step(history(tmp_path / "straight")), by_step(history(out))
    assert list(two) == sorted(two)  # no step back
    assert list(one) == list(two)  # no gap
    for step, row in one.items():
        assert two[step] == pytest.approx(row, rel=1e-5)  # history keeps seven digits
    assert all("tokens" in row for row in two.values() if "train/loss" in row or "val/loss" in row)


def by_step(rows: list[dict[str, float]]) -> dict[float, dict[str, float]]:
    """Figures of each step, in the order in which the steps came; without what depends on the time.

    Nor has it the size of files: a curve drawn from seven digits may be a pixel, so some bytes, off.
    """
    found: dict[float, dict[str, float]] = {}
    for row in rows:
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float)) and name[0] != "_"}
        kept = {name: v for name, v in numbers.items() if name not in CLOCKED and not name.endswith("/size")}
        found.setdefault(row["trainer/global_step"], {}).update(kept)
    return found


def test_nothing_secret_is_logged(tmp_path: Path) -> None:
    """Neither environment, nor folders, nor user, nor text of files; the text of the sample and figures are."""
    private = tmp_path / "private-folder"
    private.mkdir()
    lines = [f"The xylograph {name} was zygomorphic.\n\n" for name in "abcdefghijklmnopqrstuvwxyz"]
    (private / "letters.txt").write_text("".join(lines) * 8)
    own = [flag for flag in SHORT if "sample_documents" not in flag]
    more = ["--data.tokenizer.vocab_size=150", "--trainer.max_steps=4"]
    args = ["pretrain", "--corpus", str(private), "--out", str(tmp_path / "run"), *own, *more]
    done = command(*args, WANDB_MODE="offline", SECRET_TOKEN="sesame-open")
    assert done.returncode == 0, done.stderr
    uploaded = [*(tmp_path / "run").glob("wandb/*/*.wandb"), *(tmp_path / "run").glob("wandb/*/files/**/*")]
    content = b"".join(file.read_bytes() for file in uploaded if file.is_file())
    assert b"private-folder" in content  # the name of the corpus
    for secret in (b"sesame-open", str(tmp_path).encode(), b"xylograph", b"zygo"):
        assert secret not in content, secret
    assert "xylograph" in (tmp_path / "run/examples.md").read_text()
    run(*args[:-1], "--trainer.max_steps=4", "--log_text=true", "--overwrite", wandb=True)
    tables = list((tmp_path / "run/wandb").rglob("*.table.json"))
    assert tables
    assert "xylograph" in tables[0].read_text()


def test_what_of_a_configuration_is_public() -> None:
    found = public({"files": "corpora/merger/*.txt", "hub": {"path": "org/set", "token": "hf_x"}, "a": ["/home/me/x"]})
    assert found == {"files": "*.txt", "hub": {"path": "org/set"}, "a": ["x"]}
    assert public("word / " * 200) == "word / " * 200


def test_a_score_can_be_traced_to_its_corpus(pretrained: Path, tmp_path: Path) -> None:
    encoder = pretrained / "encoder"
    stages = json.loads((encoder / "lineage.json").read_text())
    assert [stage["stage"] for stage in stages] == ["corpus", "validation text", "tokenizer", "pretrain", "encoder"]
    assert json.loads((pretrained / "lineage.json").read_text()) == stages
    assert stages[-1]["sha256"] == sha256(encoder / "model.safetensors")
    assert stages[3]["version"] == pipeline.__version__
    assert stages[3]["wandb"] == (pretrained / "wandb/run-id").read_text()
    more = ["--from", str(encoder), "--data.epochs=1", "--data.train_rows=40"]
    run("finetune", "--out", str(tmp_path / "tuned"), *more, wandb=True)
    run("zeroshot", "--from", str(encoder), "--out", str(tmp_path / "asked"), "--limit", "8")
    tuned = json.loads((tmp_path / "tuned/lineage.json").read_text())
    asked = json.loads((tmp_path / "asked/lineage.json").read_text())
    assert [stage["stage"] for stage in tuned[5:]] == ["task", "finetune", "model"]
    assert [stage["stage"] for stage in asked[5:]] == ["task", "zeroshot"]
    assert tuned[:5] == asked[:5] == stages
    assert tuned[-1]["sha256"] == sha256(tmp_path / "tuned/model/model.safetensors")
    assert str(tmp_path) not in json.dumps([tuned, asked])
    assert any(file.name.startswith("wrong") for file in (tmp_path / "tuned/wandb").rglob("*.table.json"))
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=encoder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_verify_resume(pretrained: Path, tmp_path: Path) -> None:
    """Three epochs with gradual unfreezing, accumulation and loader processes, killed at four moments."""
    flags = ["--from", str(pretrained / "encoder"), "--data.train_rows=160", "--data.epochs=3", "--data.workers=1"]
    flags += ["--model.craft.unfreeze_share=0.5", "--trainer.accumulate_grad_batches=2", "--precision=32-true"]
    found = verify_resume.verify("finetune", flags, Path("proof"), seed=0)  # a relative path, as users give
    assert found["passed"], found["differences"]
    assert [moment.split()[0] for moment in found["killed"]] == ["after", "saving", "validating", "after"]
    assert found["batches"] == 30
    assert "PASS finetune: 30 batches" in verify_resume.certificate(tmp_path, {"finetune": found}, model="bert")
    assert json.loads((tmp_path / "resume.json").read_text())["finetune"]["sha256"] == found["sha256"]


def test_verify_resume_sees_a_difference(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trace = f"--trainer.callbacks.file={tmp_path / name}.jsonl"
        seed = str(int(name == "two"))
        callback = ["--trainer.callbacks+=pipeline.verify_resume.Trace", trace]
        run("pretrain", "--out", str(tmp_path / name), "--seed", seed, *SHORT, *callback)
    found = " ".join(verify_resume.compare(tmp_path / "one", tmp_path / "two", "encoder"))
    for what in ("content of batch 0", "loss of batch 0", "metrics.csv", "last checkpoints", "weights in encoder"):
        assert what in found


@pytest.mark.parametrize("verb", ["sweep", "sync"])
def test_what_needs_the_server_says_so(verb: str, tmp_path: Path) -> None:
    (tmp_path / "runs/a/wandb/offline-run-1").mkdir(parents=True)
    environment = {k: v for k, v in os.environ.items() if k != "WANDB_MODE"}
    args = [sys.executable, "-m", "pipeline", verb]
    done = subprocess.run(args, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert "set WANDB_API_KEY" in done.stderr
