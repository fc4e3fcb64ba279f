"""What others do to run folders, grids, checkpoints and disks (see test_hostile.py): tables of cases.

Each ends in one plain sentence and exit status 2, with nothing lost, or works rightly. No case sets more of the
environment than a user would.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import yaml
from wandb.errors import CommError

from pipeline.errors import UserError
from pipeline.experiments import grid as compare
from pipeline.experiments.run_cache import once
from pipeline.presets import trained_task
from pipeline.storage import atomic, folders
from pipeline.storage.paths import cache_folder
from pipeline.tracking import lineage
from pipeline.tracking.history import History
from pipeline.tracking.wandb import use_artifact
from pipeline.training import checkpoints, run_folder
from tests.conftest import SMALL, figures, run

pytestmark = pytest.mark.slow


def run_of(folder: Path, kind: str, *names: str) -> Path:
    """What a run of a kind has left: its lineage, and files or folders by name."""
    folder.mkdir(parents=True)
    (folder / "lineage.json").write_text(json.dumps([{"stage": kind}]))
    for name in names:
        if name in ("encoder", "model"):
            (folder / name).mkdir()
            (folder / name / "model.safetensors").write_text("weights")
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
    return folder


def tree(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder but locks."""
    found = {path: path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.name.endswith(".lock")}
    return {name: path.read_bytes() if path.is_file() else "folder" for path, name in found.items()}


OVER, AGAIN = {"overwrite": True, "resume": False}, {"overwrite": False, "resume": False}


@pytest.mark.parametrize(
    ("made_by", "names", "stage", "how", "message"),
    [
        ("pretrain", ["encoder"], "pretrain", AGAIN, "holds a finished run; set --resume"),
        ("finetune", ["model"], "finetune", AGAIN, "holds a finished run"),
        ("zeroshot", ["predictions.jsonl"], "zeroshot", AGAIN, "holds a finished run"),
        ("pretrain", ["checkpoints/last.ckpt"], "pretrain", AGAIN, "holds an interrupted run"),
        ("pretrain", ["encoder"], "finetune", OVER, "a run of pretrain, and one of finetune would clear it"),
        ("pretrain", ["encoder"], "zeroshot", OVER, "a run of pretrain, and one of zeroshot would clear it"),
        ("pretrain", ["checkpoints/last.ckpt"], "profile", OVER, "a run of pretrain, and one of profile would"),
        ("finetune", ["model", "metrics.json"], "pretrain", OVER, "a run of finetune, and one of pretrain would"),
        ("finetune", ["model", "metrics.json"], "finetune", OVER, None),
        ("pretrain", ["checkpoints/last.ckpt", "profile.txt"], "profile", OVER, None),
        ("corpus", ["config.yaml"], "finetune", AGAIN, None),  # it had not begun
    ],
)
def test_a_run_replaces_one_of_its_kind_alone(
    tmp_path: Path, made_by: str, names: list[str], stage: str, how: dict[str, bool], message: str | None
) -> None:
    out = run_of(tmp_path / "run", made_by, *names)
    expected = nullcontext() if message is None else pytest.raises(UserError, match=message)
    with expected:
        run_folder.check_run_folder(out, **how, stage=stage)
    run_folder.release()


