"""The grid: every run once, gone on with where it stopped, one table; and tasks that users add."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline import metrics
from pipeline.cli.commands import results
from pipeline.cli.task_template import new_task
from pipeline.errors import UserError
from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.comparison import gains as comparison
from pipeline.experiments.comparison import grid as compare
from pipeline.experiments.comparison import plot as comparison_plot
from pipeline.experiments.comparison.table import Footnote, score_table
from pipeline.experiments.run_cache import fingerprint_of_finetune, once, with_contents
from pipeline.presets.files import REPOSITORY, named_config
from pipeline.presets.tasks import task_hash
from pipeline.tracking import plots
from pipeline.training import checkpoints
from pipeline.training.requests import FineTuneRequest
from pipeline.training.run_folder import restore, set_aside
from tasks.base import kinds
from tests.conftest import assert_plot, check_task, run, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow

TINY = ["--validations=1", "--precision=32-true", "--data.max_length=24", "--data.train_rows=32", "--data.epochs=1"]


def test_a_difference_of_runs_is_students() -> None:
    ours, theirs = [0.9, 0.8, 0.95], [0.7, 0.75, 0.7]
    found, apart = metrics.Difference.of(ours, theirs), np.subtract(ours, theirs)
    error = apart.std(ddof=1) / 3**0.5
    assert found.mean == pytest.approx(apart.mean())
    assert found.half == pytest.approx(stats.t.ppf(0.975, 2) * error)
    assert found.p == pytest.approx(2 * stats.t.sf(apart.mean() / error, 2))
    assert metrics.mean_and_deviation(ours) == (pytest.approx(np.mean(ours)), pytest.approx(np.std(ours, ddof=1)))
    assert metrics.Difference.of([0.5], [0.25]) == metrics.Difference(0.25, None, None)
    alike = metrics.Difference.of([0.7, 0.6, 0.8], [0.65, 0.55, 0.75])  # of few test rows: no certainty
    assert (alike.mean, alike.half, alike.p) == (pytest.approx(0.05), None, 1)


def line(ours: list[float], scratch: list[float], baseline: list[float], mode: str = "max") -> comparison.Line:
    """A line of a comparison with two arms."""
    rows = [
        {"model": "m", "task": "t", "arm": arm, "seed": seed, "metric": "span_f1", "mode": mode, "score": score}
        | {"degenerate": arm == "scratch", "tokens": 1.0, "minutes": 1.0, "baseline/a": 0.1, "baseline/b/mse": 9.0}
        | {"baseline/bag_of_words": simple}
        for arm, scores in (("full", ours), ("scratch", scratch))
        for seed, (score, simple) in enumerate(zip(scores, baseline, strict=False))
    ]
    return comparison.lines_of(rows)[0]


def test_gains_are_paired_and_bold_where_they_are_certain() -> None:
    ours, scratch = [0.9, 0.8, 0.95], [0.7, 0.75, 0.7]
    assert str(line(ours, scratch, [0.5] * 3).gain_over_scratch) == "+0.167 [-0.092, +0.425]"
    sure = line([0.9, 0.91, 0.9], scratch, [0.8, 0.3, 0.8])
    interval = stats.ttest_rel([0.9, 0.91, 0.9], scratch).confidence_interval(0.95)
    assert str(sure.gain_over_scratch) == f"**+0.187 [{interval.low:+.3f}, {interval.high:+.3f}]**"
    assert str(line([0.9], [0.8], [0.85]).gain_over_baseline) == "+0.050"
    lost = line(scratch, [0.9, 0.91, 0.9], [0.5] * 3).gain_over_scratch
    assert lost is not None
    assert not lost.is_open  # a loss is as certain as a gain would be
    assert not lost.is_certain
    assert sure.best_baseline == comparison.Baseline("bag of words", {0: 0.8, 1: 0.3, 2: 0.8})
    less = line([0.9], [0.8], [0.05], mode="min")
    assert (less.best_arm, less.best_baseline, str(less.gain_over_scratch)) == (
        "scratch",
        comparison.Baseline("bag of words", {0: 0.05}),
        "-0.100",
    )
    assert comparison.pretrained_arm(["random", "scratch", "full"]) == "full"
    assert comparison.pretrained_arm(["full", "frozen"]) is None
    assert line([0.5, 0.5], [0.4, 0.6], [0.1] * 2).best_arm is None  # equal means: neither is bold
    uneven = line([0.9, 0.91, 0.9], scratch[:1], [0.6, 0.5, 0.4])
    assert uneven.best_baseline is not None
    assert uneven.best_baseline.mean == pytest.approx(0.5)  # seed 0 counts once, though two arms have it
    text = score_table([sure]).markdown
    assert "| t (span F1) | m | **0.903 ± 0.006** | 0.717 ± 0.029 |" in text
    assert "Runs that predict the same for all rows: m on t, scratch: 3." in text
    assert "mean ± standard deviation over 3 seeds" in text
    assert "Gains are those of full, of one seed: they may be chance." in score_table([line([0.9], [0.8], [0.1])]).notes
    equal = score_table([line([0.75, 0.5], [0.5, 0.25], [0.25, 0.0])]).notes
    assert "Gains are those of full, of seeds with equal differences: they may be chance." in equal


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_plot_speaks_of_intervals_where_there_are_some(
    seeds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, file: drawn.append(figure))
    ours = [0.9, 0.91, 0.92][:seeds]
    comparison_plot.plot([line(ours, [0.8] * seeds, [0.5] * seeds)], "full", tmp_path / "compare.png")
    scores, gains = drawn[0].axes
    assert ("intervals over seeds" in gains.get_title("left")) == (seeds > 1)
    assert ("single runs" in scores.get_xlabel()) == (seeds > 1)


def test_notes_say_what_the_table_has() -> None:
    several = line([0.9, 0.91, 0.92], [0.8], [0.6] * 3)
    text = score_table([several], [Footnote("Of another task.", "other"), Footnote("Of t.", "t")]).markdown
    assert "95 % intervals" in text  # of the gain over the baseline
    assert "one seed: they may be chance" not in text
    assert "Of another task." not in text
    assert "m¹ |" in text


def test_gains_are_of_the_same_seeds() -> None:
    rows = line([0.70, 0.90, 0.80], [0.5, 0.8799, 0.7801], [0.5] * 3).rows
    without = [row for row in rows if (row["arm"], row["seed"]) != ("scratch", 0)]
    assert str(comparison.lines_of(without)[0].gain_over_scratch) == "**+0.020 [+0.019, +0.021]**"


def test_a_grid_runs_once_and_goes_on(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "models: [bert]\ntasks: [sentiment, tagging]\nencoders: nowhere/{model}\n"
        "arms:\n  full: {seeds: 2, choose: {model.optimization.learning_rate: [1.0e-4, 1.0e-3]}}\n"
        "  scratch: {seeds: 1}\n  frozen: {seeds: 1}\n"
    )
    flags = ["--name", str(grid), "--out", str(tmp_path / "out"), *TINY]
    with pytest.raises(UserError, match="There is no encoder in nowhere/bert"):
        run("compare", *flags)
    flags += ["--from", str(pretrained / "encoder")]
    run("compare", *flags, "--tasks", "sentiment", "--arms", "full scratch")
    runs = tmp_path / "out/runs"
    assert len(list(runs.glob("[!.]*"))) == 4
    times = {path: path.stat().st_mtime_ns for path in runs.glob("*/metrics.json")}
    shutil.rmtree(runs / "bert-sentiment-scratch-0")
    run("compare", *flags)
    shown = capsys.readouterr()
    assert "run again" not in shown.err
    assert len(list(runs.glob("[!.]*"))) == 10
    for path, time in times.items():
        assert (path.stat().st_mtime_ns == time) == ("scratch-0" not in str(path))

    rows = list(csv.DictReader((tmp_path / "out/compare.csv").open()))
    assert len(rows) == 8
    assert [row["score"] for row in comparison_files.read(tmp_path / "out/compare.csv")] == [
        float(r["score"]) for r in rows
    ]
    chosen = [row for row in rows if (row["task"], row["arm"]) == ("sentiment", "full")]
    tried = [json.loads((runs / f"bert-sentiment-full-0-{i}/metrics.json").read_text()) for i in range(2)]
    best = max(range(2), key=lambda i: tried[i]["val/best_accuracy"])
    assert {row["flags"] for row in chosen} == {f"--model.optimization.learning_rate={[1e-4, 1e-3][best]}"}
    text = (tmp_path / "out/compare.md").read_text()
    mean = statistics.fmean(float(row["score"]) for row in chosen)
    assert re.search(rf"\| sentiment \(accuracy\) \| bert \| (\*\*)?{mean:.3f} ±", text)
    assert "(training spans)" in text
    assert_plot(tmp_path / "out/compare.png")
    assert text in shown.out
    run("compare", *flags, "--tasks", "sentiment", "--arms", "frozen", "--data.train_rows=16")
    assert "bert-sentiment-frozen-0 is run again: not of the same flags." in capsys.readouterr().err
    # With other flags the rest is not of the same: it is left out. With the same, a part of the grid keeps the rest.
    assert len(list(csv.DictReader((tmp_path / "out/compare.csv").open()))) == 1
    run("compare", *flags, "--tasks", "tagging", "--arms", "full")
    noted = [shlex.split(line) for line in comparison_files.commands_in(tmp_path / "out")]
    common = ["python", "-m", "pipeline", "compare", f"--name={grid}"]
    given = [f"--from={pretrained}/encoder", f"--out={tmp_path}/out", *TINY]
    parts = [["--tasks=sentiment", "--arms=full scratch"], [], ["--tasks=tagging", "--arms=full"]]
    assert noted == [[*common, *part, *given] for part in parts]
    kept = list(csv.DictReader((tmp_path / "out/compare.csv").open()))
    assert [row for row in rows if (row["task"], row["arm"]) != ("sentiment", "frozen")] == kept
    run("compare", *flags, "--tasks", "tagging", "--arms", "full", "--seeds", "1")  # takes no seed away
    assert list(csv.DictReader((tmp_path / "out/compare.csv").open())) == kept
    run("compare", *flags, "--tasks", "tagging", "--arms", "full", "--seeds", "3")
    run("compare", *flags, "--tasks", "sentiment", "--arms", "full")  # nor one of those that the grid has not
    table = list(csv.DictReader((tmp_path / "out/compare.csv").open()))
    assert [row["seed"] for row in table if (row["task"], row["arm"]) == ("tagging", "full")] == ["0", "1", "2"]
    shutil.rmtree(next(runs.glob("bert-sentiment-full-1-*")))
    run("compare", *flags, "--tasks", "tagging", "--arms", "full")  # nor a seed beside one that is missing
    seeds = [row["seed"] for row in csv.DictReader((tmp_path / "out/compare.csv").open()) if row["task"] == "sentiment"]
    assert seeds == ["0", "0"]  # of full and of scratch


def test_what_is_finished_is_not_taken_for_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[bool] = []

    def fit(*, resume: bool) -> None:
        made.append(resume)
        (tmp_path / "metrics.json").write_text(json.dumps({"run": len(made)}))

    for flags, number, anew in (([], 1, False), ([], 1, False), (["--x"], 2, True), (["--x"], 2, False), ([], 3, True)):
        assert once(tmp_path, {"encoder": "a", "flags": flags}, fit) == {"run": number}
        assert ("is run again: not of the same flags." in capsys.readouterr().err) == anew
    assert made == [False] * 3


def test_a_refused_run_leaves_what_was_there(tmp_path: Path) -> None:
    """A misspelt flag, or OVERWRITE=1 with one: the figures of before are not lost."""
    folder, cell = tmp_path / "run", {"flags": []}
    made: list[int] = []

    def fit(*, resume: bool, begins: bool = True, ends: bool = True) -> None:
        assert not (folder / "metrics.json").exists()
        (folder / "lineage.json").write_text("[]")
        if begins:
            (folder / "checkpoints").mkdir()
            (folder / "checkpoints/last.ckpt").touch()
        if not ends:
            raise UserError("There is no flag --x.")
        made.append(len(made))
        (folder / "metrics.json").write_text(json.dumps({"run": len(made)}))

    def interrupted(*, resume: bool) -> None:
        raise KeyboardInterrupt

    assert once(folder, cell, fit) == {"run": 1}
    there = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for anew, flags in ((False, ["--x"]), (True, [])):
        with pytest.raises(UserError, match="no flag --x"):
            once(folder, {"flags": flags}, partial(fit, begins=False, ends=False), overwrite=anew)
        assert {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == there
    with pytest.raises(KeyboardInterrupt):
        once(folder, {"flags": ["--z"]}, interrupted)
    assert once(folder, cell, fit) == {"run": 1}
    assert once(folder, cell, fit, overwrite=True) == {"run": 2}
    with pytest.raises(UserError):
        once(folder, {"flags": ["--y"]}, partial(fit, ends=False))
    assert not (folder / "metrics.json").exists()  # it had begun: what is there is its own
    assert once(folder, cell, fit) == {"run": 3}
    assert {path.name for path in tmp_path.iterdir()} <= {"run", ".run.lock"}


def test_a_stopped_run_goes_on_from_either_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from the one before; it begins anew where both are damaged, and no other run of the grid is lost."""
    folder, begun = tmp_path / "run", list[bool]()

    def fit(*, resume: bool, ends: bool = True) -> None:
        begun.append(resume)
        if resume and (folder / "checkpoints/previous.ckpt").read_text() == "cut":
            raise checkpoints.Damaged("Both checkpoints are damaged.")
        (folder / "checkpoints").mkdir(exist_ok=True)
        (folder / "checkpoints/previous.ckpt").write_text("whole")
        if not ends:
            raise KeyboardInterrupt
        (folder / "metrics.json").write_text(json.dumps({"run": len(begun)}))

    stop = partial(fit, ends=False)
    with pytest.raises(KeyboardInterrupt):
        once(folder, {"flags": []}, stop)
    with pytest.raises(KeyboardInterrupt):
        once(folder, {"flags": []}, stop)
    assert begun == [False, True]
    (folder / "checkpoints/previous.ckpt").write_text("cut")
    assert once(folder, {"flags": []}, fit) == {"run": 4}
    assert begun == [False, True, True, False]
    assert "run is run again: Both checkpoints are damaged." in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"run", ".run.lock"}


