"""Runs that fail, their checkpoints, histories and what Weights & Biases has of them (see test_hostile.py)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from wandb.errors import CommError

from pipeline.errors import UserError
from pipeline.storage import atomic, folders
from pipeline.tracking.history import History
from pipeline.tracking.wandb_artifacts import use_artifact
from pipeline.training import checkpoints
from tests.conftest import SMALL, figures, run
from tests.test_hostile_runs import run_of, tree

pytestmark = pytest.mark.slow


def test_what_comes_after_a_checkpoint_does_not_fail_as_it(tmp_path: Path) -> None:
    def written() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoints.WholeCheckpoints(written).save_checkpoint({}, tmp_path / checkpoints.LAST)
    assert (tmp_path / checkpoints.LAST).exists()


def test_a_checkpoint_that_may_not_be_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    names = (checkpoints.LAST, checkpoints.PREVIOUS)
    for name in names:
        (tmp_path / name).touch()
    monkeypatch.setattr("zipfile.ZipFile", denied)
    with pytest.raises(UserError, match=r"last.ckpt could not be read: Permission denied\.$"):
        checkpoints.newest(tmp_path)
    assert all((tmp_path / name).exists() for name in names)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The run folder of a BERT that was trained for four steps."""
    os.environ["PIPELINE_CACHE"] = str(cache)
    folder = tmp_path_factory.mktemp("trained") / "run"
    run("pretrain", "--out", str(folder), *FOUR)
    return folder


FOUR = [*SMALL, "--validate_every=2", "--trainer.max_steps=4"]
MONITOR = ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", "--trainer.callbacks.monitor=nope"]
KEEP = ["--trainer.callbacks+=lightning.pytorch.callbacks.ModelCheckpoint", "--trainer.callbacks.monitor=nope"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (MONITOR, "monitors a metric that does not exist: nope; there are val/loss"),
        (KEEP, "monitors a metric that does not exist: nope"),
        (["--model.encoder.init_args.inner_size=2000000000"], "weights alone would need about 2 TB"),
        (["--model.optimization.learning_rate=1e30"], "not finite at step"),
    ],
)
def test_a_run_that_fails_before_its_first_checkpoint_costs_nothing(
    trained: Path, tmp_path: Path, flags: list[str], message: str
) -> None:
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    before = tree(out)
    with pytest.raises(UserError, match=message):
        run("pretrain", "--out", str(out), *FOUR, "--overwrite", *flags)
    assert (tree(out) == before) == ("finite" not in message)  # there the state is kept, to look at
    assert not (out / ".before").exists()


