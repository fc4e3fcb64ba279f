"""What others do to run folders (see test_hostile.py): tables of cases.

Each ends in one plain sentence and exit status 2, with nothing lost, or works rightly. No case sets more of the
environment than a user would.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.storage import folders
from pipeline.storage.paths import cache_folder
from pipeline.tracking import lineage
from pipeline.training import run_folder
from tests.conftest import run

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


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    run_of(tmp_path / "runs/pretrain/bert", "pretrain", "encoder")
    for folder in ("runs", "runs/pretrain"):
        for how in (OVER, AGAIN):
            with pytest.raises(UserError, match=r"is a folder of runs, as .*bert; choose another"):
                run_folder.check_run_folder(tmp_path / folder, **how, stage="pretrain")
    saved = run_of(tmp_path / "killed", "pretrain")  # before its first checkpoint
    run_of(saved / "encoders/1M-words", "pretrain")
    run_folder.check_run_folder(saved, **AGAIN, stage="pretrain")
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
    given = {"import-elmo": ["--options", "o", "--weights", "w"], "predict": ["--from", "m", "--format", "lines"]}
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
            run_folder.set_aside(out)
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
                run_folder.set_aside(out) if arm == "clear" else run_folder.restore(out)
        run_folder.restore(out)
        assert tree(out) == before
        if moves < end:
            break
    assert moves < end  # it was killed at every move
    assert "holds the previous run again" in capsys.readouterr().out


def test_a_new_run_lets_go_of_the_old_one(tmp_path: Path) -> None:
    """Of all that a run may leave; kinds of tasks draw pictures of the same name."""
    out = run_of(tmp_path / "run", "pretrain", *(name for name in run_folder.RUN_FILES if name != "lineage.json"))
    (out / "mine.txt").write_text("mine")
    run_folder.set_aside(out)
    (out / "lineage.json").write_text("new")
    run_folder.discard_old(out)
    run_folder.restore(out)
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
        run_folder.set_aside(out)
        (out / "lineage.json").write_text(json.dumps([{"stage": "pretrain", "name": "new"}]))
        run_folder.discard_old(out)
        run_folder.release()
        assert lineage.read(out)[-1]["name"] == "new"
        assert "cannot be removed: Device or resource busy" in capsys.readouterr().err
    monkeypatch.undo()
    run_folder.restore(out)
    assert [path.name for path in out.iterdir() if path.name != ".lock"] == ["lineage.json"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("~/x", Path.home() / "x"), ("", Path(".cache")), ("/a", Path("/a")), (None, Path(".cache"))],
)
def test_cache_folder(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: Path) -> None:
    monkeypatch.delenv("PIPELINE_CACHE")
    if value is not None:
        monkeypatch.setenv("PIPELINE_CACHE", value)
    assert cache_folder() == expected