# A run that is still reading its data: there is no `lineage.json` yet.
SLOW = r"""
import json, os, sys
from pathlib import Path
from pipeline.experiments.run_cache import once

folder = Path(sys.argv[1])

def fit(*, resume):
    os.write(1, b"begun\n")  # what a run prints is kept apart
    sys.stdin.readline()
    (folder / "metrics.json").write_text(json.dumps({"run": "slow"}))

once(folder, {"flags": ["--slow"]}, fit)
"""


def test_a_run_of_a_grid_that_another_process_is_at(tmp_path: Path) -> None:
    """It had been taken for one that was killed, and its figures stood beside the note of another."""
    folder = tmp_path / "run"

    def fit(*, resume: bool) -> None:
        (folder / "metrics.json").write_text(json.dumps({"run": "first"}))

    once(folder, {"flags": []}, fit)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([python(), "-c", SLOW, str(folder)], env=surroundings(), **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        with pytest.raises(UserError, match="Another run is writing into"):
            once(folder, {"flags": []}, fit)
        other.communicate("go on\n", timeout=60)
    assert json.loads((folder / "cell.json").read_text()) == {"flags": ["--slow"]}
    assert json.loads((folder / "metrics.json").read_text()) == {"run": "slow"}
    assert once(folder, {"flags": ["--slow"]}, fit) == {"run": "slow"}


def test_fresh_weights_do_not_depend_on_those_of_the_encoder(pretrained: Path, tmp_path: Path) -> None:
    other = shutil.copytree(pretrained / "encoder", tmp_path / "other")
    with (other / "model.safetensors").open("ab") as file:
        file.write(b" ")
    for arm, same in (("full", False), ("frozen", False), ("scratch", True), ("random", True)):
        requests = [FineTuneRequest(arm=arm, encoder=folder) for folder in (pretrained / "encoder", other)]
        first, second = map(fingerprint_of_finetune, requests)
        assert (first == second) == same


def test_data_are_those_that_the_settings_of_a_task_name(pretrained: Path, tmp_path: Path) -> None:
    for name in ("learn", "hard"):  # no part by the names of the task
        (tmp_path / f"{name}.csv").write_text("text,label\na,0\nb,1\n")
    splits = "--data.task.init_args.splits={train: learn, valid: valid, test: hard}"
    request = FineTuneRequest(encoder=pretrained / "encoder", data=str(tmp_path), overrides=(splits,))
    before = fingerprint_of_finetune(request)
    assert fingerprint_of_finetune(request) == before
    (tmp_path / "hard.csv").write_text("text,label\na,0\nc,1\n")
    assert fingerprint_of_finetune(request) != before


def test_files_of_a_fine_tune_are_part_of_what_it_is(tmp_path: Path) -> None:
    text = (REPOSITORY / "configs/tasks/sentiment.yaml").read_text()
    changes = {"same": "", "comment": "# of mine\n", "more": "  batch_size: 16\n"}
    found = {}
    for name, addition in changes.items():
        (tmp_path / f"{name}.yaml").write_text(text + addition)
        found[name] = task_hash(tmp_path / f"{name}.yaml")
    asked = text.replace("So we were", "Then we were")
    assert asked != text
    (tmp_path / "prompts.yaml").write_text(asked)
    assert found["same"] == found["comment"] == task_hash(tmp_path / "prompts.yaml") != found["more"]


def test_a_file_that_a_setting_names_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    file = tmp_path / "optimization.yaml"
    flags = [f"--model.optimization={file}", "--precision", "32-true", "--data.x=" + "long " * 100]
    assert with_contents(flags) == flags  # no file
    file.write_text("learning_rate: 1")
    before = with_contents(flags)
    file.write_text("learning_rate: 2")
    assert before[:-1] == flags
    assert with_contents(flags) != before


def test_several_seeds(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    run("finetune", *where, "--seeds", "2", *TINY)
    out = capsys.readouterr().out
    assert "gain over scratch" in out
    assert f"in {tmp_path / 'run'}" in out
    assert len(list((tmp_path / "run/runs").glob("[!.]*"))) == 4
    run(*shlex.split((tmp_path / "run/command.txt").read_text())[3:])  # finds all that it would run
    again = capsys.readouterr()
    assert "run again" not in again.err
    assert "gain over scratch" in again.out
    (tmp_path / "run/config.yaml").write_text("{}")
    with pytest.raises(UserError, match="holds a single run"):
        run("finetune", *where, "--seeds", "2", *TINY)
    shutil.copytree(pretrained, tmp_path / "pretrain")
    with pytest.raises(UserError, match=r"pretrain is the folder of a run, whose command\.txt this would change"):
        run("compare", "--from", str(pretrained / "encoder"), "--models", "bert", "--out", str(tmp_path / "pretrain"))


def test_several_seeds_are_scored_by_the_metric_that_a_setting_gives_the_task(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), "--task", "tagging"]
    run("finetune", *where, "--seeds", "1", *TINY, "--data.task.init_args.spans=false")
    assert "tagging (token accuracy)" in capsys.readouterr().out
    choose = {"data.task.init_args.spans": [True, False]}
    grid = compare.Grid(["bert"], {"tagging": None}, {"full": compare.Arm(1, choose)}, "x")
    with pytest.raises(UserError, match="score tagging by span_f1 and token_accuracy, which cannot be compared"):
        compare.check_grid_settings(grid)


def test_what_a_grid_lacks_is_found_before_its_runs(tmp_path: Path, pretrained: Path) -> None:
    grid, rates = tmp_path / "grid.yaml", "{model.optimization.learning_rat: [1.0e-3]}"
    part = f"models: [bert]\nencoders: {pretrained}/encoder\ntasks: {{sentiment: null, pos: nowhere}}\narms: "
    for arms, message in (
        ("{full: {seeds: 1}}", "There is no task data at nowhere, where those of pos"),
        (f"{{full: {{seeds: 1}}, scratch: {{seeds: 1, choose: {rates}}}}}", "learning_rat"),
    ):
        grid.write_text(part + arms)
        with pytest.raises(UserError, match=message):
            run("compare", "--name", str(grid), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_wrong_grids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = tmp_path / "grid.yaml"
    misspelt = "{models: [bert], tasks: [pos], encoders: x, arms: {scrach: {seeds: 1}}}"
    for text, message in (
        ("models: [bert]\n", "has no tasks"),
        ("nonsense", "its content is 'nonsense'"),
        ("{models: [bert], tasks: [pos], arms: {full: {seeds: 1}}}", "write a line like `encoders: runs/pretrain"),
        (misspelt, "no arm 'scrach', but full, scratch, frozen, random"),
    ):
        grid.write_text(text)
        with pytest.raises(UserError, match=message):
            compare.load(grid)
    grid.write_bytes(b"models: [\xff]")
    with pytest.raises(UserError, match="is not UTF-8 text"):
        compare.load(grid)
    with pytest.raises(UserError, match=r"There is no encoder in mine/\{old\}/bert"):  # and none is pretrained there
        run("compare", "--from", "mine/{old}/{model}", "--out", str(tmp_path / "out"))
    assert not Path("mine").exists()
    with pytest.raises(UserError, match="no grid 'nowhere'"):
        run("compare", "--name", "nowhere")
    with pytest.raises(UserError, match="has no arm 'half'"):
        run("compare", "--arms", "half")
    with pytest.raises(UserError, match="the arm full chooses it itself"):
        run("compare", "--model.optimization.learning_rate=1e-4")
    with pytest.raises(UserError, match="no setting or flag --table-only"):
        run("compare", "--table-only")  # before what is missing is pretrained
    assert not Path("runs").exists()  # nothing is pretrained for it
    grid.write_text("{models: [bert], tasks: [a/mine.yaml, b/mine.yaml], encoders: x, arms: {full: {seeds: 1}}}")
    with pytest.raises(UserError, match="Two of the tasks are called 'mine'"):
        compare.load(grid)
    shutil.copy(REPOSITORY / "configs/tasks/tagging.yaml", "sentiment.yaml")
    with pytest.raises(UserError, match="Two of the tasks are called 'sentiment'"):  # one of the grid's file
        run("compare", "--models", "bert", "--tasks", "sentiment.yaml", "--from", "x", "--out", "out")
    made: list[str] = []
    monkeypatch.setattr("pipeline.cli.commands.compare.pretrain", lambda request: made.append(request.model))
    with pytest.raises(UserError, match="There is no model 'elmoo'"):
        run("compare", "--models", "bert elmoo", "--out", "out")
    assert not made  # nothing before all are known


def test_a_missing_encoder_is_said_before_any_run(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a command that makes it where the grid expects it."""
    grid, folder = tmp_path / "mine.yaml", tmp_path / "runs"
    grid.write_text(
        f"models: [bert, gpt]\ntasks: [sentiment]\narms: {{scratch: {{seeds: 1}}}}\ncorpus: some-text\n"
        f"encoders: {folder}/{{model}}/encoder\n"
    )
    shutil.copytree(pretrained / "encoder", folder / "bert/encoder")
    flags = ["--name", str(grid), "--models", "bert gpt", "--out", str(tmp_path / "out")]
    again = f"results {shlex.join(flags)} --precision=32-true"
    with pytest.raises(UserError, match=f"no encoder in {folder}/gpt/encoder; `.*{again}` pretrains what is missing"):
        run("compare", *flags, "--precision=32-true")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="some-text, and there is no such corpus"):
        run(*shlex.split(again))
    loaded = compare.load(grid)
    for corpus in ("task:sick", "texts/*.txt", "sample"):
        results.check_corpus(replace(loaded, corpus=corpus))
    for corpus, said in (
        ("task:sick", f"{folder}/bert/encoder is there already, pretrained on sample"),
        ("sample", ""),
    ):
        results.note_other_corpora(replace(loaded, corpus=corpus))
        heard = capsys.readouterr().out
        assert said in heard if said else not heard


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.optimization.learning_rate=1e-4"], "has no effect: the arm full chooses it itself"),
        (["--name", "real", "--model.craft.unfreeze_share=0.5"], "this grid has both .full, scratch, frozen, random."),
        (["--data", "somewhere"], "no folder for 'sentiment', so --data would be ignored"),
        (["--name", "real", "--tasks", "trec", "--data", "somewhere"], "no folder for 'trec'"),
        (["--data.seed=5"], "has its own seed and arm"),
    ],
)
def test_what_would_have_no_effect_or_another_in_each_arm(
    flags: list[str], message: str, pretrained: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run("compare", "--from", str(pretrained / "encoder"), "--out", str(tmp_path / "out"), *flags)
    assert not list(tmp_path.glob("out/runs/[!.]*/metrics.json"))


def test_a_rate_of_the_head_is_not_one_of_the_whole_network(pretrained: Path, tmp_path: Path) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "out")]
    with pytest.raises(UserError, match=r"means different things for frozen and trained encoders.*\(frozen, scratch\)"):
        run("finetune", *where, "--arm", "frozen", "--seeds", "2", "--model.optimization.learning_rate=3e-2")
    assert not list(tmp_path.glob("out/runs/[!.]*"))
    at_home = compare.Grid(["bert"], {"pos": None}, {"full": compare.Arm(1)}, "~/encoders/{model}")
    assert at_home.encoder("bert") == Path.home() / "encoders/bert"


@pytest.mark.parametrize("kind", sorted(kinds()))
def test_a_new_task_has_a_file_and_a_test(kind: str, toys: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    shutil.copy(REPOSITORY / "tests/conftest.py", tmp_path / "tests")
    yaml, test = new_task("my-own", kind, tmp_path)
    assert "test_my_own" in test.read_text()
    check_task(str(yaml), toys=toys, folder=tmp_path / "work", trains=False)
    wrong = {"my-own": "there already", "sst2": "there already", "My own": "small letters", "a" * 300: "300 characters"}
    for name, message in wrong.items():
        with pytest.raises(UserError, match=message):
            new_task(name, kind, tmp_path)
    (tmp_path / "tests/conftest.py").write_text("# of another project\n")
    assert len(new_task("other", kind, tmp_path)) == 1
    assert named_config("tasks", "my-own") == Path("configs/tasks/my-own.yaml")  # in the current folder
    assert not (REPOSITORY / "configs/tasks/my-own.yaml").exists()


def test_a_kind_of_task_of_ones_own(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shouting.py").write_text(
        "from dataclasses import dataclass\nfrom tasks.sentiment import Sentiment\n\n"
        "@dataclass\nclass Shouting(Sentiment):\n"
        "    pictures = ('wheel',)\n\n"
        "    def name_of(self, value):\n        return super().name_of(value).upper()\n\n"
        "    def plots(self, gold, predicted):\n        return {'wheel': super().plots(gold, predicted)['confusion']}\n"
    )
    (tmp_path / "mine.yaml").write_text(
        "data:\n  task:\n    class_path: shouting.Shouting\n    init_args: {sample: sentiment}\n  epochs: 1\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = tmp_path / "run"
    run(
        "finetune",
        "--task",
        str(tmp_path / "mine.yaml"),
        "--from",
        str(pretrained / "encoder"),
        "--out",
        str(out),
        *TINY,
    )
    row = json.loads((out / "predictions.jsonl").read_text().splitlines()[0])
    assert row["label"] in ("POSITIVE", "NEGATIVE")
    (out / "mine.png").touch()
    set_aside(out)  # as OVERWRITE=1 does, in a process that does not know this kind of task
    assert (out / ".before/wheel.png").is_file()
    restore(out)
    assert {"wheel.png", "mine.png"} <= {path.name for path in out.iterdir()}
    assert math.isfinite(json.loads((out / "metrics.json").read_text())["test/loss"])


def test_a_rate_that_diverges_is_not_chosen(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "mine.yaml"
    arm = "{seeds: 2, choose: {model.optimization.learning_rate: [%s]}}"
    head = f"models: [bert]\ntasks: [sentiment]\nencoders: {pretrained}/encoder\narms:\n  full: "
    grid.write_text(head + arm % "1.0e-3, 1.0e+30")
    flags = ["--name", str(grid), "--out", str(tmp_path / "out"), *TINY]
    run("compare", *flags)
    assert "bert-sentiment-full-0-1: The " in capsys.readouterr().err
    rows = comparison_files.read(tmp_path / "out/compare.csv")
    assert [(row["seed"], row["flags"].endswith("=0.001")) for row in rows] == [(0, True), (1, True)]
    said = "Without a finite loss, and in no score: bert-sentiment-full-0-1."
    assert said in (tmp_path / "out/compare.md").read_text()
    tried = tmp_path / "out/runs/bert-sentiment-full-0-1"
    before = (tried / "diverged.txt").stat().st_mtime_ns
    run("compare", *flags)  # all is finished
    assert (tried / "diverged.txt").stat().st_mtime_ns == before
    assert not any(path.name.startswith(".") for path in tried.parent.iterdir() if path.is_dir())

    grid.write_text(head + arm % "2.0e+30, 1.0e+30")
    with pytest.raises(UserError, match="not finite"):
        run("compare", *flags, "--out", str(tmp_path / "none"))
