"""What others write into the file of a grid, and do to its runs (see test_hostile.py): tables of cases."""

from __future__ import annotations

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.errors import UserError
from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.comparison import grid as compare
from pipeline.experiments.comparison import runs as grid_run
from pipeline.experiments.run_cache import once
from pipeline.presets.tasks import trained_task
from tests.conftest import run

pytestmark = pytest.mark.slow


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
    summary = partial(grid_run.summary, trained_task("sentiment"))
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
    assert re.search(f"run is run again: .*{why}", said) if why else not said


def test_a_grid_removes_no_folder_that_it_has_not_made(tmp_path: Path) -> None:
    for place in ("run", ".run.before"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "thesis.tex").write_text("mine")
        with pytest.raises(UserError, match="was not made by a run"):
            once(tmp_path / "run", {"flags": []}, lambda resume: None)
        assert (tmp_path / place / "thesis.tex").read_text() == "mine"
        shutil.rmtree(tmp_path / place)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/cell.json").write_text("{}")
    (tmp_path / "run").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="was not made by a run"):
        once(tmp_path / "run", {"flags": []}, lambda resume: None)


def test_a_setting_that_means_nothing_to_a_later_task_is_refused_before_any_run(
    pretrained: Path, tmp_path: Path
) -> None:
    where = ["compare", "--from", str(pretrained / "encoder"), "--models", "bert", "--out", str(tmp_path / "out")]
    for flag, message in (("model.recipe.crf=true", "are for tagging"), ("data.cut=tail", "read in windows")):
        with pytest.raises(UserError, match=message):
            run(*where, "--tasks", "tagging sentiment" if "crf" in flag else "sentiment tagging", f"--{flag}")
    assert not (tmp_path / "out").exists()


def test_a_part_of_a_grid_that_ends_last_has_the_runs_of_the_others(pretrained: Path, tmp_path: Path) -> None:
    """Two processes are at parts of one grid: the table of the one that ends last is the whole one."""
    file, out = tmp_path / "grid.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump({**GRID, "encoders": str(pretrained / "encoder")}))
    whole = compare.load(file, tasks=["sentiment", "entailment"])

    def of(task: str, finetune: Any) -> None:
        grid_run.compare(compare.load(file, tasks=[task]), out, finetune, whole=whole)

    def tune(request: Any) -> None:
        figures = {"test/accuracy": 0.9, "val/best_accuracy": 0.9, "degenerate": False, "tokens": 10, "seconds": 6.0}
        (request.out / "metrics.json").write_text(json.dumps(figures))

    def tune_beside_another(request: Any) -> None:
        of("entailment", tune)
        tune(request)

    of("sentiment", tune_beside_another)
    rows = comparison_files.read(out / "compare.csv")
    assert [row["task"] for row in rows] == ["sentiment", "entailment"]
