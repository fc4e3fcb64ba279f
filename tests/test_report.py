"""Reports: one page of a run, a comparison or an encoder's family, opened in a browser; tables in three forms."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.errors import UserError
from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.run_cache import NOTE
from pipeline.presets.files import REPOSITORY
from pipeline.reporting import charts, finetuning, predictions, prompting, render, shared
from pipeline.reporting.page import Figure, Node, Page, Section, Table, Tree
from pipeline.reporting.run_record import RunRecord, runs_under
from pipeline.tracking import amounts
from pipeline.tracking.history import History
from pipeline.tracking.tables import latex_table, markdown_table
from pipeline.training import energy
from tasks.metrics import shown
from tests import browser
from tests.conftest import figures, run

TINY = ["--precision=32-true", "--data.max_length=24", "--data.train_rows=32", "--data.epochs=1", "--validations=2"]


@pytest.fixture(scope="module")
def tuned(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A frozen tagger, whose head mixes the layers."""
    folder = tmp_path_factory.mktemp("tuned") / "runs/tagger"
    run(
        "finetune",
        "--task",
        "tagging",
        "--arm",
        "frozen",
        "--from",
        str(pretrained / "encoder"),
        "--out",
        str(folder),
        *TINY,
    )
    return folder


def page_in(folder: Path) -> str:
    """A page that has been written, which loads nothing and is small."""
    text = (folder / "report.html").read_text()
    assert not re.search(r"https?:|src=|@import|url\(|<script|<link", text)
    assert len(text.encode()) < 2_000_000
    for name in ("report.md", "report.tex"):
        assert (folder / name).read_text().strip()
    return text


