"""What a user sees: flags as they are typed, progress that is calm in log files, names that were meant."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.console import progress as bars
from pipeline.console import typed
from pipeline.console.similar import did_you_mean
from pipeline.presets.files import REPOSITORY
from pipeline.training import advice
from pipeline.training.requests import FineTuneRequest


@pytest.mark.parametrize("front_end", ["make", None])
def test_messages_name_flags_as_they_are_typed(front_end: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(typed.FRONT_END, front_end or "")
    monkeypatch.setattr("sys.argv", ["/usr/bin/pretrain-finetune"])
    said = [
        *(typed.flag("out"), typed.flag("resume"), typed.flag("seed", 3), typed.setting("data.length", 64)),
        typed.command("finetune", "--epochs=3", "--x=1", model=None, from_="a b", resume=True),
        typed.command("predict", from_="m", data="x.csv"),
        typed.shown("give --from and --data, not --batch-size or --out.x"),
    ]
    if front_end == "make":
        assert said[:4] == ["OUT=", "RESUME=1", "SEED=3", "ARGS=--data.length=64"]
        assert said[4:] == [
            "make finetune FROM='a b' RESUME=1 ARGS='--epochs=3 --x=1'",
            "make predict FROM=m DATA=x.csv",
            "give FROM and DATA, not --batch-size or --out.x",
        ]
    else:
        assert said[:4] == ["--out", "--resume", "--seed 3", "--data.length=64"]
        assert said[4:] == [
            "pretrain-finetune finetune --from 'a b' --resume --epochs=3 --x=1",
            "pretrain-finetune predict --from m --data x.csv",
            "give --from and --data, not --batch-size or --out.x",
        ]


def test_variables_of_make_are_those_of_the_makefile() -> None:
    [flags] = re.findall(r"^FLAGS := ((?:.*\\\n)*.*)", (REPOSITORY / "Makefile").read_text(), flags=re.M)
    assert {*re.findall(r"[A-Z]+--([a-z]+)", flags)} == {*typed.VARIABLES, "args"}


def test_progress_in_a_log_file_is_a_few_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = [0.0], io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    monkeypatch.setattr(bars.time, "monotonic", lambda: clock[0])
    with bars.progress(desc="evaluate", unit="batch", total=100, delay=1) as bar:
        for _ in range(100):
            clock[0] += 1
            bar.set_postfix_str("loss 1.5")
            bar.update()
            bars.write("a message") if bar.n == 50 else None
    lines = log.getvalue().splitlines()
    assert [line for line in lines if line != "a message"] == [
        line for line in lines if line.startswith("evaluate: batch ")
    ]
    assert 3 <= len(lines) - 1 <= 5
    assert all("\r" not in line and line.strip() for line in lines)
    assert lines[-1].startswith("evaluate: batch 100 of 100, 100%")


def test_short_work_leaves_nothing_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    assert list(bars.progress(range(3), desc="short", unit="step")) == [0, 1, 2]
    assert log.getvalue() == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_a_quiet_bar_counts_what_was_finished(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    log = io.StringIO()
    monkeypatch.setattr(log, "isatty", lambda: terminal)
    monkeypatch.setattr(bars.sys, "stderr", log)
    monkeypatch.setattr(bars, "level", lambda: bars.Level.QUIET)
    with bars.progress(total=3, desc="compare", unit="run") as bar:
        bar.initial += 1  # of an earlier command
        bar.update()
    assert (bar.initial, log.getvalue()) == (1, "")


def test_a_name_that_was_meant() -> None:
    assert did_you_mean("pretrian", ["finetune", "pretrain"]) == " Did you mean pretrain?"
    assert did_you_mean("zzz", ["finetune", "pretrain"]) == ""


def test_a_loss_that_is_not_below_its_baseline_says_so() -> None:
    said = advice.losses_above({"forward_loss": (7.571, 5.526), "backward_loss": (4.0, 5.526), "none_loss": (None, 1)})
    assert said is not None
    assert said.startswith("Warning: forward_loss 7.571 (unigram 5.526) is not below the baseline")
    assert advice.losses_above({"lm_loss": (4.0, 5.5)}) is None
    assert advice.losses_above({"lm_loss": (float("nan"), 5.5)}) is not None


def test_the_hint_of_the_other_arm_has_the_settings_of_the_run() -> None:
    """With other settings the difference would not be that of pretraining."""
    where: dict[str, Any] = {"encoder": Path("runs/b"), "out": Path("runs/a"), "answers": "labels"}
    settings = ("--data.epochs=3", "--model.distillation.teacher=runs/big")
    full = advice.after_finetuning(FineTuneRequest(task="mine", seed=2), **where, settings=settings)
    again = "finetune --task mine --from runs/b"
    assert f"{again} --arm scratch --seed 2 --data.epochs=3 --model.distillation.teacher=runs/big " in full
    scratch = advice.after_finetuning(FineTuneRequest(task="mine", arm="scratch"), **where, settings=settings)
    assert f"{again} --seeds 5 --data.epochs=3 " in scratch