def test_weights_and_biases_fails_at_the_start_or_the_end(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the start it is told, and costs nothing; at the end the run is whole without it."""

    def fails(*args: object, **options: object) -> None:
        raise CommError("no network")

    out = Path(shutil.copytree(trained, tmp_path / "run"))
    before = tree(out)
    with monkeypatch.context() as patch:
        patch.setattr("wandb.init", fails)
        with pytest.raises(CommError):
            run("pretrain", "--out", str(out), *FOUR, "--overwrite")
    assert tree(out) == before
    monkeypatch.setattr("pipeline.tracking.wandb.ResumableWandb.close", fails)
    run("pretrain", "--out", str(out), *FOUR, "--overwrite")
    assert figures(out)["steps"] == 4
    assert "Weights & Biases did not receive all of this run: no network" in capsys.readouterr().err
    asked = tmp_path / "asked"
    run("zeroshot", "--from", str(out / "encoder"), "--out", str(asked), "--limit", "2")
    assert figures(asked)["zeroshot/rows"] == 2


def test_an_upload_that_is_interrupted_costs_no_answers(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    out = run_of(tmp_path / "asked", "zeroshot", "metrics.json", "predictions.jsonl")
    monkeypatch.setattr("pipeline.prompting.run.log_to_wandb", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run("zeroshot", "--from", str(trained / "encoder"), "--out", str(out), "--limit", "2", "--overwrite")
    assert figures(out)["zeroshot/rows"] == 2


def test_an_encoder_that_cannot_be_declared_ends_no_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Online:
        mode, closed, experiment = "online", tmp_path / "wandb/closed.json", property(lambda self: self)

        def use_artifact(self, *args: object, **options: object) -> None:
            assert os.environ["WANDB_DATA_DIR"] == str(tmp_path / "wandb")
            raise CommError("no network")

    use_artifact(cast(Any, Online()), trained / "encoder")
    assert "Weights & Biases did not receive all of this run: no network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WANDB_RUN_ID", "x" * 300, "up to 128 characters"),
        ("WANDB_RUN_ID", "a/b", "up to 128 characters"),
        ("WANDB_PROJECT", "me/mine", "WANDB_PROJECT is 'me/mine'.*WANDB_ENTITY"),
        ("WANDB_MODE", "online", "there is no key: set WANDB_API_KEY"),
    ],
)
def test_settings_of_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        run("pretrain", "--out", "out", *SMALL)
    assert not (tmp_path / "out").exists()


def test_links_in_a_run_folder_are_not_written_through(trained: Path, tmp_path: Path) -> None:
    out, mine = Path(shutil.copytree(trained, tmp_path / "run")), tmp_path / "mine"
    for name in ("folder", "file"):
        mine.mkdir(exist_ok=True)
        (mine / name).mkdir() if name == "folder" else (mine / name).write_text("mine")
    before = tree(mine)
    shutil.rmtree(out / "encoder")
    (out / "metrics.json").unlink()
    for name in (".encoder.new", ".encoder.old", "encoder"):
        (out / name).symlink_to(mine / "folder")
    for name in ("metrics.json", "metrics.csv", "lineage.json", "config.yaml"):
        (out / f".{name}.{os.getpid()}").symlink_to(mine / "file")
    for name in (".last.ckpt.new", ".best.ckpt.new"):
        (out / "checkpoints" / name).symlink_to(mine / "file")
    run("pretrain", "--out", str(out), *FOUR, "--resume")  # its encoder is written again
    run("pretrain", "--out", str(out), *FOUR, "--resume", "--trainer.max_steps=6")
    assert tree(mine) == before
    assert not (out / "encoder").is_symlink()
    assert figures(out)["steps"] == 6


def test_new_files_have_the_permissions_of_the_user(trained: Path, tmp_path: Path) -> None:
    files = [path for path in trained.rglob("*") if path.is_file() and "wandb" not in path.parts]  # W&B has its own
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    modes.pop(".lock")
    assert {"model.safetensors", "last.ckpt", "metrics.json", "curves.png"} <= set(modes)
    (tmp_path / "plain").touch()
    assert set(modes.values()) == {(tmp_path / "plain").stat().st_mode & 0o777}

    def private(folder: Path) -> None:
        folder.mkdir()
        (folder / "a").touch(0o600)

    before = os.umask(0o027)
    try:
        folders.write_folder(tmp_path / "new", private)
    finally:
        os.umask(before)
    assert (tmp_path / "new/a").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "new_file", lambda path, mode: os.fdopen(os.open("/dev/full", os.O_WRONLY), mode))
    with pytest.raises(OSError, match="No space left") as caught:
        atomic.write_atomically(tmp_path / "metrics.json", "{}")
    assert caught.value.filename == str(tmp_path / "metrics.json")


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {key: value for key, value in state.items() if key != name}


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"no {name}": without(name) for name in (*checkpoints.PARTS, "memory")},
    "no moments": lambda state: {**state, "optimizer_states": []},
    "a list": lambda state: [1, 2],
    "an extra tensor": lambda state: {**state, "state_dict": {**state["state_dict"], "x": torch.ones(1)}},
    "a tensor less": lambda state: {**state, "state_dict": dict(list(state["state_dict"].items())[1:])},
    "another shape": lambda state: {
        **state,
        "state_dict": {name: torch.ones(3, 3) for name in state["state_dict"]},
    },
    "a number": lambda state: {**state, "state_dict": dict.fromkeys(state["state_dict"], 3)},
    "another kind": lambda state: {**state, "global_step": "4", "loops": 3},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_without_all_its_parts(
    trained: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole by its checksums, as other tools may leave it: the one before is taken."""
    last, previous = tmp_path / checkpoints.LAST, tmp_path / checkpoints.PREVIOUS
    state = checkpoints.read(trained / "checkpoints" / checkpoints.LAST)
    network = SimpleNamespace(kept=("memory",), state_dict=lambda: state["state_dict"])
    check = lambda file, state: checkpoints.check_fits(file, state, network)  # noqa: E731
    torch.save(DAMAGES[damage](state), last)
    with pytest.raises(UserError, match=r"last\.ckpt is damaged.*--overwrite"):
        checkpoints.newest(tmp_path, check)
    torch.save(state, previous)
    found = checkpoints.newest(tmp_path, check)
    assert found is not None
    assert found[0] == previous
    assert "Resuming from the previous checkpoint, of step 4" in capsys.readouterr().out
    assert (tmp_path / checkpoints.DAMAGED).exists()


@pytest.mark.parametrize(
    ("content", "steps", "warned"),
    [
        (b"garbage", [], True),
        (b"\xff\xfe\0\n1,2\n", [], True),
        (b"step,val/loss\n1,0.5\nzz,0.4\n3,x\n4,0.25\n9,0.1\n", [1, 4], True),
        (b"step,val/loss\n1,0.5,7\n2,0.5\n", [2], True),
        (b"step,val/loss\n1,0.5\n2,\n", [1, 2], False),
        (b"", [], False),
        (b'step,val/loss\n1,0.5\n2,"' + b"0" * 200_000, [1], True),
    ],
)
def test_a_damaged_history(
    tmp_path: Path, content: bytes, steps: list[int], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metrics.csv").write_bytes(content)
    history = History(tmp_path)
    history.restore(5)
    assert list(history.rows) == steps
    assert ("metrics.csv is damaged" in capsys.readouterr().out) == warned
    history.save()


def test_a_finished_run_mends_what_is_damaged(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its checkpoint, with figures of all digits."""
    out = Path(shutil.copytree(trained, tmp_path / "run"))
    weights, before = (out / "encoder/model.safetensors").read_bytes(), figures(out)
    for name, content in (("encoder/model.safetensors", "x"), ("encoder/lineage.json", "["), ("metrics.json", "{")):
        (out / name).write_text(content)
        run("pretrain", "--out", str(out), *FOUR, "--resume")
        shown = capsys.readouterr().out
        assert "It is written again from the checkpoint." in shown
        assert (out / "encoder/model.safetensors").read_bytes() == weights
        after = figures(out)
        assert {name: after[name] for name in after if name[:4] == "val/"} == {
            name: before[name] for name in before if name[:4] == "val/"
        }
    run("pretrain", "--out", str(out), *FOUR, "--resume")
    assert "nothing left to do" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_a_resumed_run_holds_no_checkpoint_open(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep the room of a checkpoint that is removed."""
    out, save, held = Path(shutil.copytree(trained, tmp_path / "run")), checkpoints.WholeCheckpoints.save_checkpoint, []

    def look(*args: Any, **options: Any) -> None:
        held.append("last.ckpt" in Path("/proc/self/maps").read_text())
        save(*args, **options)

    monkeypatch.setattr(checkpoints.WholeCheckpoints, "save_checkpoint", look)
    run("pretrain", "--out", str(out), *FOUR, "--resume", "--trainer.max_steps=8")
    assert held == [False, False]
