"""`make ladder`: rungs are trained once, measured alike, and what does not fit is refused before hours are spent."""

from __future__ import annotations

import contextlib
import html
import json
import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from pipeline.cli.config import pretraining
from pipeline.errors import UserError
from pipeline.experiments import token_runs
from pipeline.experiments.ladder import measures as ladder_measures
from pipeline.experiments.ladder import plan as ladder_plan
from pipeline.experiments.ladder import rungs as ladder
from pipeline.experiments.ladder import table as ladder_table
from pipeline.experiments.ladder.results import row_of
from pipeline.inspection.token_log_probs import TokenLogProbs
from pipeline.models.layers.transformer_block import ACTIVATIONS
from pipeline.presets.files import CONFIGS
from pipeline.tokenization.whole_words import WholeWords
from pipeline.training.throughput import flop_counter
from tests.conftest import assert_plot, run

SMALL = {
    "data.sample_documents": 300,
    "data.tokenizer.vocab_size": 500,
    "data.length": 48,
    "data.batch_size": 16,
    "data.validation_rows": 64,
    "precision": "32-true",
}
SIZES = {"size": 32, "heads": 2, "inner_size": 64, "layers": 1}
GPT = {
    "name": "gpt",
    "title": "GPT",
    "year": 2018,
    "source": "Radford et al. 2018",
    "kind": "attention",
    "model": "gpt",
    "settings": {f"model.encoder.init_args.{name}": value for name, value in SIZES.items()},
}
LAYERS, ORDER, SMOOTHING = (
    "model.encoder.init_args.layers",
    "model.encoder.init_args.order",
    "model.encoder.init_args.smoothing",
)
TRIGRAM = {
    **{"name": "trigram", "title": "Trigram", "year": 1998, "source": "Chen and Goodman 1998"},
    **{"kind": "counting", "model": "ngram", "settings": {ORDER: 3}},
}
UNIFORM = {"name": "uniform", "title": "Uniform", "year": 1948, "source": "Shannon 1948", "kind": "baseline"}


def write(folder: Path, **fields: Any) -> str:
    content = {"corpus": "sample", "tokens": 16_000, "settings": SMALL, "rungs": [UNIFORM, TRIGRAM, GPT], **fields}
    file = folder / "toy.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.mark.slow
def test_a_ladder_is_climbed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"prompt": "the cook", "continuation": 8, "paragraph": 30}
    name = write(tmp_path, rates=[1, 0.5], **told)
    run("ladder", "--name", name)
    out = tmp_path / "runs/ladder/toy"
    found = json.loads((out / "ladder.json").read_text())
    models = {row["name"]: row for row in found["models"]}
    uniform, trigram, gpt = (models[name] for name in ("uniform", "trigram", "gpt"))
    assert (trigram["flops"], trigram["history"], trigram["rates"]) == (0, [], [])
    assert gpt["beats_counting"] is None  # after 20 steps
    assert [pair["models"] for pair in found["mixtures"]] == [["trigram", "gpt"]]
    assert found["mixtures"][0]["gain"] >= 0
    assert uniform["perplexity"] == pytest.approx(found["tokenizer"]["vocabulary"])
    assert uniform["bits_per_byte"] > gpt["bits_per_byte"]
    rates = [rate["learning_rate"] for rate in gpt["rates"]]
    best = min(gpt["rates"], key=lambda rate: rate["bits_per_byte"])
    assert rates == [0.002, 0.001]
    assert gpt["learning_rate"] == best["learning_rate"]
    assert gpt["steps"] * 48 * 16 == gpt["tokens"] == pytest.approx(16_000, rel=0.05)
    assert gpt["history"][-1]["step"] == gpt["steps"]
    assert gpt["flops"] == gpt["history"][-1]["flops"] > 6 * gpt["tokens"] * 32 * 500  # the output matrix alone
    assert found["paragraph"]["nats"]["uniform"][0] == pytest.approx(math.log(500))
    assert len(found["paragraph"]["tokens"]) == len(found["paragraph"]["nats"]["gpt"]) == 30
    assert_plot(out / "ladder.png")
    table = (out / "ladder.md").read_text()
    assert f"**{trigram['bits_per_byte']:.3f}**" in table
    assert (out / "ladder.html").stat().st_size < 400_000
    assert "## Loss by context" in table
    assert "| model | year | source | parameters | bits per byte | perplexity | seconds | FLOPs |\n" in table
    capsys.readouterr()
    run(
        "evaluate",
        "--model",
        "gpt",
        "--from",
        gpt["folder"],
        *(f"--{key}={SMALL[key]}" for key in SMALL if "sample" in key),
    )
    assert f"bits_per_byte            {gpt['bits_per_byte']:.4f}" in capsys.readouterr().out

    def refuse(*args: Any) -> None:
        raise AssertionError("trained or measured again")

    monkeypatch.setattr(token_runs, "pretrain", refuse)
    monkeypatch.setattr(ladder_measures, "token_log_probs", refuse)
    run("ladder", "--name", name, "--dry-run")
    assert capsys.readouterr().out.split() == ["trigram", "finished", "gpt", "finished"]
    run("ladder", "--name", name)
    again = json.loads((out / "ladder.json").read_text())
    assert {**again, "date": ""} == {**found, "date": ""}
    with pytest.raises(UserError, match=r"holds a ladder of other settings \(tokens\): choose another --out"):
        run("ladder", "--name", name, "--tokens", "20000")


