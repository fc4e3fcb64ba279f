"""What a run tells: one W&B run without gap or step back, lineage, nothing secret; killed runs end as straight ones."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wandb
import yaml
from lightning.pytorch.loggers import CSVLogger

import pipeline
from pipeline.errors import UserError
from pipeline.experiments import resume_test as verify_resume
from pipeline.storage.checksums import sha256
from pipeline.tracking import lineage, plots
from pipeline.tracking.history import WALL_CLOCK
from pipeline.tracking.public import public
from pipeline.tracking.wandb import wandb_logger
from pipeline.training import loggers, run_folder
from pipeline.training.requests import FineTuneRequest
from tests.conftest import SMALL, command, figures, run, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow

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
            if place + 7 + size > len(content):  # W&B's own process is still writing it
                break
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


def all_records(folder: Path) -> list[Any]:
    """When W&B's own process has had the last word."""
    for _ in range(100):
        found = list(records(folder))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            break
        time.sleep(0.1)
    return found


def artifacts(folder: Path) -> list[Any]:
    found = [record.artifact for record in all_records(folder) if record.WhichOneof("record_type") == "artifact"]
    return [artifact for artifact in found if artifact.type != "run_table"]


def test_a_killed_run_goes_on_in_the_same_run_without_gap_or_step_back(tmp_path: Path) -> None:
    run("pretrain", "--out", str(tmp_path / "straight"), *SHORT)
    out = tmp_path / "killed"
    kill = ["--trainer.callbacks+=pipeline.experiments.resume_test.Kill", "--trainer.callbacks.step=11"]
    flags = ["pretrain", "--out", str(out), *SHORT]
    done = command(*flags, *kill, "--trainer.callbacks.moment=step")
    assert done.returncode == -signal.SIGKILL, done.stderr
    run(*flags, "--resume")
    all_records(out)
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
        kept = {name: v for name, v in numbers.items() if name not in WALL_CLOCK and not name.endswith("/size")}
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
    done = command(*args, SECRET_TOKEN="sesame-open")
    assert done.returncode == 0, done.stderr
    uploaded = [*(tmp_path / "run").glob("wandb/*/*.wandb"), *(tmp_path / "run").glob("wandb/*/files/**/*")]
    content = b"".join(file.read_bytes() for file in uploaded if file.is_file())
    assert not [file.name for file in uploaded if "requirements" in file.name]
    assert artifacts(tmp_path / "run") == []  # it would hold the vocabulary
    assert b"private-folder" in content  # the name of the corpus
    for secret in (b"sesame-open", str(tmp_path).encode(), b"xylograph", b"zygo"):
        assert secret not in content, secret
    assert "xylograph" in (tmp_path / "run/examples.md").read_text()
    run(*args[:-1], "--trainer.max_steps=4", "--log_text=true", "--overwrite")
    tables = list((tmp_path / "run/wandb").rglob("*.table.json"))
    assert tables
    assert "xylograph" in tables[0].read_text()
    assert [artifact.name for artifact in artifacts(tmp_path / "run")] == ["bert-private-folder"]