def test_a_lost_or_damaged_lineage(tmp_path: Path) -> None:
    out = run_of(tmp_path / "run", "pretrain", "encoder")
    (out / "lineage.json").write_text("{")
    with pytest.raises(UserError, match="a run of pretrain, and one of finetune would clear it"):
        run_folder.check_run_folder(out, **OVER, stage="finetune")
    (out / "lineage.json").unlink()
    for more, way in ((None, "; choose another --out"), ("last.ckpt", "continue from its checkpoint with --resume")):
        if more:
            (out / "checkpoints").mkdir()
            (out / "checkpoints" / more).touch()
        with pytest.raises(UserError, match=f"no run .there is no lineage.json.*{way}"):
            run_folder.check_run_folder(out, **OVER, stage="pretrain")
    run_folder.check_run_folder(out, overwrite=False, resume=True, stage="pretrain")
    run_folder.release()
    for content in ("[{", "{}", "[3]", '[{"name": "x"}]'):
        (out / "lineage.json").write_text(content)
        with pytest.raises(UserError, match=r"lineage\.json"):
            lineage.read(out)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("run/encoder/again", "lies in .*encoder, which is a part of a run"),
        ("run/wandb/again", "lies in .*wandb, which is a part of a run"),
        ("run/checkpoints", "checkpoints is a part of a run"),
        ("sealed", "is the folder of an encoder or model"),
        ("sealed/again/again", "lies in the folder of an encoder or model"),
        ("downloads/run", None),  # sums of whatever lies there
        ("link/again", "lies in .*encoder, which is a part of a run"),
        ("circle/run", "cannot be written"),
        ("x" * 300, "File name too long"),
        ("/".join(["x" * 200] * 20), "File name too long"),
        ("w/\udcff", "is not UTF-8"),
        ("run/mine", None),
    ],
)
def test_no_run_goes_among_the_files_of_another(tmp_path: Path, place: str, message: str | None) -> None:
    run_of(tmp_path / "run", "pretrain", "encoder")
    for name in ("sealed", "downloads"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SHA256SUMS").touch()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "sealed" / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "run/encoder")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        run_folder.check_run_folder(tmp_path / place, **AGAIN, stage="pretrain")
    run_folder.release()


@pytest.mark.parametrize("command", ["import-elmo", "predict"])
def test_no_other_file_goes_there_either(tmp_path: Path, command: str) -> None:
    place = str(run_of(tmp_path / "run", "pretrain", "encoder") / "encoder/new")
    given = {"import-elmo": ["--options", "o", "--weights", "w"], "predict": ["--model", "m", "--format", "lines"]}
    with pytest.raises(UserError, match="encoder, which is a part of a run"):
        run(command, *given[command], "--out", place)


@pytest.mark.parametrize(
    ("corpus", "out", "refused"),
    [
        ("texts", "texts/run", True),
        ("texts", "texts", True),
        ("texts", "texts/more/run", True),
        ("texts", "run", False),
        ("texts/a.txt", "texts", False),
        ("texts/*.txt", "texts/run", False),
        ("texts/*.txt", "texts", True),
        ("texts/*/*.txt", "texts/run", True),
        ("texts/**/*.txt", "texts/more/run", True),
    ],
)
def test_the_files_of_a_run_are_not_its_own_corpus(tmp_path: Path, corpus: str, out: str, refused: bool) -> None:
    (tmp_path / "texts/more").mkdir(parents=True)
    (tmp_path / "texts/a.txt").write_text("A text.\n")
    with pytest.raises(UserError, match="would be read as data") if refused else nullcontext():
        run_folder.check_run_folder(tmp_path / out, **AGAIN, stage="pretrain", texts=corpus)  # relative to here
    run_folder.release()
    if corpus == "texts" and out == "texts":
        with pytest.raises(UserError, match="would be read as data"):
            run_folder.check_run_folder(tmp_path / out, **AGAIN, stage="finetune", rows=corpus)


@pytest.mark.parametrize(
    "flags",
    [
        ["--corpus", "run/data.txt"],
        ["--data.tokenizer.file=run/encoder/model.safetensors"],
        ["--config", "run/config.yaml"],
        ["--config=run/config.yaml"],
    ],
)
def test_what_a_run_needs_is_not_cleared_for_it(tmp_path: Path, flags: list[str]) -> None:
    out = run_of(tmp_path / "run", "pretrain", "encoder", "data.txt")
    (out / "config.yaml").write_text("trainer: {max_steps: 2}\n")
    before = tree(out)
    with pytest.raises(UserError, match="lies in the run folder run, which would be cleared"):
        run("pretrain", "--out", "run", "--overwrite", *flags)
    assert tree(out) == before


@pytest.mark.parametrize("arm", ["clear", "put back"])
def test_what_is_set_aside_comes_back_wherever_it_is_killed(
    tmp_path: Path, arm: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for end in range(60):
        out = run_of(tmp_path / str(end), "pretrain", "encoder", "metrics.json", "config.yaml", "checkpoints/last.ckpt")
        before = tree(out)
        if arm == "put back":
            run_folder.clear(out)
            assert set(tree(out)) == {".before", *(f".before/{name}" for name in before)}
            for name in ("lineage.json", "config.yaml", "metrics.csv"):
                (out / name).write_text("new")
        with monkeypatch.context() as patch:
            moves = 0

            def dies(act: Callable[..., Any], end: int = end) -> Callable[..., Any]:
                def one(*args: Any) -> Any:
                    nonlocal moves
                    if moves == end:
                        raise KeyboardInterrupt
                    moves += 1
                    return act(*args)

                return one

            patch.setattr(Path, "rename", dies(Path.rename))
            patch.setattr(run_folder, "remove", dies(run_folder.remove))
            with suppress(KeyboardInterrupt):
                run_folder.clear(out) if arm == "clear" else run_folder.put_back(out)
        run_folder.put_back(out)
        assert tree(out) == before
        if moves < end:
            break
    assert moves < end  # it was killed at every move
    assert "holds the run of before again" in capsys.readouterr().out


def test_a_new_run_lets_go_of_the_old_one(tmp_path: Path) -> None:
    """Of all that a run may leave; kinds of tasks draw pictures of the same name."""
    out = run_of(tmp_path / "run", "pretrain", *(name for name in run_folder.RUN_FILES if name != "lineage.json"))
    (out / "mine.txt").write_text("mine")
    run_folder.clear(out)
    (out / "lineage.json").write_text("new")
    run_folder.begun(out)
    run_folder.put_back(out)
    assert tree(out) == {"mine.txt": b"mine", "lineage.json": b"new"}


def test_what_cannot_be_removed_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(path: Path) -> None:
        if path.name.startswith(".leaving"):
            raise OSError(16, "Device or resource busy")
        folders.remove(path)

    out = run_of(tmp_path / "run", "pretrain", "encoder")
    monkeypatch.setattr(run_folder, "remove", busy)
    for _ in range(3):  # each finds what those before it could not remove
        run_folder.check_run_folder(out, **OVER, stage="pretrain")
        run_folder.clear(out)
        (out / "lineage.json").write_text(json.dumps([{"stage": "pretrain", "name": "new"}]))
        run_folder.begun(out)
        run_folder.release()
        assert lineage.read(out)[-1]["name"] == "new"
        assert "cannot be removed: Device or resource busy" in capsys.readouterr().err
    monkeypatch.undo()
    run_folder.put_back(out)
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["lineage.json"]


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
        (MONITOR, "monitors a figure that there is not: nope; there are val/loss"),
        (KEEP, "monitors a figure that there is not: nope"),
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
    assert "Weights & Biases has not got all of this run: no network" in capsys.readouterr().err
    asked = tmp_path / "asked"
    run("zeroshot", "--from", str(out / "encoder"), "--out", str(asked), "--limit", "2")
    assert figures(asked)["zeroshot/rows"] == 2


def test_an_upload_that_is_interrupted_costs_no_answers(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    out = run_of(tmp_path / "asked", "zeroshot", "metrics.json", "predictions.jsonl")
    monkeypatch.setattr("pipeline.prompting.report.log_to_wandb", interrupted)
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
    assert "Weights & Biases has not got all of this run: no network" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("WANDB_RUN_ID", "x" * 300, "up to 128 characters"),
        ("WANDB_RUN_ID", "a/b", "up to 128 characters"),
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


@pytest.mark.parametrize(
    ("value", "expected"),
    [("~/x", Path.home() / "x"), ("", Path(".cache")), ("/a", Path("/a")), (None, Path(".cache"))],
)
def test_cache_folder(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: Path) -> None:
    monkeypatch.delenv("PIPELINE_CACHE")
    if value is not None:
        monkeypatch.setenv("PIPELINE_CACHE", value)
    assert cache_folder() == expected


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
    assert "Going on from the checkpoint before it, of step 4" in capsys.readouterr().out
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


GRID = {"models": ["bert"], "tasks": ["sentiment"], "arms": {"full": {"seeds": 1}}, "encoders": "x/{model}"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arms": {}}, "arms is {}"),
        ({"models": []}, r"models is \[\]"),
        ({"tasks": []}, "tasks is {}"),
        ({"models": [3]}, "is 3; input should be a valid string"),
        ({"models": [""]}, "is ''"),
        ({"tasks": [3]}, "is 3"),
        ({"tasks": {"sentiment": 3}}, "is 3"),
        ({"tasks": "sentiment"}, "is 'sentiment'"),
        ({"data": 3}, "data is 3"),
        ({"flags": [3]}, "is 3"),
        ({"flags": "--x"}, "flags is '--x'"),
        ({"encoders": None}, "encoders is None"),
        ({"arms": {"full": {"seeds": -3}}}, "seeds is -3"),
        ({"arms": {"full": {"seeds": 0}}}, "seeds is 0"),
        ({"arms": {"full": {"seeds": 1, "choose": {"x": []}}}}, r"is \[\]"),
        ({"arms": {"full": {"seeds": True}}}, "seeds is True"),
        ({"arms": {"full": {"sedes": 1}}}, "has an unknown key|has no arms.full.seeds"),
        ({"arms": {"full": 3}}, "is 3"),
        ({"more": 1}, "has an unknown key: more"),
    ],
)
def test_a_wrong_grid(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump({**GRID, **changes}))
    with pytest.raises(UserError, match=message) as caught:
        compare.load(file)
    assert str(file) in str(caught.value)


def test_a_grid_may_leave_data_empty_and_a_variable_may_not(tmp_path: Path) -> None:
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump({**GRID, "data": None}))
    assert compare.load(file).data == "."
    with pytest.raises(UserError, match="--models is empty"):
        run("compare", "--name", str(file), "--models", " ")


# A fine-tune's figures, but for one of them.
WHOLE = '{"val/best_accuracy": 0.5, "degenerate": false, "tokens": 8, "seconds": 1.5, "test/accuracy": %s}'


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("cell.json", "{", "cell.json is damaged"),
        ("cell.json", "[]", r"cell.json: its content is \[\]"),
        ("metrics.json", "{", "metrics.json is damaged"),
        ("metrics.json", "{}", "metrics.json has no test/accuracy"),
        ("metrics.json", '{"val/best_accuracy": 1}', "metrics.json has no test/accuracy"),
        ("metrics.json", WHOLE % "0.5", None),
        ("metrics.json", WHOLE % '"x"', "metrics.json has no test/accuracy that can be"),
        ("metrics.json", WHOLE % "NaN", "metrics.json has no test/accuracy that can be"),
        ("metrics.json", WHOLE % "5e9", "metrics.json has no test/accuracy that can be"),
        ("metrics.json", "[]", "metrics.json: its content is"),
        ("metrics.json", '{"x": {}}', "metrics.json: x is {}"),
    ],
)
def test_a_damaged_run_of_a_grid_is_run_again(
    tmp_path: Path, name: str, content: str, why: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    out, cell, made = tmp_path / "run", {"flags": []}, []
    summary = partial(compare.summary, trained_task("sentiment"))
    row = {"val/best_accuracy": 0.5, "test/accuracy": 0.5, "degenerate": False, "tokens": 8, "seconds": 1.5, "f": None}

    def fit(*, resume: bool) -> None:
        made.append(resume)
        (out / "metrics.json").write_text(json.dumps({**row, "lost": math.nan}))

    for _ in range(2):
        first = once(out, cell, fit, taken=summary)
    (out / "checkpoints").mkdir()
    (out / "checkpoints/last.ckpt").touch()  # a finished run is not gone on with: it would say that it is finished
    (out / name).write_text(content)
    assert once(out, cell, fit, taken=summary) == first
    assert made == ([False] if why is None else [False, False])
    said = capsys.readouterr().err
    assert re.search(f"run is run anew: .*{why}", said) if why else not said


def test_a_grid_removes_no_folder_that_it_has_not_made(tmp_path: Path) -> None:
    for place in ("run", ".run.before"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "thesis.tex").write_text("mine")
        with pytest.raises(UserError, match="in the way of a run, and no run has made it"):
            once(tmp_path / "run", {"flags": []}, lambda resume: None)
        assert (tmp_path / place / "thesis.tex").read_text() == "mine"
        shutil.rmtree(tmp_path / place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/cell.json").write_text("{}")
    (tmp_path / "run").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="in the way of a run"):
        once(tmp_path / "run", {"flags": []}, lambda resume: None)
