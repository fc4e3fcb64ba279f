"""What breaks: disks, files, processes, memory, networks. A plain sentence, exit status 2, and nothing lost."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import pipeline
from pipeline.data import documents, hub
from pipeline.errors import UserError
from pipeline.storage.locks import built_once
from pipeline.training import checkpoints
from tests.conftest import SMALL, command, figures, run, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow

SHORT = [*SMALL, "--validate_every=4", "--trainer.max_steps=8"]
LETTERS = ["walks", "sings", "sleeps", "eats", "laughs", "reads"]


def corpus(file: Path, lines: int) -> Path:
    words = [f"{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}ry" for i in range(600)]
    rows = (f"The {words[i % 599]} {LETTERS[i % 6]} by the {words[i * 7 % 600]}." for i in range(lines))
    file.write_text("".join(row + "\n" * (1 + (i % 5 == 0)) for i, row in enumerate(rows)))
    return file


def limited(size: int, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command none of whose files may grow beyond a size: its writes fail as on a full disk."""
    script = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2); "
    script += "sys.argv = ['pipeline', *sys.argv[2:]]; from pipeline.__main__ import main; sys.exit(main())"
    environment = surroundings(**environment)
    command = [python(), "-c", script, str(size), *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def is_plain(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in last


def test_no_room_for_the_token_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = corpus(tmp_path / "corpus.txt", 8000), tmp_path / "cache"
    args = ["data", "--corpus", str(file), *[flag for flag in SMALL if "sample_documents" not in flag]]
    is_plain(limited(60_000, *args, PIPELINE_CACHE=str(cache)), "could not be written")
    assert [path for path in (cache / "stores").iterdir() if path.is_dir()] == []
    monkeypatch.setenv("PIPELINE_CACHE", str(cache))
    run(*args)


def test_no_room_for_a_checkpoint_then_for_the_encoder(tmp_path: Path) -> None:
    out, flags = tmp_path / "run", ["pretrain", "--out", str(tmp_path / "run"), *SHORT]
    run(*flags[:3], *SHORT, "--trainer.max_steps=4")
    size = (out / "checkpoints/last.ckpt").stat().st_size
    (out / "metrics.json").unlink()
    before = checkpoints.read(out / "checkpoints/last.ckpt")
    is_plain(limited(size // 2, *flags, "--resume"), "The checkpoint")
    assert checkpoints.read(out / "checkpoints/last.ckpt")["global_step"] == before["global_step"] == 4
    run(*flags, "--resume")
    (out / "metrics.json").unlink()
    encoder = (out / "encoder/model.safetensors").read_bytes()
    is_plain(limited(len(encoder) // 2, *flags, "--resume"), f"{out / 'encoder'} could not be written")
    assert (out / "encoder/model.safetensors").read_bytes() == encoder
    assert not (out / ".encoder.new").exists()


def test_killed_while_the_token_store_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = corpus(tmp_path / "corpus.txt", 40_000), tmp_path / "cache"
    monkeypatch.setenv("PIPELINE_CACHE", str(cache))
    args = ["data", "--corpus", str(file), *[flag for flag in SMALL if "sample_documents" not in flag]]
    process = subprocess.Popen([python(), "-m", "pipeline", *args], stdout=subprocess.DEVNULL)
    while not list(cache.glob("stores/.*.new/tokens.bin")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert list(cache.glob("stores/.*.new"))
    run(*args)
    assert not list(cache.glob("stores/.*.new"))
    assert len([path for path in (cache / "stores").iterdir() if path.is_dir()]) == 2


def test_of_two_runs_on_a_corpus_one_builds_and_the_other_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    args = ["data", "--corpus", str(corpus(tmp_path / "corpus.txt", 400))]
    args += [flag for flag in SMALL if "sample_documents" not in flag]
    run(*args)
    report = capsys.readouterr().out
    [store, *_] = [path for path in (tmp_path / "cache/stores").iterdir() if path.is_dir()]
    with built_once(store, "the token store"):
        process = subprocess.Popen(
            [python(), "-m", "pipeline", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        assert "Another run builds the token store; waiting for it." in process.stderr.readline()
        time.sleep(0.5)
        assert process.poll() is None
    assert process.communicate(timeout=60)[0] == report
    assert process.returncode == 0


def flip(file: Path, share: float = 0.6) -> None:
    """One bit of a file."""
    content = bytearray(file.read_bytes())
    content[int(share * len(content))] ^= 4
    file.write_bytes(content)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("damage", [flip, cut])
def test_a_damaged_encoder_folder(pretrained: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained / "encoder", folder)
    damage(folder / name)
    with pytest.raises(UserError, match=f"{name} is damaged"):
        pipeline.encoders.load(folder)


def test_a_damaged_model_folder(pretrained: Path, tmp_path: Path) -> None:
    more = ["--out", str(tmp_path / "run"), "--data.epochs=1", "--data.train_rows=40"]
    run("finetune", "--from", str(pretrained / "encoder"), *more)
    flip(tmp_path / "run/model/model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        pipeline.load(tmp_path / "run/model")
    (tmp_path / "run/model/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        pipeline.load(tmp_path / "run/model")


def test_a_damaged_token_store_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    file = corpus(tmp_path / "corpus.txt", 400)
    args = ["data", "--corpus", str(file), *[flag for flag in SMALL if "sample_documents" not in flag]]
    run(*args)
    good = capsys.readouterr().out
    stores = {path: path.read_bytes() for path in (tmp_path / "cache/stores").glob("*/tokens.bin")}
    for path in stores:
        flip(path)
    run(*args)
    shown = capsys.readouterr().out
    assert shown.count("tokens.bin is damaged") == 2
    assert shown.endswith(good)
    assert all(path.read_bytes() == content for path, content in stores.items())


@pytest.mark.parametrize(
    ("name", "damage"), [("train.txt", cut), ("train.txt", Path.unlink), ("SHA256SUMS", Path.unlink)]
)
def test_a_damaged_sample_corpus_is_made_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    damage: Callable[[Path], None],
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    run("data", *SMALL)
    good = capsys.readouterr().out
    [file] = (tmp_path / "cache/sample").glob("*/train.txt")
    content = file.read_bytes()
    damage(file.with_name(name))
    run("data", *SMALL)
    shown = capsys.readouterr().out
    assert f"{name} is " in shown
    assert "The sample corpus is made again." in shown
    assert shown.endswith(good)
    assert file.read_bytes() == content


TWELVE = [*SHORT, "--trainer.max_steps=12"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with a run, `straight`, and the same one killed after a step, `killed`."""
    folder = tmp_path_factory.mktemp("killed")
    run("pretrain", "--out", str(folder / "straight"), *TWELVE)
    kill = ["--trainer.callbacks+=pipeline.experiments.resume_test.Kill", "--trainer.callbacks.step=10"]
    done = command("pretrain", "--out", str(folder / "killed"), *TWELVE, *kill, "--trainer.callbacks.moment=step")
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    killed: Path, tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    shutil.copytree(killed / "killed", out)
    assert {path.name for path in (out / "checkpoints").iterdir()} >= {"last.ckpt", "previous.ckpt"}
    damage(out / "checkpoints/last.ckpt")
    run("pretrain", "--out", str(out), "--resume", *TWELVE)
    shown = capsys.readouterr().out
    assert "Resuming from the previous checkpoint, of step 4" in shown
    assert "last.ckpt is missing" in shown or "last.ckpt is damaged" in shown
    one, two = (folder / "encoder/model.safetensors" for folder in (killed / "straight", out))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("now", ["here", "elsewhere"])
def test_a_moved_run_knows_its_best_checkpoint(tmp_path: Path, now: str) -> None:
    before = ModelCheckpoint(tmp_path / "here", "best", monitor="val/loss")
    best = before.dirpath + "/best.ckpt"
    before.best_model_path, before.best_model_score, before.best_k_models = best, torch.tensor(0.5), {best: 0.5}
    own = ModelCheckpoint(tmp_path / "mine", monitor="val/lm_loss")  # a callback of the user
    checkpoint = {"callbacks": {own.state_key: own.state_dict(), before.state_key: before.state_dict()}}
    checkpoints.move(checkpoint, Path(now), before.state_key)  # relative to the working directory
    assert checkpoint["callbacks"][own.state_key]["dirpath"] == own.dirpath
    after = ModelCheckpoint(Path(now), "best", monitor="val/loss")
    after.load_state_dict(checkpoint["callbacks"][before.state_key])
    assert after.best_model_score == 0.5
    assert list(after.best_k_models) == [f"{tmp_path.resolve()}/{now}/best.ckpt"]


def test_no_checkpoint_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("pretrain", "--out", str(out), *SHORT, "--trainer.max_steps=4")
    cut(out / "checkpoints/last.ckpt")
    with pytest.raises(UserError, match=r"last\.ckpt is damaged.*--overwrite"):
        run("pretrain", "--out", str(out), "--resume", *SHORT)
    assert (out / "encoder/model.safetensors").exists()  # nothing is lost


def test_a_checkpoint_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run("pretrain", "--out", str(out), *SHORT, "--trainer.max_steps=4")
    config = (out / "config.yaml").read_text()
    for change, message in (
        ("--model.encoder.init_args.layers=1", r"model\.encoder\.init_args\.layers 2, not 1"),
        ("--data.batch_size=8", r"data\.batch_size 16, not 8"),
        ("--trainer.accumulate_grad_batches=2", r"accumulate_grad_batches 1, not 2"),
        ("--model.optimization.optimizer=muon", r"optimizer adamw, not muon"),
        ("--data.sample_documents=200", "not"),
    ):
        with pytest.raises(UserError, match=message):
            run("pretrain", "--out", str(out), "--resume", *SHORT, change)
    assert (out / "config.yaml").read_text() == config
    capsys.readouterr()
    # The rate may change, and the new one holds; so may the program, which says so.
    monkeypatch.setattr("pipeline.training.run.__version__", "99.0")
    more = ["--model.optimization.learning_rate=1e-5", "--model.optimization.schedule=constant"]
    run("pretrain", "--out", str(out), "--resume", *SHORT, *more)
    said = capsys.readouterr().out
    assert "learning_rate is 1e-05 now, and was 0.001" in said
    assert f"version is 99.0 now, and was {pipeline.__version__}" in said
    state = checkpoints.read(out / "checkpoints/last.ckpt")
    assert state["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(1e-5)
    assert figures(out)["steps"] == 8


def test_a_run_that_never_took_a_step_takes_the_new_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        never = SimpleNamespace(isfinite=lambda loss: False, inf=math.inf, nan=math.nan)
        patch.setattr("pipeline.training.step_callbacks.math", never)
        with pytest.raises(UserError, match="not finite at step 0"):
            run("pretrain", "--out", str(out), *SHORT)
    run("pretrain", "--out", str(out), "--resume", *SHORT, "--model.optimization.learning_rate=1e-5")
    with open(out / "metrics.csv", newline="") as file:
        rates = [float(row["train/learning_rate"]) for row in csv.DictReader(file) if row["train/learning_rate"]]
    assert 0 < max(rates) <= 1e-5


def test_another_validation_text_is_another_run(tmp_path: Path) -> None:
    data, out = tmp_path / "texts", tmp_path / "run"
    data.mkdir()
    corpus(data / "train.txt", 900)
    corpus(data / "valid.txt", 200)
    flags = ["--out", str(out), "--corpus", str(data), *(flag for flag in SHORT if "sample_documents" not in flag)]
    run("pretrain", *flags, "--trainer.max_steps=4")
    corpus(data / "valid.txt", 210)
    with pytest.raises(UserError, match="content of the validation text"):
        run("pretrain", *flags, "--resume")


def test_files_that_are_not_of_a_run_stay(pretrained: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "encoder").mkdir(parents=True)
    corpus(mine / "data.txt", 900)
    text_before = (mine / "data.txt").read_text()
    flags = [flag for flag in SHORT if "sample_documents" not in flag]
    for more in ([], ["--overwrite"]):
        with pytest.raises(UserError, match="holds encoder but no run"):
            run("pretrain", "--corpus", str(mine / "data.txt"), "--out", str(mine), *flags, *more)
        with pytest.raises(UserError, match="holds encoder but no run"):
            run("zeroshot", "--from", str(pretrained / "encoder"), "--out", str(mine), *more)
    assert (mine / "data.txt").read_text() == text_before
    assert (mine / "encoder").is_dir()
    with pytest.raises(UserError, match="holds a run of pretrain, and one of profile would clear it"):
        run("profile", "--out", str(pretrained), *SMALL)
    assert (pretrained / "metrics.json").is_file()


def test_of_two_runs_in_a_folder_one_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = [python(), "-m", "pipeline", "pretrain", "--out", str(out), *SMALL, "--validate_every=100000"]
    environment = surroundings()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen([*first, "--trainer.max_steps=100000"], env=environment, **quiet)
    try:
        end = time.monotonic() + 120
        while not (out / "config.yaml").exists() and time.monotonic() < end:
            time.sleep(0.2)
        is_plain(command("pretrain", "--out", str(out), "--seed", "1", *SHORT), "Another run is writing into")
    finally:
        running.kill()
        running.wait()
        time.sleep(1)  # what it was just about to start lives a moment longer
    run("pretrain", "--out", str(out), "--seed", "1", *SHORT)  # what was killed holds nothing
    assert figures(out)["steps"] == 8


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


def test_loading_never_runs_code(pretrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("pretrain", "--out", str(out), *SHORT, "--trainer.max_steps=4")
    torch.save({"global_step": 4, "state_dict": Evil()}, out / "checkpoints/last.ckpt")
    with pytest.raises(UserError, match="could be code"):
        run("pretrain", "--out", str(out), "--resume", *SHORT)
    folder = tmp_path / "encoder"
    shutil.copytree(pretrained / "encoder", folder)
    (folder / "SHA256SUMS").unlink()  # as one that others made
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "outside.py").write_text("open('executed', 'w')\nclass Bert: pass\n")
    hostile = {"auto_map": {"AutoModel": "outside.Bert"}, "class_path": "outside.Bert", "trust_remote_code": True}
    (folder / "config.json").write_text(json.dumps({**config, **hostile}))
    assert pipeline.encoders.load(folder).size == 64
    for name in ("../outside", "outside.Bert", "os"):
        (folder / "config.json").write_text(json.dumps({**config, "model_type": name}))
        with pytest.raises(UserError, match="no encoder"):
            pipeline.encoders.load(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Evil()))
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="damaged"):
        pipeline.encoders.load(folder)
    with pytest.raises(UserError, match=r"os\.system, which is not a subclass of Task"):
        run("finetune", "--from", str(pretrained / "encoder"), "--data.task=os.system")
    assert not (tmp_path / "executed").exists()


class Stream:
    """A data set of the hub whose connection breaks at some rows."""

    def __init__(self, breaks: list[int], begin: int = 0) -> None:
        self.breaks, self.begin = breaks, begin
        self.next = 0  # until a row is given, whatever was loaded: as of `datasets`

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["next"]

    def __iter__(self) -> Iterator[dict[str, str]]:
        for number in range(self.begin, 20):
            if number in self.breaks:
                self.breaks.remove(number)
                raise TimeoutError("read timed out")
            self.next = number + 1
            yield {"text": f"row {number}"}


def test_a_stream_of_the_hub_that_breaks_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hub, "PAUSE", 0)
    source = documents.Source(hub={"path": "someone/texts", "split": "train"})
    breaks = [3, 3, 11]
    monkeypatch.setattr(documents, "open_hub", lambda **_: Stream(breaks))
    rows = [document[0] for document, _ in source.documents()]
    assert rows == [f"row {number}" for number in range(20)]
    assert capsys.readouterr().err.count("trying again") == 3
    breaks += [5] * 50
    with pytest.raises(UserError, match=r"broke off after 5 rows and 5 further attempts.*timed out"):
        list(source.documents())
    away = iter([False, True, True, False])  # the hub itself is out of reach for a while
    breaks[:] = [7]

    def reach(**_: object) -> Stream:
        if next(away):
            raise UserError("The hub cannot be reached.")
        return Stream(breaks)

    monkeypatch.setattr(documents, "open_hub", reach)
    assert len(list(source.documents())) == 20


def test_a_loader_process_that_dies(tmp_path: Path) -> None:
    script = "import os, sys; from pipeline.training import loader; original = loader.MicroBatches.__getitem__\n"
    script += "def dies(self, index): return os._exit(1) if index == 7 else original(self, index)\n"
    script += "loader.MicroBatches.__getitem__ = dies; from pipeline.__main__ import main; sys.exit(main())"
    args = ["pretrain", "--out", str(tmp_path / "run"), *SHORT, "--data.workers=1"]
    environment = surroundings()
    command = [python(), "-c", script, *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    is_plain(done, "A process that makes batches died")
    assert checkpoints.newest(tmp_path / "run/checkpoints") is not None


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    from pipeline.objectives.masked_lm import MaskedLM

    @functools.wraps(MaskedLM.forward)
    def fails(*args: object) -> dict:
        raise error

    monkeypatch.setattr(MaskedLM, "forward", fails)
    with pytest.raises(UserError, match=r"Memory ran out at step 0, with 16 rows.*accumulate_grad_batches"):
        run("pretrain", "--out", str(tmp_path / "run"), *SHORT)