def test_answers_about_private_texts_stay_here(pretrained: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    rows = "text\tlabel\nThe xylograph was fine.\tpositive\nThe soup was cold.\tnegative\n"
    (texts / "test.tsv").write_text(rows)
    flags = ["zeroshot", "--task", "sentiment", "--from", str(pretrained / "encoder"), "--data", str(texts)]
    for name, more in (("kept", []), ("sent", ["--log-text"])):
        run(*flags, "--out", str(tmp_path / name), *more)
        files = [file for file in (tmp_path / name / "wandb").rglob("*") if file.is_file()]
        content = b"".join(file.read_bytes() for file in files)
        assert content
        assert (b"xylograph" in content) == (name == "sent")
        assert "xylograph" in (tmp_path / name / "predictions.jsonl").read_text()


def test_long_names_are_cut_in_tags(tmp_path: Path) -> None:
    name = "wikipedia_en_20231101_sentences_shuffled_deduplicated_part_000.jsonl"
    logger = wandb_logger(tmp_path, job_type="x", group="x", tags=["bert", name], config={}, corpora=[name, ""])
    assert logger is not None
    assert set(logger.experiment.tags) == {"bert", name[:64]}
    logger.experiment.finish()


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
    run("finetune", "--out", str(tmp_path / "tuned"), *more)
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


def test_what_a_run_makes_is_a_version_of_one_artifact(pretrained: Path, tmp_path: Path) -> None:
    """One name for all runs, so that W&B counts v0, v1; what came of a private encoder is private."""
    [artifact] = artifacts(pretrained)
    content = sha256(pretrained / "encoder/model.safetensors")
    assert artifact.name == "bert-sample"
    assert set(artifact.aliases) == {"latest", content[:12]}
    metadata = json.loads(artifact.metadata)
    assert metadata["sha256"] == content
    assert metadata["steps"] == figures(pretrained)["steps"]
    assert not {"device", "date"} & metadata.keys()  # of the machine
    stages = json.loads((pretrained / "encoder/lineage.json").read_text())
    assert lineage.is_public(stages)
    assert not lineage.is_public([stage for stage in stages if stage["stage"] == "encoder"])  # that of somebody else
    stages[3].pop("public")
    assert not lineage.is_public(stages)
    shutil.copytree(pretrained / "encoder", tmp_path / "private")
    (tmp_path / "private/SHA256SUMS").unlink()
    (tmp_path / "private/lineage.json").write_text(json.dumps(stages))
    more = ["--data.epochs=1", "--data.train_rows=40"]
    for name, flags, names in (("a", [], []), ("b", ["--log_text=true"], ["bert-sample-sentiment"])):
        out = tmp_path / name
        run("finetune", "--from", str(tmp_path / "private"), "--out", str(out), *more, *flags)
        assert [artifact.name for artifact in artifacts(out)] == names


def test_names_of_baselines_stand_at_their_lines() -> None:
    """Also where a later curve moves the limits: those of a flat curve are wider than what is drawn."""
    _, axes = plots.subplots()
    axes.plot([1, 2], [0.5, 0.5])
    plots.draw_baselines(axes, {"majority": 0.5, "bag of words": 0.518})
    axes.plot(1, 0.5, "*")
    low, high = axes.get_ylim()
    assert [name.xy[1] for name in axes.texts] == pytest.approx(
        [(value - low) / (high - low) for value in (0.5, 0.518)]
    )


def test_what_weights_and_biases_has_of_a_fine_tune(pretrained: Path, tmp_path: Path) -> None:
    """Offline too: the encoder it used, best and last in the summary, baselines as lines, charts; no machine."""
    out = tmp_path / "tuned"
    flags = ["--data.epochs=2", "--data.train_rows=64", "--validations=2", "--trainer.log_every_n_steps=1"]
    run("finetune", "--from", str(pretrained / "encoder"), "--out", str(out), *flags, "--wandb.code=true")
    found = all_records(out)
    [about] = [record.run for record in found if record.WhichOneof("record_type") == "run"]
    assert about.display_name == "bert-sentiment-full-seed0"
    assert list(about.tags) == ["bert", "sentiment", "full", "seed0", "sample"]
    assert about.host == ""
    assert {"command", "folder"} <= {item.key for item in about.config.update}
    used, made = artifacts(out)
    [encoder] = artifacts(pretrained)
    assert (used.name, used.digest, used.use_after_commit) == (encoder.name, encoder.digest, True)
    assert (made.name, made.use_after_commit) == ("bert-sample-sentiment", False)
    assert {"latest", "full"} <= set(made.aliases)
    updates = [
        item for record in found if record.WhichOneof("record_type") == "summary" for item in record.summary.update
    ]
    summary = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in updates}
    end, rows = figures(out), history(out)
    assert summary["val/accuracy"]["max"] == pytest.approx(end["val/best_accuracy"])
    assert summary["val/loss"].keys() == {"min", "last"}
    assert summary["test/accuracy"] == end["test/accuracy"]
    assert not {"device", "date"} & summary.keys()
    lines = [(row["trainer/global_step"], row["baseline/majority"]) for row in rows if "baseline/majority" in row]
    assert lines == [(0, end["baseline/majority"]), (end["steps"], end["baseline/majority"])]
    assert all(row["train/grad_norm"] > 0 for row in rows if "train/loss" in row)
    charts = {name.split("_table")[0] for row in rows for name in row if name.startswith("charts/")}
    assert charts == {"charts/confusion", "charts/precision_recall"}


