"""How many labels a prompt is worth, and how many pretraining: runs, the crossing of two lines, one picture."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.cli.commands.worth import tries
from pipeline.data.splits import nested
from pipeline.errors import Diverged, UserError
from pipeline.experiments.comparison.grid import load
from pipeline.experiments.worth import few_rows
from pipeline.experiments.worth import plot as worth_plot
from pipeline.experiments.worth import pretraining as worth_pretraining
from pipeline.experiments.worth import prompt as worth
from pipeline.experiments.worth import report as worth_report
from pipeline.experiments.worth import tasks as worth_tasks
from pipeline.experiments.worth.labels_saved import LabelsSaved
from pipeline.experiments.worth.report import verdict
from pipeline.presets.files import CONFIGS
from pipeline.storage.atomic import write_json
from pipeline.training.requests import FineTuneRequest
from tests.conftest import assert_plot, figures, run

pytestmark = pytest.mark.slow


def test_where_two_lines_cross() -> None:
    line = {10: 0.5, 100: 0.7, 1000: 0.9}
    assert few_rows.crossing(line, 0.6) == pytest.approx(math.sqrt(10 * 100))
    assert few_rows.crossing(line, 0.4) == 10
    assert few_rows.crossing(line, 0.95) is None
    figures = {"finetuned": {"10": [], "1000": []}, "without_prompt": 0.3, "standard_error": 0.01}
    assert "more than 1,000" in worth.verdict({"labels": None, "zeroshot": 0.95, **figures})
    assert "at most 10" in worth.verdict({"labels": 10.0, "zeroshot": 0.4, **figures})


def test_a_plot_marks_only_where_the_lines_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(worth.plots, "save_figure", lambda figure, file: drawn.append(figure.axes[0]))
    for labels, seeds in ((31.6, 2), (10.0, 1), (None, 1)):
        line = {number: [score] * seeds for number, score in ((10, 0.5), (100, 0.7))}
        worth.plot(line, 0.6, labels, tmp_path / "worth.png", title="gpt on sentiment")
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn]
    assert ["equal at about 32 labels" in legend for legend in legends] == [True, False, False]
    assert ["fine-tuned (mean ± std over seeds)" in legend for legend in legends] == [True, False, False]


def test_a_prompt_that_may_be_a_guess_is_worth_nothing() -> None:
    figures = {"labels": None, "finetuned": {"10": [], "300": []}, "without_prompt": 0.5, "standard_error": 0.02}
    assert worth.verdict({"zeroshot": 0.502, **figures}) == (
        "zero-shot 0.502 is not certainly above 0.500, a guess or the most frequent label: "
        "the prompt may be worth no labels"
    )
    assert "more than 300" in worth.verdict({"zeroshot": 0.56, **figures})


def test_worth_as_a_command(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth, "MOST", 30)
    monkeypatch.setattr(few_rows, "STEPS", 2)
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "out"), "--seeds", "1"]
    flags = ["--validations=1", "--precision=32-true", "--data.max_length=24", "--data.epochs=1"]
    run("worth", *where, *flags)
    found = json.loads((tmp_path / "out/worth.json").read_text())
    assert list(found["finetuned"]) == ["10", "30"]
    assert (found["labels"] is not None) <= worth.is_certain(found)
    assert all(len(scores) == 1 for scores in found["finetuned"].values())
    assert_plot(tmp_path / "out/worth.png")
    with pytest.raises(UserError, match="leave --seed 5 out"):
        run("worth", *where, "--seed", "5", *flags)
    with pytest.raises(UserError, match=r"worth varies data\.train_rows itself"):
        run("worth", *where, *flags, "--data.train_rows=5")
    with pytest.raises(UserError, match=r"data\.task\.init_args\.columns.* changes the task .* not for the prompt"):
        run("worth", *where, *flags, "--data.task.init_args.columns={text: text}")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("runs/*/metrics.json")}
    assert len(times) == 2
    with pytest.raises(UserError, match="max_stepz"):  # refused, so nothing is lost
        run("worth", *where, "--overwrite", *flags, "--trainer.max_stepz=3")
    run("worth", *where, *flags)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert json.loads((tmp_path / "out/worth.json").read_text()) == found
    monkeypatch.setattr(worth, "MOST", 20)
    run("worth", *where, "--overwrite", *flags)
    assert all((path.stat().st_mtime_ns == time) == path.parent.name.startswith("30-") for path, time in times.items())
    with pytest.raises(UserError, match="cannot be compared"):
        run("worth", "--task", "tagging", "--of", "prompt", *where)


# ---------------------------------------------------------------------- what pretraining is worth


Scores = dict[int, list[float]]


def measured(
    full: Scores, scratch: Scores, mode: str = "max", baselines: dict[int, float] | None = None
) -> LabelsSaved:
    return LabelsSaved("bert on sst2", "accuracy", mode, full, scratch, baselines or {})


SCRATCH = {10: [0.5, 0.5], 100: [0.6, 0.6], 1000: [0.8, 0.8], 10_000: [0.9, 0.9]}


def test_labels_that_fresh_weights_need() -> None:
    full = {10: [0.699, 0.701], 100: [0.8499, 0.8501], 1000: [0.9499, 0.9501], 10_000: [0.9, 0.9]}
    found = measured(full, scratch=SCRATCH)
    need = found.needs[10]  # the mean, 0.7, is halfway between 100 and 1,000 labels
    assert need.labels == pytest.approx(math.sqrt(100 * 1000))
    half = 12.706 * 0.001  # t of 97.5 % with one degree of freedom, times the standard error
    bounds = [100 * 10 ** ((0.1 + sign * half) / 0.2) for sign in (-1, 1)]
    assert need.interval == pytest.approx(tuple(bounds), rel=0.01)
    assert found.needs[100].labels == pytest.approx(math.sqrt(1000 * 10_000))
    assert found.needs[1000].labels == math.inf
    assert found.headline == 100  # with 1,000 there are too few to say
    figures = worth_report.figures(found)
    assert figures["worth"] == pytest.approx(math.sqrt(1000 * 10_000) - 100)
    assert figures["labels/1000/needed"] is None
    table = worth_report.table(found)
    assert "| 10 | 0.700 ± 0.001 | 0.500 ± 0.000 |  | 316 [274, 366] |" in table
    assert "> 10,000 [> 10,000, > 10,000]" in table
    assert "With 100 labels full scores 0.850; scratch needs 3,162 [3,090, 3,243] labels for that" in table
    assert "pretraining is worth 3,062 labels." in table
    alike = measured({**full, 100: [0.85, 0.85]}, scratch=SCRATCH).needs[100]
    assert (alike.labels, alike.certain) == (pytest.approx(math.sqrt(1000 * 10_000)), False)  # nothing says of chance


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_hold_the_truth_and_certainty_is_rare_where_nothing_is_saved(seeds: int) -> None:
    """With scores that rise by 0.1 for ten times as many labels, and differ by 0.01 from seed to seed."""
    rng = np.random.default_rng(seeds)

    def scores(gain: float) -> Scores:
        return {
            size: (0.5 + gain + 0.1 * place + rng.normal(0, 0.01, seeds)).tolist() for place, size in enumerate(sizes)
        }

    sizes, times = [10, 100, 1000, 10_000], 150
    needs = [measured(scores(0.05), scores(0.0)).needs[100] for _ in range(times)]
    held = sum(need.interval[0] <= 100 * 10**0.5 <= need.interval[1] for need in needs if need.interval is not None)
    assert held / times > 0.9
    nothing = [measured(scores(0.0), scores(0.0)).headline for _ in range(times)]
    assert sum(size is not None for size in nothing) / times < 0.08


def test_labels_of_a_metric_of_which_less_is_better() -> None:
    error = {size: [-value for value in values] for size, values in SCRATCH.items()}
    found = measured({size: [-0.8] * 2 for size in SCRATCH}, error, mode="min")
    assert found.needs[10].labels == pytest.approx(1000)


@pytest.mark.parametrize("tasks", [1, 2])
def test_the_plot_of_labels_has_each_legend_once_and_apart(monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    full = {10: [0.7, 0.8], 100: [0.8, 0.8], 1000: [0.95, 0.95], 10_000: [0.95, 0.95]}  # the last two: more than tried
    found = measured(full, SCRATCH, baselines=dict.fromkeys(SCRATCH, 0.5))
    drawn: list[Any] = []
    monkeypatch.setattr(worth_plot.plots, "save_figure", lambda figure, file: drawn.append(figure))
    worth_plot.plot([found] * tasks, Path("worth.png"), title="bert")
    (figure,) = drawn
    figure.canvas.draw()
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert len(names) == len(set(names)) == 7
    assert "(2 seeds, scores ± standard deviation)" in figure._suptitle.get_text()
    assert not any(axes.get_legend() for axes in figure.axes)
    places = [part.get_window_extent() for part in (*figure.legends, *(axes.yaxis.label for axes in figure.axes))]
    title = figure._suptitle.get_window_extent()
    assert not any(a.overlaps(b) for a, b in itertools.combinations([title, *places], 2))


def test_bounds_do_not_look_like_numbers_of_labels() -> None:
    _, axes = worth_plot.plots.subplots()
    full = {10: [0.5, 0.5], 100: [0.65, 0.65], 1000: [0.95, 0.95], 10_000: [0.4, 0.4]}
    worth_plot.draw_needs(axes, measured(full, SCRATCH))
    marks, names = axes.get_legend_handles_labels()
    drawn = [(name, mark.get_ydata()[0]) for mark, name in zip(marks, names, strict=True) if len(mark.get_ydata()) == 1]
    assert [name for name, _ in drawn].count("needed") == [name for name, _ in drawn].count("more than were tried") == 1
    assert [height for name, height in drawn if name == "no more than the fewest tried"] == [10, 10]
    [line] = [line for line in axes.lines if len(line.get_ydata()) == 4 and line.get_linestyle() == "-"]
    assert [math.isnan(value) for value in line.get_ydata()] == [True, False, True, True]


def test_what_is_saved_below_a_baseline_is_drawn_hollow() -> None:
    _, axes = worth_plot.plots.subplots()
    full = {10: [0.5, 0.5], 100: [0.65, 0.65], 1000: [0.8, 0.8], 10_000: [0.9, 0.9]}
    found = measured(full, SCRATCH, baselines={10: 0.1, 100: 0.7, 1000: 0.7, 10_000: 0.95})
    worth_plot.draw_needs(axes, found)
    hollow = [line.get_xdata()[0] for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert hollow == [size for size in found.sizes if not found.beats_baseline(size)] == [100, 10_000]


def test_labels_below_the_best_baseline_are_no_headline() -> None:
    full = {10: [0.6, 0.8], 100: [0.8499, 0.8501], 1000: [0.9499, 0.9501], 10_000: [0.9, 0.9]}
    found = measured(full, SCRATCH, baselines={10: 0.75, 100: 0.86, 1000: 0.9, 10_000: 0.9})
    assert found.headline == 1000
    assert "| 100 | 0.850 ± 0.000 | 0.600 ± 0.000 | 0.860 | 3,162 [3,090, 3,243] |" in worth_report.table(found)
    assert worth_report.figures(found)["labels/100/baseline"] == 0.86
    never = measured(full, SCRATCH, baselines=dict.fromkeys(full, 0.96))
    assert never.headline is None
    assert "none of these numbers of labels is full better than the best baseline" in verdict(never)
    error = measured({size: [1 - value[0]] for size, value in full.items()}, SCRATCH, "min", dict.fromkeys(full, 0.3))
    assert [error.beats_baseline(size) for size in error.sizes] == [False, True, True, True]


def test_where_pretraining_is_worth_nothing_or_more_than_there_is() -> None:
    worse = measured(full={size: [value[0] - 0.05] * 2 for size, value in SCRATCH.items()}, scratch=SCRATCH)
    assert "leave open whether pretraining saves labels" in verdict(worse)
    assert "worth" not in worth_report.figures(worse)
    unsure = measured({size: [0.4, value[0] + 0.2] for size, value in SCRATCH.items()}, SCRATCH)
    assert unsure.needs[100].labels > 100  # but not with each of the seeds
    assert "leave open" in verdict(unsure)
    best = measured(full={size: [0.99, 1.0] for size in SCRATCH}, scratch={size: [0.5, 0.5] for size in SCRATCH})
    assert "and scratch does not with 10,000: pretraining is worth more than 9,990 labels" in verdict(best)
    single = measured(full={size: [1.0] for size in SCRATCH}, scratch={size: [0.5] for size in SCRATCH})
    assert single.needs[10].interval is None
    assert "leave open" in verdict(single)  # of one seed nothing is certain
    one = measured(
        {10: [0.3, 0.3], 100: [0.8, 0.801], 1000: [0.1, 0.1], 10_000: [0.1, 0.1]}, {**SCRATCH, 10_000: [0.8, 0.8]}
    )
    assert "> 10,000 [935, > 10,000] labels for that: pretraining is worth more than 835" in verdict(one)
    late = {**SCRATCH, 10: [0.4, 0.4], 100: [0.5, 0.5], 1000: [0.7, 0.7], 10_000: [0.9499, 0.9501]}
    assert "With 10,000 labels full scores 0.950, and scratch does worse:" in verdict(measured(late, SCRATCH))


def test_numbers_of_labels() -> None:
    assert few_rows.training_sizes(67_349) == [10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 67_349]
    assert few_rows.training_sizes(340) == [10, 32, 100, 340]
    assert few_rows.training_sizes(340, [100, 0, 1000]) == [100, 340]
    assert few_rows.training_sizes(67_349, most=1000) == [10, 32, 100, 316, 1000]
    assert few_rows.training_sizes(340, most=1000) == [10, 32, 100, 340]
    with pytest.raises(UserError, match="at least two such numbers, and there is only 8"):
        few_rows.training_sizes(8)
    assert few_rows.settings_for(67_349, of=67_349) == {"data.train_rows": 67_349, "validations": 1}  # as in its file
    assert few_rows.settings_for(500, of=500)["data.epochs"] == 5
    assert few_rows.settings_for(3162, of=67_349)["data.batch_size"] == 32
    with pytest.raises(UserError, match=r"there is only 10 \(the training part has 324 rows\)"):
        few_rows.training_sizes(324, [10])


def test_rows_are_nested_and_have_the_classes_in_their_shares() -> None:
    strata = [number % 4 == 0 for number in range(400)]
    order = nested(strata, 3)
    assert sorted(order) == list(range(400))
    assert order != nested(strata, 4)
    for size in (10, 32, 100, 316):
        assert abs(sum(strata[row] for row in order[:size]) - size / 4) <= 1
    assert nested([None] * 50, 7) == np.random.default_rng(7).permutation(50).tolist()


@pytest.mark.parametrize("task", ["sentiment", "tagging"])
def test_labels_saved_as_a_command(
    task: str, pretrained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "STEPS", 2)
    where = ["worth", "--task", task, "--from", str(pretrained / "encoder"), "--out", "out", "--labels", "8,16"]
    flags = ["--precision=32-true", "--data.max_length=24", "--epochs=1"]
    plain = ["--data.task.init_args.spans=false"]  # which gives the task another metric
    more = ["--seeds", "2"] if task == "sentiment" else ["--seeds", "1", "--rates", "1e-3,1e-4", *plain]
    run(*where, *more, *flags)
    said = capsys.readouterr().out
    assert any(words in said for words in ("pretraining is worth", "leave open whether", "none of these numbers"))
    assert "best baseline" in said
    end = figures(Path("out"))
    assert {"labels/8/baseline", "labels/16/baseline"} <= set(end)
    assert end["seeds"] == int(more[1])
    assert end["metric"] == ("accuracy" if task == "sentiment" else "token_accuracy")
    assert {f"labels/{size}/{arm}" for size in (8, 16) for arm in ("full", "scratch")} <= set(end)
    runs = sorted(path.parent.name for path in Path("out/runs").glob("*/metrics.json"))
    assert len(runs) == 8
    assert_plot(Path("out/worth.png"))
    if task == "tagging":
        with pytest.raises(UserError, match="are of pretraining"):
            run(*where, "--of", "prompt")
        with pytest.raises(UserError, match="'some'; it takes numbers"):
            run(*where[:-1], "some")
        with pytest.raises(UserError, match="'0'; it takes learning rates"):
            run(*where, "--rates", "0")
        with pytest.raises(UserError, match="learning_rate has no effect beside"):
            run(*where, "--rates", "1e-3", "--learning-rate", "1e-4")
        with pytest.raises(UserError, match="is the folder of a run, whose metrics"):
            run(*where, "--out", "out/runs/full-8-0-0")
        return
    times = {path: path.stat().st_mtime_ns for path in Path("out/runs").glob("*/metrics.json")}
    run(*where, *more, *flags)
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_settings_that_mean_nothing_to_a_task_are_tried_once(pretrained: Path, tmp_path: Path) -> None:
    tried: list[str] = []

    def finetune(request: FineTuneRequest) -> None:
        assert request.out is not None
        tried.append(request.out.name)
        raise UserError("enough")

    request = FineTuneRequest(model="bert", task="sentiment", encoder=pretrained / "encoder")
    pairs = [(f"--model.recipe.pair={pair}",) for pair in ("joined", "compared")]
    with pytest.raises(UserError, match="enough"):
        worth_pretraining.measure(
            request, finetune, tmp_path, seeds=1, labels=[8, 16], choices={"full": pairs}, overwrite=False
        )
    assert tried == ["full-8-0"]


def test_a_loss_that_is_not_finite_leaves_out_its_number_of_labels(pretrained: Path, tmp_path: Path) -> None:
    def finetune(request: FineTuneRequest) -> None:
        assert request.out is not None
        if request.out.name == "scratch-16-1":
            raise Diverged("The loss is not finite.")
        baseline = {"bag_of_words" if request.seed else "majority": 0.4, "chance": 0.001}
        made = {"version": "1", "device": "cpu", "precision": "32-true" if request.arm == "full" else "bf16-mixed"}
        figures = {"test/accuracy": 0.5, "val/best_accuracy": 0.5, **made}
        write_json(request.out / "metrics.json", figures | {f"baseline/{k}": v for k, v in baseline.items()})

    request = FineTuneRequest(model="bert", task="sentiment", encoder=pretrained / "encoder")
    requests, how = {"sentiment": request}, {"seeds": 2, "labels": [8, 16, 32], "choices": {}, "overwrite": False}
    [found] = worth_tasks.measure_all(requests, finetune, tmp_path, title="bert", **how)
    assert (found.sizes, found.diverged) == ([8, 32], [16])
    assert found.baselines == {8: 0.001, 32: 0.001}  # the one that both seeds have
    for text in ((tmp_path / "worth.md").read_text(), (tmp_path / "sentiment/worth.md").read_text()):
        assert "Without a finite loss, so not in the table: bert on sentiment with 16 labels." in text
        assert "All rows: version 1, precision 32-true, bf16-mixed, device cpu." in text
        assert "Some runs of the same seed differ in precision" in text
        assert "| 8 | 0.500 ± 0.000 | 0.500 ± 0.000 | 0.001 |" in text
    with pytest.raises(UserError, match="No finite loss: bert on sentiment with 16 labels"):
        worth_pretraining.check_finite([found])


def test_a_model_that_counts_has_no_fresh_weights(toys: Callable[[str], Path]) -> None:
    where = ["--model", "ngram", "--from", str(toys("ngram") / "encoder")]
    with pytest.raises(UserError, match="has the arm 'full' only"):
        run("worth", *where, "--of", "pretraining")


def test_the_tasks_of_a_comparison_in_one_plot(
    pretrained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "STEPS", 2)
    where = ["worth", "--name", "sample", "--from", str(pretrained / "encoder"), "--out", "out", "--labels", "8,16"]
    flags = ["--precision=32-true", "--data.max_length=24", "--epochs=1", "--seeds", "1"]
    flags += ["--learning-rate", "1e-3"]  # in place of the two rates of the comparison
    run(*where, "--tasks", "tagging sentiment", *flags, "--model.recipe.reinit_layers=1")  # which full alone has
    said = capsys.readouterr().out
    assert "| tagging (span_f1) | 16 |" in said
    assert "- sentiment: " in said
    assert "of one seed" in said
    rows = Path("out/worth.csv").read_text().splitlines()
    assert rows[0] == "task,metric,arm,labels,seed,score"
    assert len(rows) == 1 + 2 * 2 * 2
    tried = {path.parent.name for path in Path("out/sentiment/runs").glob("*/metrics.json")}
    assert tried == {f"{arm}-{size}-0" for arm in ("full", "scratch") for size in (8, 16)}
    rate = "--model.optimization.learning_rate={}"
    both = [(rate.format(0.0003),), (rate.format(0.001),)]
    assert tries(load(CONFIGS / "compare/sample.yaml"), "full", [], ()) == both
    assert_plot(Path("out/worth.png"))
    assert figures(Path("out/tagging"))["metric"] == "span_f1"
    for more, message in (
        (["--task", "tagging"], "has its tasks: leave --task out"),
        (["--of", "prompt"], "--of prompt is of one task"),
        (["--name", "smaple"], "There is no grid 'smaple'"),
        (["--data", "here"], "has no folder for 'sentiment'"),
        (["--seed", "3"], "leave --seed 3 out"),
        (["--tasks", "tagging", "--model.recipe.pair=attended"], "no task here has pairs"),
    ):
        with pytest.raises(UserError, match=message):
            run(*where, *more)
    fixed = rate.format("1e-3")
    grid = {**yaml.safe_load((CONFIGS / "compare/sample.yaml").read_text()), "flags": [fixed]}
    Path("fixed.yaml").write_text(yaml.safe_dump(grid))
    with pytest.raises(UserError, match="learning_rate has no effect beside --rates"):
        run(*where, "--name", "fixed.yaml", "--rates", "1e-4,3e-4")
    chosen = tries(load(Path("fixed.yaml")), "full", [], (fixed,))
    assert chosen == [()]  # the flag of the grid is in place of the rates
    with pytest.raises(UserError, match="Name the comparison that has these tasks"):
        run("worth", "--tasks", "tagging")
