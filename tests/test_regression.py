"""Regression: a made-up data set through the public commands, its metrics, and its model in transformers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import pipeline
from pipeline.errors import UserError
from pipeline.training.finetuning import FineTuning
from tasks.base import Example
from tasks.regression import Regression, correlation, overlap
from tests.conftest import figures, run

SMALL = ["--validations=2", "--precision=32-true", "--data.max_length=24", "--data.epochs=2"]
WORDS = ["garden", "soup", "film", "river", "city", "music", "winter", "story", "house", "dog"]


@pytest.fixture(scope="module")
def similar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of made-up sentences, and the share of their words that both have, from 0 to 5."""
    folder, rng = tmp_path_factory.mktemp("similar"), random.Random(0)
    for name, count in (("train", 48), ("dev", 16), ("test", 24)):
        pairs = [(rng.sample(WORDS, 4), rng.sample(WORDS, 4)) for _ in range(count)]
        rows = [f"{' '.join(a)}\t{' '.join(b)}\t{5 * len({*a} & {*b}) / 4:.3f}" for a, b in pairs]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def tuned(similar: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "run"
    run("finetune", "--task", "sts-b", "--data", str(similar), *where(pretrained, out), *SMALL)
    return out


def where(pretrained: Path, out: Path) -> list[str]:
    return ["--from", str(pretrained / "encoder"), "--out", str(out)]


def predictions(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]


def test_a_run_is_reported_as_scores(tuned: Path) -> None:
    rows, end = predictions(tuned), figures(tuned)
    gold, predicted = [row["gold"] for row in rows], [row["score"] for row in rows]
    assert end["test/pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic)
    assert end["test/spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic)
    assert end["test/mse"] == pytest.approx(np.mean((np.array(gold) - np.array(predicted)) ** 2))
    assert end["test/loss"] == pytest.approx(end["test/mse"], rel=1e-5)
    assert end["val/pearson"] == end["val/best_pearson"]
    assert end["baseline/word_overlap"] == pytest.approx(1)  # the scores of these pairs are just that
    assert end["baseline/mean/mse"] > 0
    assert (tuned / "scatter.png").is_file()
    assert not (tuned / "confusion.png").exists()


def test_the_model_predicts_numbers(tuned: Path, tmp_path: Path) -> None:
    rows = predictions(tuned)
    expected = pytest.approx([row["score"] for row in rows], abs=1e-4)
    answers = pipeline.load(tuned / "model").predict([tuple(row["text"]) for row in rows])
    assert [answer["score"] for answer in answers] == expected
    lines = ["sentence1\tsentence2", *("\t".join(row["text"]) for row in rows)]
    (tmp_path / "in.tsv").write_text("\n".join(lines) + "\n")
    files = ["--input", str(tmp_path / "in.tsv"), "--out", str(tmp_path / "out.jsonl")]
    run("predict", "--from", str(tuned / "model"), *files)
    said = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["score"] for answer in said] == expected


def test_the_model_opens_in_transformers(tuned: Path) -> None:
    rows = predictions(tuned)
    theirs, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        tuned / "model", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert (theirs.config.problem_type, theirs.config.num_labels) == ("regression", 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned / "model")
    first, second = zip(*(row["text"] for row in rows), strict=True)
    with torch.no_grad():
        batch = tokenizer(list(first), list(second), return_tensors="pt", padding=True, truncation=True, max_length=24)
        scores = theirs.eval()(**batch).logits[:, 0].tolist()
    assert scores == pytest.approx([row["score"] for row in rows], abs=1e-4)


def test_metrics_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        gold, predicted = rng.integers(0, 6, 30).tolist(), rng.normal(size=30).round(1).tolist()
        found = Regression().scores(gold, predicted).figures
        assert found["pearson"] == pytest.approx(stats.pearsonr(gold, predicted).statistic)
        assert found["spearman"] == pytest.approx(stats.spearmanr(gold, predicted).statistic)
        low, high = stats.pearsonr(gold, predicted).confidence_interval(0.95)  # by Fisher's z
        assert 2 * 1.96 * found["standard_error"] == pytest.approx(high - low, rel=0.1)
    constant = Regression().scores([1.0, 2.0, 4.0], [2.0, 2.0, 2.0]).figures
    assert (constant["pearson"], constant["spearman"]) == (0, 0)
    assert all(correlation(pair, pair) <= 1 for pair in rng.normal(size=(200, 2)).tolist())  # rounding exceeds 1
    tiny = [1e-7, 2e-7, 3e-7, 4e-7]
    assert Regression().scores(tiny, tiny).figures["pearson"] == pytest.approx(1)
    assert correlation(tiny, [5.0, 5.0, 5.0 + 1e-7, 5.0]) == 0
    assert Regression().is_degenerate([2.0, 2.0 + 1e-9])
    assert not Regression().is_degenerate([2.0, 2.1])
    task = Regression()
    task.check_labels([Example("a", 1.0), Example("b", 5.0)])
    assert task.is_degenerate([2.0, 2.003])  # a thousandth of the range
    assert not task.is_degenerate([2.0, 2.005])


def test_baselines() -> None:
    assert overlap("The dog", "a DOG barks") == pytest.approx(2 / 5)
    train = [Example(("a b", "a b"), 5.0), Example(("a b", "c d"), 1.0)]
    test = [Example(("x y", "x y"), 4.0), Example(("x y", "x z"), 3.0), Example(("x y", "u v"), 2.0)]
    assert Regression().baselines(train, test) == {"word_overlap": pytest.approx(1), "mean/mse": pytest.approx(2 / 3)}
    single = Regression(columns={"text": "text", "score": "score"})
    good, bad = Example("good good", 2.0), Example("bad bad", 0.0)
    assert single.baselines([good, bad], [good, bad])["bag_of_words"] == pytest.approx(1)
    by_error = Regression(choose_by="mse")
    assert (by_error.mode, by_error.bound) == ("min", math.inf)
    assert by_error.baselines(train, test)["mean"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"score": "high"}, "line 2 has the score 'high', which is not a finite number"),
        ({"score": ""}, "line 2 has the score '', which is not a finite number"),
        ({"score": "nan"}, "line 2 has the score 'nan', which is not a finite number"),
        ({"score": None}, "line 2 has nothing under 'score'"),
        ({}, "line 2 has no 'score'"),
    ],
)
def test_what_is_no_score(row: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Regression().examples([("line 2", {"sentence1": "a", "sentence2": "b", **row})])


def test_what_cannot_be_learned(similar: Path, pretrained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="All training rows have the score 3; there is nothing to learn"):
        Regression().check_labels([Example("a", 3.0), Example("b", 3.0)])
    flags = ["--model.recipe.class_weights=balanced", *where(pretrained, tmp_path / "run")]
    with pytest.raises(UserError, match="class_weights is for classes, and this task has none"):
        run("finetune", "--task", "sts-b", "--data", str(similar), *flags, *SMALL)


ERROR = (
    "data:\n  task:\n    class_path: tasks.regression.Regression\n"
    "    init_args: {choose_by: mse, splits: {train: train, valid: dev, test: test}}\n  epochs: 1\n"
)


def test_a_page_knows_that_less_is_better_after_one_validation(similar: Path, pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "error.yaml").write_text(ERROR)
    out = tmp_path / "run"
    run("finetune", "--task", "error.yaml", "--data", str(similar), *where(pretrained, out), *SMALL, "--validations=1")
    end = figures(out)
    run("report", "--from", str(out))
    least, most = sorted(end[f"baseline/{name}"] for name in ("mean", "bag_of_words"))
    assert f"- Best baseline: **{least:.3f}**" in (out / "report.md").read_text()
    assert least < most
    assert "Lower is better." in (out / "report.html").read_text()


def test_a_grid_takes_the_smallest_error(similar: Path, pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "error.yaml").write_text(ERROR)
    (tmp_path / "grid.yaml").write_text(
        f"models: [bert]\ntasks: {{error.yaml: {similar}}}\nencoders: {pretrained / 'encoder'}\n"
        "arms:\n  full: {seeds: 1, choose: {model.optimization.learning_rate: [1.0e-3, 1.0e-7]}}\n"
        "  scratch: {seeds: 1}\n"
    )
    run("compare", "--name", "grid.yaml", "--out", "out", *SMALL)
    [row] = [
        line for line in Path("out/compare.md").read_text().splitlines() if line.startswith("| error (squared error)")
    ]
    runs = {path.parent.name: figures(path.parent) for path in Path("out/runs").glob("*/metrics.json")}
    full = min((end for name, end in runs.items() if "full" in name), key=lambda end: end["val/best_mse"])
    gain = runs["bert-error-scratch-0"]["test/mse"] - full["test/mse"]
    error, best = full["test/mse"], min(full[f"baseline/{name}"] for name in ("mean", "bag_of_words"))
    assert f"| {'**' * (gain > 0 and error < best)}{error:.3f}" in row  # the smaller error is the better one
    assert f"{gain:+.3f}" in row  # positive where the error is smaller


def test_less_of_an_error_is_better(
    similar: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint with the smallest error is the best, and errors that grow end the run early."""
    (tmp_path / "error.yaml").write_text(ERROR)
    scores, seen = FineTuning.scores, []

    def rising(self: FineTuning, split: str) -> Any:
        found = scores(self, split)
        if split == "valid":
            seen.append(split)
            found["mse"] = float(len(seen))
        return found

    monkeypatch.setattr(FineTuning, "scores", rising)
    flags = [*SMALL, "--validations=4", "--patience=2"]
    run("finetune", "--task", "error.yaml", "--data", str(similar), *where(pretrained, tmp_path / "run"), *flags)
    end = figures(tmp_path / "run")
    assert len(seen) == 3
    assert end["best_step"] * 3 == end["steps"]


def test_the_number_is_not_read_as_a_text() -> None:
    with pytest.raises(UserError, match="must name the number 'score', not 'label'"):
        Regression(columns={"text": "text", "label": "score"})