@pytest.mark.slow
def test_a_ladder_prints_the_command_that_makes_the_same(tmp_path: Path) -> None:
    flags = [
        f"--name={write(tmp_path, rungs=[UNIFORM, TRIGRAM])}",
        "--models=uniform trigram",
        "--seeds=2",
        "--out=mine",
    ]
    run("ladder", *flags)
    command = json.loads(Path("mine/ladder.json").read_text())["command"]
    assert shlex.split(command) == ["python", "-m", "pipeline", "ladder", *flags]
    for name in ("ladder.md", "ladder.html"):
        assert command in html.unescape(Path("mine", name).read_text())
    run("ladder", *flags[:1], "--models=uniform", *flags[2:])  # the other one is in the table all the same
    assert json.loads(Path("mine/ladder.json").read_text())["command"] == command


@pytest.mark.slow
def test_a_model_that_thinks_a_token_impossible_is_named(tmp_path: Path) -> None:
    unsmoothed = {**TRIGRAM, "settings": {ORDER: 5, SMOOTHING: "mle"}}
    with pytest.raises(UserError, match="The rung trigram gives a token of the validation text no probability"):
        run("ladder", "--name", write(tmp_path, rungs=[unsmoothed], tokens=None))


@pytest.mark.parametrize(
    ("fields", "flags", "said"),
    [
        ({"corpus": None}, [], "names no corpus: name it with --corpus"),
        ({"rungs": [UNIFORM]}, [], "no model to train or to count"),
        ({"rungs": [{**GPT, "model": "gtp"}]}, [], "The rung gpt: There is no model 'gtp'.*Did you mean gpt"),
        ({"rungs": [{**GPT, "model": "bert", "settings": {}}]}, [], "The rung gpt: --model bert is masked"),
        ({"tokens": None}, [], "The rung gpt is trained: give the ladder the `tokens`"),
        ({"like": "simple"}, [], "is like 'simple'. There is no ladder 'simple'.*Did you mean sample"),
        ({"rungs": [GPT, GPT]}, [], "two rungs called 'gpt'"),
        ({"rungs": [{**GPT, "name": "../gpt"}]}, [], "names a folder"),
        ({"rungs": [{**GPT, "kind": "magic"}]}, [], "rungs.0.kind is 'magic'"),
        (
            {"rungs": [GPT, {**GPT, "name": "other", "settings": {"data.tokenizer.lowercase": True}}], "settings": {}},
            [],
            "gpt and other differ in data.tokenizer.lowercase: False and True",
        ),
        (  # each with its own tokenizer, but not of less text
            {
                "one_tokenizer": False,
                "rungs": [GPT, {**GPT, "name": "other", "settings": {"data.tokenizer.lowercase": True}}],
                "settings": {},
            },
            [],
            "gpt and other differ in data.tokenizer.lowercase: False and True",
        ),
        ({"trial": 2}, [], "trial is 2"),
        ({}, ["--models", "gpt lstm"], "no rung 'lstm'; it has uniform, trigram, gpt"),
        ({}, ["--trainer.max_steps=5"], "trainer.max_steps follows from the ladder's"),
        (
            {"rungs": [GPT, {**GPT, "name": "deep", "settings": {**GPT["settings"], LAYERS: 3}}]},
            [f"--{LAYERS}=2"],
            "layers is what gpt and deep differ in",
        ),
        ({"settings": {"model.seed": 3}}, [], "has its own seed"),
        ({"blimp": "pairs"}, ["--data", "nowhere"], "no minimal pairs in nowhere/pairs"),
        ({}, ["--data", "here"], "asks no minimal pairs, so --data would be ignored"),
        ({"settings": {"trainer": {"max_steps": 5}}}, [], "trainer.max_steps follows from the ladder's"),
        ({"axes": {"a": {"b": {}}}}, [], "has both rungs and axes"),
    ],
)
def test_what_cannot_be_climbed_is_refused(fields: dict[str, Any], flags: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run("ladder", "--name", write(tmp_path, **fields), *flags)
    assert not (tmp_path / "runs").exists()


def test_a_ladder_without_a_model_yet(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No rung of this ladder is trained yet"):
        run("ladder", "--name", write(tmp_path), "--out", str(tmp_path / "out"), "--models", "uniform")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else than a ladder"):
        run("ladder", "--name", write(tmp_path), "--out", "mine")


def test_a_product_of_choices_is_a_ladder(tmp_path: Path) -> None:
    rung = {name: value for name, value in GPT.items() if name not in ("name", "title", "settings")}
    axes = {
        "heads": {"two": {**rung, "settings": {"model.encoder.init_args.heads": 2}}},
        "layers": {str(n): {"settings": {"model.encoder.init_args.layers": n}} for n in (1, 2)},
    }
    content = {"corpus": "sample", "tokens": 16_000, "axes": axes}
    (tmp_path / "axes.yaml").write_text(yaml.safe_dump(content))
    made = ladder.load(tmp_path / "axes.yaml")
    assert [rung.name for rung in made.rungs] == ["two-1", "two-2"]
    assert made.rungs[1].title == "two, layers 2"
    assert made.rungs[1].axes == {"heads": "two", "layers": "2"}
    plans = ladder_plan.plans(made, tmp_path, pretraining, ())
    sizes = plans["two-2"].configuration.resolved["model"]["encoder"]["init_args"]
    assert (sizes["heads"], sizes["layers"]) == (2, 2)


def test_what_a_ladder_has_replaces_that_of_the_one_it_is_like(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    axes = {"models": {"gpt": {name: GPT[name] for name in ("year", "source", "kind", "model")}}}
    for name, own, names in (
        ("cells", {"rungs": [UNIFORM]}, ["uniform"]),  # which has axes
        ("sample", {"axes": axes}, ["gpt"]),  # which has rungs
        ("real", {"tokens": 1000}, [rung.name for rung in ladder.load(CONFIGS / "ladder/sample.yaml").rungs]),
    ):
        file.write_text(yaml.safe_dump({"like": name, **own}))
        assert [rung.name for rung in ladder.load(file).rungs] == names


def test_what_is_missing_is_of_the_rungs_that_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("ladder", "--name", write(tmp_path), "--models", "gpt", "--dry-run")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["gpt"]


@pytest.mark.slow
def test_a_rate_that_diverges_does_not_end_the_ladder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = write(tmp_path, rates=[1e30, 1], trial=0.25, rungs=[UNIFORM, GPT])
    run("ladder", "--name", name)
    assert "gpt-rate-2e+27: The loss is not finite" in "".join(capsys.readouterr())
    models = json.loads((tmp_path / "runs/ladder/toy/ladder.json").read_text())["models"]
    [gpt] = [row for row in models if row["name"] == "gpt"]
    assert gpt["learning_rate"] == 0.002
    assert [rate["learning_rate"] for rate in gpt["rates"]] == [2e27, 0.002]
    assert [rate["bits_per_byte"] is None for rate in gpt["rates"]] == [True, False]
    assert "diverged; 0.002: " in (tmp_path / "runs/ladder/toy/ladder.html").read_text()
    for rates in ([1e30, 2e30], [1e30]):  # with one there is no trial
        none = tmp_path / f"none-{len(rates)}"
        with pytest.raises(UserError, match="1 of 2 rungs failed: gpt: No rate of the rung gpt leads to a model"):
            run("ladder", "--name", write(tmp_path, rates=rates, rungs=[GPT, TRIGRAM]), "--out", str(none))
        models = json.loads((none / "ladder.json").read_text())["models"]
        assert [row["name"] for row in models] == ["trigram"]  # the others are run all the same
        run("ladder", "--name", str(tmp_path / "toy.yaml"), "--out", str(none), "--models", "trigram")  # nothing fails


def test_rates_are_tried_on_a_share_of_the_tokens(tmp_path: Path) -> None:
    made = ladder.load(Path(write(tmp_path, rates=[1, 0.5], trial=0.25, seeds=2)))
    plan = ladder_plan.plans(made, tmp_path, pretraining, ())["gpt"]
    trials, whole = plan.trials(), plan.whole(1)
    assert [request.out.name for request in (*trials, *whole) if request.out] == [
        *("gpt-rate-0.002", "gpt-rate-0.001"),
        *("gpt", "gpt-seed-1"),
    ]
    steps = {request.out: pretraining(request).settings.trainer.max_steps for request in (*trials, *whole)}
    assert list(steps.values()) == [5, 5, 21, 21]
    assert plan.tokens() == (5 + 5 + 21 + 21) * 48 * 16
    assert pretraining(whole[1]).settings.model.optimization.learning_rate == 1e-3


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_operations_of_recurrent_layers_are_counted(kind: type[nn.RNNBase]) -> None:
    """6 for each weight and position, forward and backward; at the first one no gradient goes to the state."""
    layer, inputs = kind(16, 32, num_layers=2), torch.randn(8, 4, 16, requires_grad=True)
    with flop_counter() as counter:
        layer(inputs)[0].sum().backward()
    weights = sum(p.numel() for p in layer.parameters() if p.ndim == 2)
    assert counter.get_total_flops() == pytest.approx(6 * weights * 8 * 4, rel=0.05)


@pytest.mark.parametrize("name", [*ACTIVATIONS, "mish"])
def test_counting_changes_no_gradient(name: str) -> None:
    """The first step of a resumed run is counted, that of the uninterrupted one is not."""
    torch.manual_seed(0)
    inputs = torch.randn(40, 64, requires_grad=True)
    weights = torch.randn(40, 64)
    function = ACTIVATIONS.get(name, nn.functional.mish)
    gradients = []
    for counting in (contextlib.nullcontext(), flop_counter()):
        with counting:
            (function(inputs) * weights).sum().backward()
        gradients.append(inputs.grad)
        inputs.grad = None
    assert torch.equal(*gradients)


def test_figures_are_means_over_seeds(tmp_path: Path) -> None:
    """In the row, and so in every table and plot; a single seed is as it was measured."""
    gpt = ladder.load(Path(write(tmp_path))).rungs[2]
    seeds = [of_made_up_tokens(loss) for loss in (0.3, 0.9)]
    row = row_of(gpt, seeds, WholeWords.train(["a b"], vocab_size=20, lowercase=False), parameters=1, seconds=1)
    assert row["by_seed"] == [seed.bits_per_byte for seed in seeds]
    assert row["bits_per_byte"] == pytest.approx(0.6 / math.log(2))
    assert row["perplexity"] == pytest.approx((math.exp(0.3) + math.exp(0.9)) / 2)
    assert row["by_context"] == [[1, 1, pytest.approx(0.3)]]
    alone = row_of(gpt, seeds[:1], WholeWords.train(["a b"], vocab_size=20, lowercase=False))
    assert (alone["bits_per_byte"], alone["perplexity"]) == (seeds[0].bits_per_byte, seeds[0].perplexity)
    results = {"models": [row | {"flops": 0}], "tokenizer": {}, **dict.fromkeys(("version", "precision", "device"), "")}
    assert "**0.866** " in (table := ladder_table.main_table(results | {"command": ""}))
    assert "means over 2 seeds" in table


def of_made_up_tokens(loss: float) -> TokenLogProbs:
    zeros = np.zeros(4, np.int64)
    log_probs = np.full(4, -loss, np.float32)
    return TokenLogProbs(zeros, log_probs, context=zeros + 1, documents=zeros, spelling=0.0 * zeros, per_byte=1.0)


def test_tokens_as_text_join_to_the_text() -> None:
    class Bytes:
        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode("utf-8", "replace")

    ids = list("né 字!".encode())
    texts = ladder_measures.texts_of(Bytes(), ids)  # type: ignore[arg-type]
    assert "".join(texts) == "né 字!"
    assert len(texts) == len(ids)
    assert texts[1:3] == ["", "é"]


def test_published_accuracies_are_of_the_same_pairs(tmp_path: Path) -> None:
    """Those of Warstadt et al. (2020), table 3, of two paradigms of islands; not for a part of their rows."""
    pair = {"sentence_good": "a", "sentence_bad": "b", "linguistics_term": "island_effects", "field": "syntax"}
    for name in ("adjunct_island", "complex_NP_island"):
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps({**pair, 'UID': name})}\n" * 1000)
    gpt2 = ladder_measures.published_blimp(tmp_path)[-1]
    assert gpt2["accuracy"] == pytest.approx(0.808)
    assert gpt2["phenomena"]["island_effects"] == pytest.approx(0.808)
    [ours] = [{"title": "Ours", "blimp": {"accuracy": 0.5, "phenomena": {"island_effects": 0.5}}}]
    table = ladder_table.blimp_table([ours], [gpt2])
    assert "| phenomenon | Ours | GPT-2 (published) |" in table
    assert "| island effects | **50.0%** | 80.8% |" in table
    (tmp_path / "adjunct_island.jsonl").write_text(f"{json.dumps({**pair, 'UID': 'adjunct_island'})}\n" * 999)
    assert ladder_measures.published_blimp(tmp_path) == []