def test_a_logger_of_lightning_writes_into_the_run_folder(pretrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    flags = ["--data.epochs=1", "--data.train_rows=32", "--trainer.logger=CSVLogger", "--trainer.logger.name=own"]
    run("finetune", "--from", str(pretrained / "encoder"), "--out", str(out), *flags)
    [written] = (out / "loggers").rglob("metrics.csv")
    assert "loggers" in run_folder.RUN_FILES  # which --overwrite clears
    *_, last = csv.DictReader(written.read_text().splitlines())
    assert written.parent.parent.name == "own"
    assert float(last["test/accuracy"]) == pytest.approx(figures(out)["test/accuracy"])
    settings = yaml.safe_load((written.parent / "hparams.yaml").read_text())
    assert settings["trainer.logger.init_args.save_dir"] == "{out}/loggers"  # the same in another run folder
    assert settings["data.epochs"] == 1


class Recorder(CSVLogger):
    """In place of MLflow's logger, with its arguments."""

    def __init__(self, tracking_uri: str | None = None, artifact_location: str | None = None) -> None:
        super().__init__(".")
        self.settings = (tracking_uri, artifact_location)


def test_mlflow_has_its_database_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its versions since 3.13 refuse the plain files that Lightning would have."""
    places = loggers.places("MLFlowLogger")
    [made] = loggers.make_loggers({"class_path": f"{__name__}.Recorder", "init_args": places}, tmp_path)
    assert isinstance(made, Recorder)
    assert made.settings == (f"sqlite:///{tmp_path}/loggers/mlflow.db", f"{tmp_path}/loggers/artifacts")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert not loggers.places("MLFlowLogger")


def state() -> dict[str, Any]:
    """What of a process a run could leave changed."""
    return {
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("KMP_")},  # sklearn's
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)},
        "torch": (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()),
        "precision": torch.get_float32_matmul_precision(),
        "gradients": torch.is_grad_enabled(),
        "wandb": wandb.run,
        "locks": dict(run_folder.LOCKS),
        "folder": Path.cwd(),
    }


def test_runs_of_one_process_leave_nothing_to_each_other(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    encoder = ["--from", str(pretrained / "encoder")]
    grid = tmp_path / "grid.yaml"
    arms = "{full: {seeds: 1}, scratch: {seeds: 1}}"
    grid.write_text(f"{{models: [bert], tasks: [sentiment], arms: {arms}, encoders: x}}")
    tiny = ["--data.epochs=1", "--data.train_rows=32", "--validations=1", "--precision=32-true"]
    commands = {
        "pretrain": [*SHORT, "--trainer.max_steps=4"],
        "finetune": [*encoder, *tiny],
        "zeroshot": [*encoder, "--limit", "4"],
        "compare": ["--name", str(grid), *encoder, *tiny],
    }
    before, found = state(), {}
    for again in ("first", "second"):
        for name, flags in commands.items():
            out = tmp_path / again / name
            run(name, "--out", str(out), *flags)
            assert state() == before, f"{again} {name}"
            if name != "compare":
                end = json.loads((out / "metrics.json").read_text())
                kept = {
                    name: value
                    for name, value in end.items()
                    if name not in (*WALL_CLOCK, "seconds", "date", "energy_wh")
                }
                assert found.setdefault(name, kept) == kept
        nope = ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", "--trainer.callbacks.monitor=nope"]
        with pytest.raises(UserError, match="monitors a metric"):
            run("finetune", "--out", str(tmp_path / again / "failed"), *encoder, *tiny, *nope)
        assert state() == before
    names = [(path / "wandb/run-id").read_text() for path in tmp_path.glob("*/*") if (path / "wandb").is_dir()]
    assert len(set(names)) == len(names) == 10  # the grid's table is a run too
    assert not list((tmp_path / "home").rglob("artifacts"))  # no copies of weights or tables in the user's folders


def test_verify_resume(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three epochs with gradual unfreezing, accumulation and loader processes, killed at four moments."""
    monkeypatch.setattr("sys.executable", python())
    settings = {"data.train_rows": 160, "data.epochs": 3, "data.workers": 1, "precision": "32-true"}
    settings |= {"model.recipe.unfreeze_share": 0.5, "trainer.accumulate_grad_batches": 2}
    settings |= {"model.optimization.average_share": 0.5}
    request = FineTuneRequest(encoder=pretrained / "encoder").override(settings)
    found = verify_resume.verify("finetune", request, Path("proof"), seed=0)  # a relative path, as users give
    assert found["passed"], found["differences"]
    assert [moment.split()[0] for moment in found["killed"]] == ["after", "saving", "validating", "after"]
    assert found["batches"] == 30
    assert "PASS finetune: 30 batches" in verify_resume.certificate(tmp_path, {"finetune": found}, model="bert")
    assert json.loads((tmp_path / "resume.json").read_text())["finetune"]["sha256"] == found["sha256"]


def test_data_are_of_the_task_where_the_corpus_has_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str | None] = {}

    def verify(kind: str, request: Any, out: Path, *, seed: int) -> dict[str, bool]:
        seen[kind] = request.data
        return {"passed": True}

    monkeypatch.setattr(verify_resume, "verify", verify)
    monkeypatch.setattr(verify_resume, "certificate", lambda *args, **options: "")
    for corpus, wanted in (("sample", (None, "here")), ("wikitext2", ("here", None))):
        run("verify-resume", "--corpus", corpus, "--task", "sst2", "--data", "here", "--out", str(tmp_path / corpus))
        assert (seen["pretrain"], seen["finetune"]) == wanted


def test_too_few_validations_to_kill_at_are_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="20 steps with a validation after each 6 are too few"):
        run("verify-resume", "--out", str(tmp_path / "proof"), "--steps", "20")
    assert not (tmp_path / "proof").exists()