def titles(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_run_and_what_grew_from_it(pretrained: Path, tuned: Path, tmp_path: Path) -> None:
    run("report", "--from", str(tuned))
    page = page_in(tuned)
    expected = ["Training curves", "Scores", "Errors worth reading", "Types of spans", "Layer weights", "Lineage"]
    assert [title for title in titles(page) if title in expected] == expected
    score = figures(tuned)["test/span_f1"]
    assert f"**{score:.4f}**" in (tuned / "report.md").read_text()
    assert "\\textbf{" in (tuned / "report.tex").read_text()
    command = (tuned / "command.txt").read_text().strip()
    assert command.startswith("python -m pipeline finetune --model bert")
    assert "--overwrite" not in command
    assert "frozen" in command
    # The encoder's folder is the run that made it; runs are looked for where one says.
    out = tmp_path / "page"
    run("report", "--from", str(pretrained / "encoder"), "--search", str(tuned.parent), "--out", str(out))
    page = page_in(out)
    assert "What grew from this encoder" in titles(page)
    assert {"Corpus and tokenizer", "Samples", "Repeat it"} <= set(titles(page))
    assert "(fertility)" in page
    assert "Task tagging" in page
    run("report", "--from", str(pretrained), "--search", str(tmp_path / "nothing"), "--out", str(out))
    assert "No fine-tune or zero-shot run of this encoder was found" in page_in(out)


def finished(
    folder: Path, score: float, *, arm: str = "full", seed: int = 0, rate: float = 1e-3, encoder: str = "e", **more: Any
) -> Path:
    """The folder of a fine-tune that has ended; `more` metrics."""
    folder.mkdir(parents=True)
    run_stage = {"stage": "finetune", "seed": seed, "version": "1"}
    stages = [{"stage": "encoder", "sha256": encoder}, {"stage": "task", "name": "sick"}, run_stage]
    (folder / "lineage.json").write_text(json.dumps(stages))
    config = {"model": {"arm": arm, "seed": seed, "optimization": {"learning_rate": rate}}, "data": {"seed": seed}}
    (folder / "config.yaml").write_text(json.dumps(config))
    metrics = {"test/accuracy": score, "val/best_accuracy": score, "baseline/majority": 0.5, "tokens": 1, "seconds": 60}
    (folder / "metrics.json").write_text(json.dumps({**metrics, **more}))
    return folder


def grown_from(encoder: Path, search: Path, out: Path) -> str:
    """The tables of the page of an encoder."""
    run("report", "--from", str(encoder), "--search", str(search), "--out", str(out))
    return (out / "report.md").read_text()


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A pretraining run without files that a page can do without."""
    folder = tmp_path / "pretrain"
    folder.mkdir()
    (folder / "lineage.json").write_text('[{"stage": "pretrain"}, {"stage": "encoder", "sha256": "e"}]')
    (folder / "metrics.json").write_text('{"steps": 1}')
    return folder


def test_runs_that_grew_are_paired_by_seed(encoder: Path, tmp_path: Path) -> None:
    for seed, score in enumerate((0.70, 0.90, 0.80)):
        finished(tmp_path / f"runs/full-{seed}", score, seed=seed)
    for seed, score in ((1, 0.8799), (2, 0.7801)):
        finished(tmp_path / f"runs/scratch-{seed}", score, arm="scratch", seed=seed)
    text = grown_from(encoder, tmp_path / "runs", tmp_path / "page")
    assert "**+0.020 [+0.019, +0.021]**" in text
    assert "Left out" not in text


def prompted(folder: Path, accuracy: float, shots: list[int]) -> Path:
    """The folder of a run of prompts."""
    folder.mkdir(parents=True)
    stages = [
        {"stage": "encoder", "sha256": "e"},
        {"stage": "task", "name": "sick", "sha256": "t"},
        {"stage": "zeroshot"},
    ]
    (folder / "lineage.json").write_text(json.dumps(stages))
    (folder / "config.yaml").write_text(json.dumps({"task": "sick", "shots": shots, "seed": 0}))
    found = {"zeroshot/accuracy": accuracy, "zeroshot/rows": 10, "zeroshot/template_1/accuracy": accuracy}
    found |= {f"zeroshot/shots_{count}/template_1/accuracy": 0.5 for count in shots[1:]}
    (folder / "metrics.json").write_text(json.dumps(found))
    (folder / "predictions.jsonl").write_text('{"template": "{text} It is"}\n')
    return folder


def test_prompts_with_solved_examples_are_no_zero_shot_runs(encoder: Path, tmp_path: Path) -> None:
    for shots, accuracy in (([0], 0.4), ([4], 0.6), ([1, 8], 0.5)):
        prompted(tmp_path / f"runs/{shots[0]}", accuracy, shots)
    text = grown_from(encoder, tmp_path / "runs", tmp_path / "page")
    assert re.findall(r"\| sick \| ([\d, ]+) \| (0\.\d+)", text) == [("0", "0.400"), ("1, 8", "0.500"), ("4", "0.600")]
    page = page_in(tmp_path / "page")
    for named in ("zero-shot", "4-shot", "with 1 and 8 examples"):
        assert named in page
    assert "2 runs" not in page
    seen = {0: "No label was seen.", 4: "Labels of solved examples were seen", 1: "Labels of solved examples were seen"}
    for number, caption in seen.items():
        report = grown_from(tmp_path / f"runs/{number}", tmp_path / "runs", tmp_path / f"page-{number}")
        assert caption in report
    assert "shots 4, template 1" in (tmp_path / "page-4/report.md").read_text()


def test_small_errors_and_names_with_marks_can_be_read() -> None:
    assert [shown(value) for value in (0.5, 2.1e-5, 0.0, 0.0004)] == ["0.500", "2.1e-05", "0.000", "0.0004"]
    assert markdown_table(["a"], [["<unk> p < 0.1"]]).splitlines()[-1] == r"| \<unk> p < 0.1 |"
    table = latex_table(["a"], [["<=50K | x"], ["[MASK] x"], ["**1**"]], aligned="l", caption="c", label="l")
    assert "\\textless{}=50K \\textbar{} x" in table
    assert "  {}[MASK] x" in table
    assert "  \\textbf{1}" in table


def test_runs_of_other_settings_and_of_experiments_are_no_further_seeds(encoder: Path, tmp_path: Path) -> None:
    for seed, score in enumerate((0.70, 0.80)):
        finished(tmp_path / f"runs/full-{seed}", score, seed=seed)
    finished(tmp_path / "runs/other-rate", 0.1, rate=1.0)
    finished(tmp_path / "runs/same-seed", 0.80, seed=1)
    part = finished(tmp_path / "runs/worth/runs/full-10-0", 0.2)
    (part / NOTE).write_text("{}")
    text = grown_from(encoder, tmp_path / "runs", tmp_path / "page")
    assert "| sick (accuracy) | model | 0.750 ± 0.071 |" in text
    assert f"Left out: {tmp_path}/runs/full-1, {tmp_path}/runs/other-rate." in text
    assert f"in their own tables: {tmp_path}/runs/worth." in text
    [shown] = re.findall(r"[0-9.]+ accuracy", (tmp_path / "page/report.html").read_text().partition("Lineage")[2])
    assert shown == "0.750 accuracy"


def test_an_encoder_all_of_whose_runs_are_in_a_comparison_says_where(encoder: Path, tmp_path: Path) -> None:
    (finished(tmp_path / "pairs/runs/model-sick-full-0", 0.7) / NOTE).write_text("{}")
    assert "0.700" not in grown_from(encoder, tmp_path / "pairs", tmp_path / "page")
    assert f"in their own tables: {tmp_path}/pairs." in (tmp_path / "page/report.html").read_text()


def test_the_best_baseline_is_one_that_all_runs_have(encoder: Path, tmp_path: Path) -> None:
    finished(tmp_path / "runs/full", 0.7, **{"baseline/bag_of_words": 0.6, "baseline/of_an_older_version": 0.9})
    finished(tmp_path / "runs/scratch", 0.6, arm="scratch", **{"baseline/bag_of_words": 0.6})
    assert "0.600 (bag of words)" in grown_from(encoder, tmp_path / "runs", tmp_path / "page")


def test_a_model_that_counts_has_no_steps(toys: Callable[[str], Path], tmp_path: Path) -> None:
    run("report", "--from", str(toys("ngram")), "--out", str(tmp_path))
    page = page_in(tmp_path)
    assert " counts, seed 0, version" in page
    assert "0 steps" not in page
    assert titles(page)[0] == "Metrics"


def test_a_line_of_one_point_is_a_dot() -> None:
    one = charts.line_chart([charts.Series("training", [(1, 2.0)], faint=True)], y_label="y")
    two = charts.line_chart([charts.Series("training", [(1, 2.0), (2, 3.0)], faint=True)], y_label="y")
    assert (one.count("<circle"), two.count("<circle")) == (1, 0)


def test_what_grew_from_one_thing_stands_below_it() -> None:
    """Also where it is the only one: it is no sibling of what it grew from, or of what comes after."""
    tasks = [Node(f"task {number}", [], [Node(f"arm {number}", [])]) for number in range(2)]
    text = render.html(Page("t", "", [], [Section("Lineage", [Tree(Node("encoder", [], tasks), "")])]))
    depth, found = 0, {}
    for tag, name in re.findall(r"<(/?ul)\b|<strong>(.*?)</strong>", text[text.index('<ul class="tree">') :]):
        depth += {"ul": 1, "/ul": -1}.get(tag, 0)
        found |= {name: depth} if name else {}
    assert found == {"encoder": 1, "task 0": 2, "arm 0": 3, "task 1": 2, "arm 1": 3}


def test_equal_values_of_a_dot_plot_do_not_hide_each_other() -> None:
    marks = [charts.Mark(0.5, color) for color in ("s0", "s1", "s0")] + [charts.Mark(0.5, "s6", bar=True)]
    svg = charts.dot_plot([charts.DotLine("bert", marks)], x_label="accuracy")
    heights = re.findall(r'<circle class="dot s\d" cx="[\d.]+" cy="([\d.]+)"', svg)
    assert (len(heights), len(set(heights))) == (3, 2)  # a height for each color


def test_amounts_can_be_read() -> None:
    assert [amounts.count(number) for number in (999, 31_329, 1_740_246)] == ["999", "31.3 k", "1.74 M"]
    assert [amounts.count(number) for number in (999_499, 999_999, 2e12, 2e15)] == ["999 k", "1 M", "2 T", "2,000 T"]
    assert [amounts.rounded(number) for number in (0.51812, 3691.4, 9999.8, 20_000.0)] == [
        "0.5181",
        "3,691",
        "10,000",
        "20,000",
    ]
    assert [amounts.duration(seconds) for seconds in (0.2, 59, 200, 9000)] == ["0.2 s", "59 s", "3.33 min", "2.5 h"]
    assert amounts.duration(1e8) == "1,157 days"


def test_a_comparison(tmp_path: Path) -> None:
    """The one in the repository, which has its table but no runs."""
    run("report", "--from", str(REPOSITORY / "results/sample"), "--out", str(tmp_path))
    page = page_in(tmp_path)
    assert titles(page) == ["Scores", "Every run", "Time and energy"]  # an older version noted no command
    assert page.count("<svg") == 6  # scores and gains of three tasks
    assert "\\toprule" in (tmp_path / "report.tex").read_text()


def compared(out: Path, scores: dict[str, float], *, chosen: str) -> None:
    """A comparison of one arm and seed whose settings had these scores."""
    flags = [f"--model.optimization.learning_rate={rate}" for rate in scores]
    for number, score in enumerate(scores.values()):
        folder = finished(out / f"runs/bert-sick-full-0-{number}", score)
        (folder / NOTE).write_text("{}")
        (folder / "command.txt").write_text(f"python -m pipeline finetune {flags[number]}\n")
        (folder / "metrics.csv").write_text(f"step,val/accuracy\n1,0.{number + 1}\n2,0.5\n")
    row = {"model": "bert", "task": "sick", "arm": "full", "seed": 0, "metric": "accuracy", "score": scores[chosen]}
    row |= {"flags": flags[list(scores).index(chosen)], "chosen_by": 0.5, "degenerate": False}
    row |= {"tokens": 1.0, "minutes": 1.0}
    comparison_files.report([row], out)


@pytest.mark.parametrize("other", [0.7, 0.8])  # two settings may have the same score
def test_a_comparison_draws_the_runs_of_its_table(other: float, tmp_path: Path) -> None:
    compared(tmp_path / "grid", {"1": other, "2": 0.8}, chosen="2")
    run("report", "--from", str(tmp_path / "grid"), "--out", str(tmp_path / "page"))
    page = (tmp_path / "page/report.html").read_text()
    assert "full: 0.2 at 1" in page
    assert "full: 0.1 at 1" not in page
    assert "0.800 accuracy" in page
    assert "1 run<" in page  # of the lineage


def test_figures_of_a_comparison_are_of_the_rows_that_have_them(tmp_path: Path) -> None:
    rows = [
        {"model": model, "task": "sick", "arm": arm, "seed": seed, "metric": "accuracy", "score": score + seed * apart}
        | {"degenerate": False, "tokens": 1.0, "minutes": 1.0, "chosen_by": 0.5}
        for model, arm, score, apart in (
            ("bert-base", "full", 0.8, 0.01),
            ("bert-base", "scratch", 0.6, 0.011),
            ("ngram", "full", 0.5, 0.0),
        )
        for seed in range(2)
    ]
    rows += [  # of another metric, whose differences are larger
        rows[0] | {"task": "multi30k", "metric": "bleu", "arm": arm, "score": score}
        for arm, score in (("full", 30.0), ("scratch", 20.0))
    ]
    comparison_files.report(rows, tmp_path)
    finished(tmp_path / "runs/bert-base-sick-full-0", 0.8, energy_wh=3.0)
    finished(tmp_path / "runs/bert-sick-full-0", 0.9, energy_wh=50.0)  # of no row
    run("report", "--from", str(tmp_path))
    text = (tmp_path / "report.md").read_text()
    assert "Pretraining helps: **1 of 2**" in text  # counts have no arms
    assert "Largest gain: **+0.200** (bert-base on sick)" in text
    assert "| bert-base | 6 | 6.0 | 6 | 3.00 Wh of 1 run |" in text
    assert "| ngram | 2 | 2.0 | 2 | not recorded |" in text
    table = tmp_path / "compare.csv"
    table.write_bytes(table.read_bytes().replace(b"bert-base", b"b\xebrt", 1))  # as a spreadsheet may save it
    with pytest.raises(UserError, match="is not UTF-8 text"):
        run("report", "--from", str(tmp_path))


def test_runs_that_are_set_aside_are_no_runs(tmp_path: Path) -> None:
    for name in ("a.before-the-fix", "a.before-the-fix/.b.before", "c/.before"):
        finished(tmp_path / "x.before.y" / name, 0.5)
    assert [one.folder.name for one in runs_under([tmp_path / "x.before.y"])] == ["a.before-the-fix"]


def test_layers_and_templates_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"mix/layer_{number}" for number in range(12)]
    (tmp_path / "metrics.csv").write_text(",".join(["step", *names]) + "\n1" + ",0.1" * 12 + "\n")
    history = History(tmp_path)
    history.restore(1)
    assert history.mixed_layers() == names
    folder = finished(tmp_path / "run", 0.5)
    found = {
        f"zeroshot/{shots}template_{n}/accuracy": 0.5 for shots in ("", "shots_4/", "shots_16/") for n in range(1, 12)
    }
    found |= {"zeroshot/rows": 10, "zeroshot/accuracy": 0.5, "zeroshot/chance": 0.5, "zeroshot/majority": 0.6}
    (folder / "metrics.json").write_text(json.dumps(found))
    section = prompting.templates_section(RunRecord.read(folder))
    labels = [row[0].rpartition(":")[0] for row in section.blocks[0].rows]  # type: ignore[union-attr]
    assert labels == [f"{shots}template {n}" for shots in ("", "shots 4, ", "shots 16, ") for n in range(1, 12)]
    [chart] = section.blocks[1].charts  # type: ignore[union-attr]
    assert "shots 16, template 2" in chart.svg
    assert [name for _, name in chart.legend] == ["template", "chance", "majority"]
    assert chart.svg.count("<title>majority: 0.6") == 33


def printed(out: Path, commands: list[str]) -> list[str]:
    """The commands on the page of a comparison that was written by some."""
    compared(out, {"1": 0.8}, chosen="1")
    shutil.rmtree(out / "runs")
    for command in commands:
        comparison_files.note_command(out, command)
    run("report", "--from", str(out))
    found = re.findall(r"<pre[^>]*>(?:<code>)?(.*?)<", page_in(out), flags=re.S)
    return html.unescape("".join(found)).splitlines()


def test_a_page_has_the_commands_that_made_its_table(tmp_path: Path) -> None:
    whole, other = "python -m pipeline compare --name=a --out=b", "python -m pipeline compare --name=a --out=b --x=1"
    parts = [f"{whole} --models=bert --seeds=2", f"{whole} '--tasks=sick sst2'"]
    assert printed(tmp_path / "a", [*parts, whole]) == [whole]  # which makes all
    assert printed(tmp_path / "b", [parts[0], other, *parts, *parts]) == parts  # rows of other settings are not kept
    assert printed(tmp_path / "c", [*parts, other]) == [other]


def test_a_place_without_a_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no folder nowhere"):
        run("report", "--from", "nowhere/run")
    with pytest.raises(UserError, match=r"There is no folder .*results/sample/typo"):  # not the comparison above it
        run("report", "--from", str(REPOSITORY / "results/sample/typo"), "--out", str(tmp_path / "page"))
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/metrics.json").write_text("{}")
    with pytest.raises(UserError, match=r"name one, for example .*runs/a"):
        run("report", "--from", str(tmp_path / "runs"))
    (tmp_path / "compare.csv").write_text("model,task\nbert,sst2\n")
    with pytest.raises(UserError, match=r"compare.csv, line 2, is damaged"):
        run("report", "--from", str(tmp_path))


@browser.needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(width: int, tuned: Path, tmp_path: Path) -> None:
    run("report", "--from", str(tuned), "--out", str(tmp_path))
    html = page_in(tmp_path)
    assert browser.picture(tmp_path / "report.html", width, tmp_path).stat().st_size > 20_000
    needed, inner, drawings = browser.measured(html, width, tmp_path)
    assert needed <= inner == width
    assert drawings >= 4


# ---------------------------------------------------------------------- parts


def test_a_table_is_the_same_in_three_forms() -> None:
    table = Table(["task", "score"], [["a & b", "**0.5** ± 0.1"], ["<i>", "50 % of_it"]], "A caption.", ["A note."])
    page = Page("T", "about", [Figure("n", "1")], [Section("Some scores", [table]), Section("Empty", [])])
    html = render.html(page)
    assert "<strong>0.5</strong>" in html
    assert "&lt;i&gt;" in html
    assert titles(html) == ["Some scores"]
    assert "| a & b | **0.5** ± 0.1 |" in render.markdown(page)
    assert "a \\& b & \\textbf{0.5} $\\pm$ 0.1 \\\\" in render.latex(page)
    assert latex_table(["a"], [["50 % of_it"]], aligned="l", caption="c", label="l").count("50 \\% of\\_it") == 1


def test_errors_are_the_surest_first_and_intervals_are_known() -> None:
    rows: list[dict[str, Any]] = [
        {"text": text, "gold": "a", "label": label, "probability": p, "probabilities": {"a": 1 - p, "b": p}}
        for text, label, p in (("low", "b", 0.6), ("right", "a", 0.9), ("high", "b", 0.99))
    ]
    confusion, errors = predictions.of_labels(rows)
    assert [error.text for error in errors.blocks[0].errors] == ["high", "low"]  # type: ignore[union-attr]
    assert confusion.blocks[0].counts == [[1, 2], [0, 0]]  # type: ignore[union-attr]
    low, high = shared.wilson(0.5, 100)
    assert (low, high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))
    assert (shared.wilson(0, 20)[0], shared.wilson(1, 20)[1]) == (0, 1)
    tagged = [
        {"words": ["x"], "gold": ["B-p"], "tags": [tag], "probabilities": [0.7]} for tag in ("B-p", "O", "B-p", "B-p")
    ]
    low, high = finetuning.bootstrap(tagged)
    assert low < 6 / 7 < high <= 1
    [section] = predictions.of_tags(tagged)
    assert section.blocks[0].errors[0].parts == [("x", "B-p → O")]  # type: ignore[union-attr]


def test_intervals_are_of_95_percent() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 40))
    found = stats.pearsonr(x, x + y)
    error = (1 - found.statistic**2) / math.sqrt(len(x) - 3)
    expected = found.confidence_interval(0.95)
    scores = {
        "test/pearson": found.statistic,
        "test/macro_f1": 0.4,
        "test/answer_f1": 0.4,
        "test/standard_error": error,
    }
    run_of = SimpleNamespace(metrics=scores, predictions=[])
    assert finetuning.interval_text(run_of, "pearson") == f"[{expected.low:.3f}, {expected.high:.3f}]"
    half = stats.norm.ppf(0.975) * error
    assert finetuning.interval_text(run_of, "answer_f1") == f"[{0.4 - half:.3f}, {0.4 + half:.3f}]"
    rows = [{"gold": ["B-p", "O"], "tags": ["B-p" if right else "O", "O"]} for right in rng.random(50) < 0.6]
    drawn = [[rows[i] for i in rng.integers(50, size=50)] for _ in range(2000)]
    hits = [sum(row["gold"] == row["tags"] for row in part) for part in drawn]
    low, high = np.quantile([2 * hit / (50 + hit) for hit in hits], [0.025, 0.975])
    assert finetuning.bootstrap(rows) == pytest.approx((low, high), abs=0.02)


def test_the_worst_is_read_first() -> None:
    tagged = [
        {"words": [word], "gold": ["B-p"], "tags": ["O"], "probabilities": [p]}
        for word, p in (("low", 0.6), ("high", 0.9))
    ]
    [section] = predictions.of_tags(tagged)
    assert [error.parts[0][0] for error in section.blocks[0].errors] == ["high", "low"]  # type: ignore[union-attr]
    scored = [{"text": str(off), "gold": 2.0, "score": 2.0 + off} for off in (1, -3)]
    _, section = predictions.of_scores(scored)
    assert [error.parts[0][0] for error in section.blocks[0].errors] == ["-3", "1"]  # type: ignore[union-attr]


def test_lines_of_another_kind_are_shown_as_they_are() -> None:
    rows = [{"text": f"row {number}", "gold": {"tree": number}} for number in range(30)]
    [section] = predictions.sections_of(rows)
    assert isinstance(section.blocks[0], Table)
    assert section.blocks[0].rows[1] == ["row 1", "{'tree': 1}"]
    assert predictions.sections_of([]) == []


def test_lines_go_up_where_values_do() -> None:
    svg = charts.line_chart([charts.Series("a", [(0, 0.0), (1, 1.0)])], y_label="y")
    [points] = re.findall(r'<polyline[^>]* points="([^"]+)"', svg)
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in points.split())
    assert x1 > x0
    assert y1 < y0  # pixels are counted from above


@pytest.mark.parametrize("values", [[-0.2, -0.3], [-0.2, 0.3, 0.6], [0.0, 0.0]])
def test_bars_go_up_or_down_from_nothing(values: list[float]) -> None:
    svg = charts.bar_chart([str(value) for value in values], values, y_label="correlation")
    places = [tuple(map(float, found)) for found in re.findall(r'<rect[^>]*? y="([^"]+)"[^>]*?height="([^"]+)"', svg)]
    assert len(places) == len(values)
    assert all(height >= 0 for _, height in places)
    ends = {y + height if value > 0 else y for value, (y, height) in zip(values, places, strict=True)}
    assert max(ends) - min(ends) < 0.11  # all begin at 0


def test_a_template_has_its_own_text_where_two_are_alike(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", 0.5)
    found = {f"zeroshot/template_{n}/accuracy": 0.5 for n in (1, 2, 3)}
    (folder / "metrics.json").write_text(json.dumps({**found, "zeroshot/accuracy": 0.5, "zeroshot/rows": 2}))
    rows = [{"template": text} for text in ("A", "A", "B") for _ in range(2)]
    (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = prompting.templates_section(RunRecord.read(folder))
    assert [row[0] for row in section.blocks[0].rows] == ["template 1: A", "template 2: A", "template 3: B"]  # type: ignore[union-attr]


def test_axes_have_round_ticks() -> None:
    axis = charts.Axis(0.0, 1.0, 0, 100)
    assert [axis.label(tick) for tick in axis.ticks] == ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert charts.Axis(3.0, 3.0, 0, 100)(3.0) == 50
    long = charts.line_chart([charts.Series("a", [(i, i) for i in range(10_000)])], y_label="y")
    assert len(long) < 20_000


def test_energy_is_read_or_marked_as_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimpleNamespace(type="cpu", index=None)
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=device), num_devices=1)
    monkeypatch.setattr(energy, "RAPL", tmp_path)
    meter = energy.Energy()
    assert meter.metrics() == {}  # nothing was trained
    meter.on_train_start(trainer, None)
    assert meter.metrics()["energy_source"] == "estimate"
    with monkeypatch.context() as patch:
        patch.setattr(energy.time, "process_time", iter([10.0, 3610.0, 20.0, 3620.0]).__next__)
        meter.on_train_start(trainer, None)
        alone = meter.metrics()["energy_wh"]
        trainer.num_devices = 2  # processes, of which this one sees itself alone
        meter.on_train_start(trainer, None)
        assert meter.metrics()["energy_wh"] == pytest.approx(2 * alone)
        assert alone > 0
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:1": "psys"}  # a part, and the whole
    for name, zone in zones.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("1000000")
        (tmp_path / name / "name").write_text(f"{zone}\n")
        (tmp_path / name / "max_energy_range_uj").write_text(str(7200 * 10**6))
    meter.on_train_start(trainer, None)
    for name in zones:
        (tmp_path / name / "energy_uj").write_text(str(3600 * 10**6 + 10**6))
    assert meter.metrics() == {"energy_wh": 1.0, "energy_source": "rapl"}
    (tmp_path / "intel-rapl:0/energy_uj").write_text("1000000")  # it has come to its range, and begun again
    assert meter.metrics() == {"energy_wh": 2.0, "energy_source": "rapl"}
    meter.load_state_dict({"energy_wh": 2.0, "energy_source": "rapl"})  # of the part before the run was resumed
    assert meter.state_dict() == {"energy_wh": 4.0, "energy_source": "rapl"}
    meter.load_state_dict({"energy_wh": 2.0, "energy_source": "estimate"})
    assert meter.metrics()["energy_source"] == "estimate"

    used = {"GPU-b": 0.0, "GPU-c": 0.0}  # of the machine's GPU-a to GPU-d, the two that torch sees
    nvml = SimpleNamespace(NVMLError=OSError, nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=lambda uuid: uuid)
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda uuid: used[uuid] * 1e3
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="bc"[index]))
    trainer.strategy.root_device, trainer.device_ids = SimpleNamespace(type="cuda", index=0), [0, 1]
    meter = energy.Energy()
    meter.on_train_start(trainer, None)
    used |= {"GPU-b": 7200.0, "GPU-c": 3600.0}
    assert meter.metrics() == {"energy_wh": 3.0, "energy_source": "nvml"}


def test_the_energy_of_a_run_is_in_its_metrics(tuned: Path) -> None:
    found = json.loads((tuned / "metrics.json").read_text())
    assert found["energy_wh"] > 0
    assert found["energy_source"] in ("rapl", "estimate")
