"""How many labels a prompt is worth: runs, the crossing of two lines, one picture."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.experiments import data_efficiency as worth
from tests.conftest import assert_plot, run

pytestmark = pytest.mark.slow


def test_where_two_lines_cross() -> None:
    line = {10: 0.5, 100: 0.7, 1000: 0.9}
    assert worth.crossing(line, 0.6) == pytest.approx(math.sqrt(10 * 100))
    assert worth.crossing(line, 0.4) == 10
    assert worth.crossing(line, 0.95) is None
    assert "more than 1,000" in worth.verdict({"labels": None, "zeroshot": 0.95, "finetuned": {"10": [], "1000": []}})
    assert "at most 10" in worth.verdict({"labels": 10.0, "zeroshot": 0.4, "finetuned": {"10": [], "1000": []}})


def test_worth_as_a_command(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "LABELS", (10, 1000))
    monkeypatch.setattr(worth, "STEPS", 2)
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "out"), "--seeds", "2"]
    flags = ["--validations=1", "--precision=32-true", "--data.max_length=24", "--data.epochs=1"]
    run("worth", *where, *flags)
    found = json.loads((tmp_path / "out/worth.json").read_text())
    assert list(found["finetuned"]) == ["10", "300"]
    assert all(len(scores) == 2 for scores in found["finetuned"].values())
    assert_plot(tmp_path / "out/worth.png")
    with pytest.raises(UserError, match="leave --seed 5 out"):
        run("worth", *where, "--seed", "5", *flags)
    with pytest.raises(UserError, match=r"worth varies data\.train_rows itself"):
        run("worth", *where, *flags, "--data.train_rows=5")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("runs/*/metrics.json")}
    assert len(times) == 4
    with pytest.raises(UserError, match="max_stepz"):  # refused, so nothing is lost
        run("worth", *where, "--overwrite", *flags, "--trainer.max_stepz=3")
    run("worth", *where, *flags)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert json.loads((tmp_path / "out/worth.json").read_text()) == found
    monkeypatch.setattr(worth, "LABELS", (10, 20))
    run("worth", *where, "--overwrite", *flags)
    assert all((path.stat().st_mtime_ns == time) == ("300-" in str(path)) for path, time in times.items())
    with pytest.raises(UserError, match="cannot be compared"):
        run("worth", "--task", "tagging", *where)
