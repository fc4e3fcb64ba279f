"""`make recipes`: each ingredient alone and together, on the same tokens, run once, with a paired test."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from pipeline.errors import UserError
from pipeline.experiments.recipes.ingredients import Ingredient, Recipes
from pipeline.experiments.recipes.report import Measured, plot, table
from pipeline.tracking import plots
from tests.conftest import assert_plot, run

SETTINGS = {
    "data.sample_documents": 300,
    "data.tokenizer.vocab_size": 400,
    "data.length": 32,
    "data.batch_size": 8,
    "data.validation_rows": 64,
    "precision": "32-true",
    **{f"model.encoder.init_args.{name}": value for name, value in (("size", 16), ("layers", 1), ("inner_size", 32))},
}
WORSE = {"title": "almost no learning", "source": "a source", "settings": {"model.optimization.learning_rate": 1e-9}}
SENTENCES = {"title": "pairs", "settings": {"model.objective.init_args.next_sentence": "sop"}}
WHOLE = {"title": "words", "settings": {"model.objective.init_args.whole_word": True}}
ORDER = {"title": "bigram", "settings": {"model.encoder.init_args.order": 2}}
HOT = {"title": "hot", "settings": {"model.optimization.learning_rate": 1e9}}
ZERO = {"title": "zero", "settings": {"model.encoder.init_args.zero_outputs": True}}


def write(folder: Path, **fields: Any) -> str:
    content = {"model": "bert", "tokens": 5120, "seeds": 2, "metric": "val/mlm_loss", "settings": SETTINGS, **fields}
    content.setdefault("ingredients", {"worse": WORSE, "zero": ZERO})
    file = folder / "toy.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def read(folder: Path) -> list[dict[str, str]]:
    with open(folder / "recipes.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_recipe_may_have_a_warm_up_of_its_own(tmp_path: Path) -> None:
    late = {"title": "late", "settings": {"model.optimization.warmup_steps": 10}}
    run("recipes", "--name", write(tmp_path, seeds=1, ingredients={"late": late}), "--out", str(tmp_path / "out"))
    configs = [yaml.safe_load((tmp_path / f"out/runs/{name}-0/config.yaml").read_text()) for name in ("base", "late")]
    assert [config["trainer"]["max_steps"] for config in configs] == [20, 20]
    assert [config["model"]["optimization"]["warmup_steps"] for config in configs] == [1, 10]  # 150 of 3,000; its own


def test_recipes_are_run_once_and_compared_in_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, out = write(tmp_path, together=[["worse", "zero"]]), tmp_path / "out"
    run("recipes", "--name", name, "--out", str(out), "--recipes", "base worse")
    rows = read(out)
    assert [(row["recipe"], row["seed"]) for row in rows] == [
        (name, seed) for name in ("base", "worse") for seed in "01"
    ]
    assert {row["steps"] for row in rows} == {"20"}  # 5,120 tokens in rows of 8 x 32
    losses = {(row["recipe"], row["seed"]): float(row["val/mlm_loss"]) for row in rows}
    assert all(losses["base", seed] < losses["worse", seed] for seed in "01")
    assert losses["base", "0"] != losses["base", "1"]
    assert_plot(out / "recipes.png")
    begun = {file: file.stat().st_mtime_ns for file in out.glob("runs/*/metrics.json")}
    assert len(begun) == 4
    capsys.readouterr()
    run("recipes", "--name", name, "--out", str(out), "--dry-run")
    assert "| worse | 2 of 2 |" in capsys.readouterr().out
    run("recipes", "--name", name, "--out", str(out))
    assert all(file.stat().st_mtime_ns == time for file, time in begun.items())
    assert [row["recipe"] for row in read(out)] == [
        one for one in ("base", "worse", "zero", "worse+zero") for _ in "01"
    ]
    with pytest.raises(UserError, match=r"holds recipes of other settings \(tokens\): choose another --out"):
        run("recipes", "--name", name, "--out", str(out), "--tokens", "9999")
    with pytest.raises(UserError, match="holds recipes of other settings"):
        run("recipes", "--name", name, "--out", str(out), "--tokens", "9999", "--dry-run")
    assert all(file.stat().st_mtime_ns == time for file, time in begun.items())
    assert "almost no learning (a source) |" in (out / "recipes.md").read_text()
    assert "almost no learning + zero |" in (out / "recipes.md").read_text()


def measured(base: list[float], ours: list[float]) -> Measured:
    runs = {
        name: {seed: {"loss": loss, "seconds": 1.0, "tokens": 100} for seed, loss in enumerate(losses)}
        for name, losses in (("base", base), ("ours", ours))
    }
    return Measured("bert on text", "loss", {"base": ("base", ""), "ours": ("ours", "")}, runs)


def test_an_ingredient_is_called_by_its_name_where_it_has_no_title() -> None:
    found = Recipes(
        "bert", 1, "m", {"fast": Ingredient({"a.b": 1}), "short": Ingredient({"c": 2}, "few")}, [["fast", "short"]]
    )
    assert [one.title for one in found.all().values()] == ["its configuration", "fast", "few", "fast + few"]


def test_what_is_called_a_gain() -> None:
    base, better = [3.0, 3.1, 2.9], [2.90, 3.001, 2.80]
    change = measured(base, better).changes["ours"]
    assert change.mean == pytest.approx(-0.0997, abs=1e-4)
    assert change.p == pytest.approx(stats.ttest_rel(better, base).pvalue)
    assert change.verdict == "**gain**"
    assert measured(better, base).changes["ours"].verdict == "loss"
    assert measured(base, [2.9, 3.2, 2.7]).changes["ours"].verdict == "no gain"
    assert measured(base, base).changes["ours"].verdict == "no gain"
    alike = measured([3.0, 3.5], [2.75, 3.25]).changes["ours"]  # which says nothing of chance
    assert (alike.half, alike.p, alike.verdict) == (None, 1.0, "no gain")
    assert measured(base, better[:1]).changes["ours"].verdict == "one seed"
    assert math.isclose(measured(base, better[:2]).changes["ours"].mean, -0.0995)
    assert "| no gain | 3 |" in table(measured(base, [2.9, 3.2, 2.7]))


def test_a_table_says_what_differs_and_what_diverged() -> None:
    found = measured([3.0, 3.1], [2.9, 3.0])
    for metrics in found.runs["ours"].values():
        metrics["precision"] = "32-true"
    for metrics in found.runs["base"].values():
        metrics["precision"] = "bf16-mixed"
    text = table(replace(found, diverged={"ours": [2, 3]}))
    assert "| seeds | seconds | precision |" in text
    assert "| 2 | 1 | 32-true |" in text
    assert "bert on text; 100 tokens a run." in text
    assert "ours (seeds 2, 3) ended without a finite loss." in text
    assert "of the same seed differ" not in text
    found.runs["ours"][1]["tokens"] += 1
    assert "Some runs of the same seed differ in tokens: take their difference with care." in table(found)


def test_a_certain_loss_does_not_look_like_a_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, file: drawn.append(figure.axes[0]))
    base, better = [3.0, 3.1, 2.9], [2.90, 3.001, 2.80]
    for runs in (measured(base, better), measured(better, base)):
        plot(runs, tmp_path / "recipes.png")
    looks = [(axes.lines[0].get_color(), axes.lines[0].get_marker()) for axes in drawn]
    assert looks == [(plots.COLORS[0], "o"), (plots.COLORS[1], "s")]
    assert ["worse" in axes.get_xlabel() for axes in drawn] == [False, True]
    seeds = next(line for line in drawn[0].lines if line.get_marker() == ".")
    assert list(seeds.get_xdata()) == pytest.approx([-0.1, -0.099, -0.1])
    assert drawn[0].get_title("left") == "bert on text, compared with: base"


def test_small_changes_are_seen_beside_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, file: drawn.append(figure.axes[0]))
    near = measured([3.0, 3.1], [2.99, 3.10])
    far = replace(near, titles=near.titles | {"far": ("far", "")}, runs=near.runs | measured([], [3.1, 6.5]).runs)
    far.runs["base"], far.runs["far"], far.runs["ours"] = near.runs["base"], far.runs["ours"], near.runs["ours"]
    for runs in (near, far):
        plot(runs, tmp_path / "recipes.png")
    assert [axes.get_xscale() for axes in drawn] == ["linear", "symlog"]
    assert ["logarithmic beyond 0.1" in axes.get_xlabel() for axes in drawn] == [False, True]


@pytest.mark.parametrize(
    ("fields", "flags", "message"),
    [
        ({"together": [["worse", "other"]]}, [], "no ingredient 'other'; it has worse, zero"),
        ({"ingredients": {"a b": WORSE}}, [], "'a b' names a folder"),
        ({"ingredients": {"base": WORSE}}, [], "and not base"),
        ({"ingredients": {}}, [], "ingredients"),
        ({"metric": "mlm_loss"}, [], "metric is mlm_loss; it is one of the validation part, as val/mlm_loss"),
        ({"model": "berd"}, [], "^There is no model 'berd'"),
        (
            {"model": "ngram", "settings": {}, "ingredients": {"x": ORDER}},
            [],
            "ngram counts, and recipes are of models",
        ),
        (
            {"ingredients": {"x": WHOLE}},
            [],
            "x sets model.objective.init_args.whole_word, which changes what",
        ),
        ({"ingredients": {"x": SENTENCES}}, [], "x sets model.objective.init_args.next_sentence, which changes what"),
        ({"ingredients": {"a": WORSE, "b": WORSE}, "together": [["a", "b"]]}, [], "a and b are together, and both set"),
        ({"ingredients": {"x": {"title": "x", "settings": {"model.encoder.init_args.x": 1}}}}, [], "The recipe x: "),
        ({"settings": {"trainer.max_steps": 7}}, [], "trainer.max_steps follows from the `tokens`"),
        ({"settings": {"trainer": {"max_steps": 7}}}, [], "trainer.max_steps follows from the `tokens`"),
        ({"ingredients": {"x": {"title": "x", "settings": {"data": {"length": 64}}}}}, [], "x sets data.length, which"),
        ({}, ["--recipes", "base warse"], "no recipe 'warse'; there are base, worse, zero"),
        ({}, [f"--{name}=1" for name in WORSE["settings"]], "replaces all that the recipe worse adds"),
        ({}, ["--validate_every=3"], "validate_every follows from the `tokens`"),
        ({}, ["--seed", "3"], "seed"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused(fields: dict[str, Any], flags: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        run("recipes", "--name", write(tmp_path, **fields), "--out", str(tmp_path / "out"), *flags)
    assert not (tmp_path / "out").exists()


def test_what_changes_training_alone_may_be_an_ingredient(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    causal = "pipeline.objectives.causal_rows.MaskedAndCausalLM"
    changes: list[dict[str, Any]] = [
        {"model.objective.first_mask_rate": 0.3},
        {"model.objective": causal, "model.objective.init_args.causal_share": 0.5},
        {"data.workers": 1},
    ]
    found = {f"x{number}": {"title": "x", "settings": settings} for number, settings in enumerate(changes)}
    run("recipes", "--name", write(tmp_path, ingredients=found), "--out", str(tmp_path / "out"), "--dry-run")
    assert capsys.readouterr().out.count("0 of 2") == 4


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    name, out = write(tmp_path, ingredients={"hot": HOT, "zero": ZERO}, seeds=1), tmp_path / "out"
    with pytest.raises(UserError, match=r"1 of 3 runs failed: hot, seed 0: .*not finite"):
        run("recipes", "--name", name, "--out", str(out))
    assert [row["recipe"] for row in read(out)] == ["base", "zero"]
    assert " (seed 0) ended without a finite loss." in (out / "recipes.md").read_text()
    name = write(tmp_path, ingredients={"zero": ZERO}, seeds=1, metric="val/los")
    times = [file.stat().st_mtime_ns for file in out.glob("runs/*/metrics.json")]
    with pytest.raises(UserError, match=r"no metric 'val/los' in these runs; they have val/.*, val/mlm_loss"):
        run("recipes", "--name", name, "--out", str(out))
    assert [file.stat().st_mtime_ns for file in out.glob("runs/*/metrics.json")] == times


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else than recipes"):
        run("recipes", "--name", write(tmp_path), "--out", str(tmp_path / "out"))