def test_the_whole_checkpoint_is_compared(tmp_path: Path) -> None:
    """But for time, energy and places; what resumes mean weights, fp16, patience and the best checkpoint counts."""
    torch.manual_seed(0)
    weight, stop, best = torch.randn(2, 2), "EarlyStopping{}", "ModelCheckpoint{}"

    def saved(name: str, callbacks: dict[str, Any] | None = None, **others: Any) -> str:
        place = str(tmp_path / name / "checkpoints")
        kept = {"dirpath": place, "best_model_path": f"{place}/best.ckpt", "best_k_models": {f"{place}/best.ckpt": 0.5}}
        kept |= {"kth_best_model_path": "", "last_model_path": "", "current_score": name, "best_model_score": 0.5}
        state = {
            **{"state_dict": {"weight": weight}, "loops": {}, "sums": {}, "lr_schedulers": [], "global_step": 3},
            **{"optimizer_states": [{"state": {}, "param_groups": []}], "seconds": len(name), "identity": {"at": name}},
            "callbacks": {"Energy": {"energy_wh": len(name)}, best: kept, stop: {"wait_count": 1}, **(callbacks or {})},
            **others,
        }
        Path(place).mkdir(parents=True)
        torch.save(state, Path(place) / "last.ckpt")
        return verify_resume.state_hash(tmp_path / name)

    hashes = [
        saved("straight"),
        saved("mean", mean_weights={"weight": weight}, mean_count=2, mean_span=[0.5, 3]),
        saved("steps", mean_weights={"weight": weight}, mean_count=1, mean_span=[0.5, 3]),
        saved("scaler", MixedPrecision={"scale": 65536.0}),
        saved("patience", {stop: {"wait_count": 2}}),
        saved("best", {best: {"best_model_score": 0.6}}),
    ]
    assert saved("killed") == hashes[0]
    assert len(set(hashes)) == len(hashes)


def test_verify_resume_sees_a_difference(tmp_path: Path) -> None:
    for name in ("one", "two"):
        trace = f"--trainer.callbacks.file={tmp_path / name}.jsonl"
        seed = str(int(name == "two"))
        callback = ["--trainer.callbacks+=pipeline.experiments.resume_test.Trace", trace]
        run("pretrain", "--out", str(tmp_path / name), "--seed", seed, *SHORT, *callback)
    found = " ".join(verify_resume.compare(tmp_path / "one", tmp_path / "two", "encoder"))
    for what in ("content of batch 0", "loss of batch 0", "metrics.csv", "last checkpoints", "weights in encoder"):
        assert what in found


@pytest.mark.parametrize("status", [0, 1])
def test_sync_uploads_what_is_there(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no offline run of Weights & Biases under runs and results"):
        run("sync")
    for name in ("runs/z/wandb/offline-run-1", "results/a/wandb/offline-run-2"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_MODE", "offline")
    asked: list[tuple[list[str], dict[str, str]]] = []

    def upload(words: list[str], env: dict[str, str]) -> SimpleNamespace:
        asked.append((words[3:], env))
        return SimpleNamespace(returncode=status)

    monkeypatch.setattr("pipeline.cli.commands.sync.subprocess.run", upload)
    with pytest.raises(UserError, match="Not all of the 2 offline runs") if status else nullcontext():
        run("sync")
    [(words, environment)] = asked
    assert words == ["sync", "--yes", "runs/z/wandb/offline-run-1", "results/a/wandb/offline-run-2"]
    assert "WANDB_MODE" not in environment
    assert ("Uploaded 2 runs." in capsys.readouterr().out) == (not status)


@pytest.mark.parametrize(("flags", "count"), [([], 20), (["--count", "3"], 3), (["--count", "0"], None)])
def test_a_sweep_runs_as_many_as_are_asked_for(
    flags: list[str], count: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_MODE", "offline")  # would keep the runs of the sweep here
    agents: list[tuple[str, int | None]] = []
    monkeypatch.setattr("wandb.sweep", lambda content, **_: f"id-of-{content['name']}")
    monkeypatch.setattr("wandb.agent", lambda name, count=None, **_: agents.append((name, count)))
    run("sweep", "--name", "pretrain", *flags)
    [(name, asked)] = agents
    assert name.endswith("id-of-pretrain")
    assert asked == count
    assert "WANDB_MODE" not in os.environ
    assert f"wandb agent pretrain-finetune/{name}" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["sweep", "sync"])
def test_what_needs_the_server_says_so(command: str, tmp_path: Path) -> None:
    (tmp_path / "runs/a/wandb/offline-run-1").mkdir(parents=True)
    environment = surroundings()
    args = [python(), "-m", "pipeline", command]
    done = subprocess.run(args, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2
    assert "set WANDB_API_KEY" in done.stderr
