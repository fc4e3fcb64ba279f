"""How many labels a prompt is worth: runs, the crossing of two lines, one picture."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from pipeline import UserError, worth
from tests.conftest import run


def test_where_two_lines_cross() -> None:
    line = {10: 0.5, 100: 0.7, 1000: 0.9}
    assert worth.crossing(line, 0.6) == pytest.approx(math.sqrt(10 * 100))
    assert worth.crossing(line, 0.4) == 10
    assert worth.crossing(line, 0.95) is None
    assert "more than 1,000" in worth.verdict({"labels": None, "zeroshot": 0.95, "finetuned": {"10": [], "1000": []}})
    assert "at most 10" in worth.verdict({"labels": 10.0, "zeroshot": 0.4, "finetuned": {"10": [], "1000": []}})


def test_worth_as_a_command(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "LABELS", (10, 20, 1000))
    monkeypatch.setattr(worth, "STEPS", 2)
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "out"), "--seeds", "2"]
    flags = ["--validations=1", "--precision=32-true", "--data.max_length=24", "--data.epochs=1"]
    run("worth", *where, *flags)
    found = json.loads((tmp_path / "out/worth.json").read_text())
    assert list(found["finetuned"]) == ["10", "20", "300"]
    assert all(len(scores) == 2 for scores in found["finetuned"].values())
    assert (tmp_path / "out/worth.png").stat().st_size > 5000
    with pytest.raises(UserError, match="leave SEED=5 out"):
        run("worth", *where, "--seed", "5", *flags)
    monkeypatch.setattr(worth, "worth", lambda *args, **options: sys.exit("asked for"))
    for more, there in (([], True), (["--overwrite"], False)):
        with pytest.raises(SystemExit, match="asked for"):
            run("worth", *where, *more, *flags)
        assert [(tmp_path / "out" / name).exists() for name in ("runs", "zeroshot")] == [there] * 2
    with pytest.raises(UserError, match="nothing to compare"):
        run("worth", "--task", "tagging", *where)
