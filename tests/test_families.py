"""GPT and ELMo on the same road as BERT, through the public commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

import pipeline
from pipeline.errors import Interrupted, UserError
from pipeline.training.checkpoints import Latest
from tests.conftest import figures, run

SHARED = ["--data.sample_documents=300", "--data.tokenizer.vocab_size=500", "--data.length=48", "--data.batch_size=16"]
SHARED += ["--data.validation_rows=64", "--trainer.log_every_n_steps=2", "--precision=32-true", "--validate_every=8"]
SIZES = {
    "gpt": ["size=64", "layers=2", "heads=2", "inner_size=256", "max_length=48"],
    "elmo": ["character_size=8", "filters=[[1,8],[2,16],[3,24]]", "projection=24", "cell=48", "cutoffs=[100,200]"],
}
MODELS = sorted(SIZES)


def flags(model: str, *more: str) -> list[str]:
    sizes = [f"--model.encoder.init_args.{size}" for size in SIZES[model]]
    return ["--model", model, *SHARED, *sizes, "--model.optimization.warmup_steps=2", *more]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIPELINE_CACHE", str(cache))
        for model in MODELS:
            rate = "--model.optimization.learning_rate=4e-3"
            run("pretrain", "--out", str(folder / model), *flags(model, rate, "--trainer.max_steps=120"))
    return {model: folder / model for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_learning_happens(encoders: dict[str, Path], model: str) -> None:
    end = figures(encoders[model])
    names = ["lm"] if model == "gpt" else ["forward", "backward"]
    for name in names:
        assert end[f"val/{name}_loss"] < end["baseline/unigram"] - 0.3 < end["baseline/uniform"]
    assert 0.3 < end["val/bits_per_byte"] < 4
    assert end["val/loss"] == pytest.approx(sum(end[f"val/{name}_loss"] for name in names))
    if model == "elmo":
        assert end["val/forward_perplexity"] > 1
        assert end["val/backward_spelling"] > 0
    assert (encoders[model] / "curves.png").exists()
    card = (encoders[model] / "encoder/README.md").read_text()
    assert f"library_name: {'pipeline' if model == 'elmo' else 'transformers'}" in card
    assert f"{'bytes' if model == 'elmo' else 'tokens'}) for 120 steps of 16 rows of at most 48" in card


@pytest.mark.parametrize(
    ("model", "change"),
    [
        ("gpt", "model.optimization.optimizer=muon"),
        ("gpt", "data.batches.init_args.packing=document"),
        ("elmo", "model.optimization.optimizer=adamw"),
        ("elmo", "data.batches.init_args.carry=true"),
    ],
)
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path: Path, model: str, change: str) -> None:
    more = ["--trainer.max_steps=20", "--model.encoder.init_args.dropout=0.1", f"--{change}"]
    run("pretrain", "--out", str(tmp_path / "straight"), *flags(model, *more))
    original = Latest.between_steps

    def stop(self: Latest, trainer: object) -> None:
        self.asked |= trainer.global_step == 13  # type: ignore[attr-defined]
        original(self, trainer)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Latest, "between_steps", stop)
        with pytest.raises(Interrupted):
            run("pretrain", "--out", str(tmp_path / "halves"), *flags(model, *more))
    run("pretrain", "--out", str(tmp_path / "halves"), "--resume", *flags(model, *more))
    one, two = (load_file(tmp_path / name / "encoder/model.safetensors") for name in ("straight", "halves"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_accumulated_parts_give_the_same_weights(tmp_path: Path) -> None:
    for model in MODELS:
        for parts in (1, 4):
            more = ["--trainer.max_steps=4", f"--trainer.accumulate_grad_batches={parts}"]
            run("pretrain", "--out", str(tmp_path / f"{model}{parts}"), *flags(model, *more))
        one, four = (load_file(tmp_path / f"{model}{parts}/encoder/model.safetensors") for parts in (1, 4))
        assert all((one[name] - four[name]).abs().max() < 5e-4 for name in one)
    encoder = tmp_path / "elmo1/encoder"
    for parts in (1, 4):
        more = ["--out", str(tmp_path / f"tuned{parts}"), f"--trainer.accumulate_grad_batches={parts}"]
        more += ["--data.epochs=1", "--model.craft.dropout=0", "--precision=32-true", "--task", "entailment"]
        run("finetune", "--model", "elmo", "--from", str(encoder), *more)
    one, four = (load_file(tmp_path / f"tuned{parts}/model/model.safetensors") for parts in (1, 4))
    assert all((one[name] - four[name]).abs().max() < 5e-4 for name in one)
    more = ["--trainer.accumulate_grad_batches=2", "--data.batches.init_args.carry=true"]
    with pytest.raises(UserError, match="without accumulation"):
        run("pretrain", "--out", str(tmp_path / "carry"), *flags("elmo", *more))


@pytest.mark.parametrize("model", MODELS)
def test_evaluate_gives_the_losses_of_validation(
    encoders: dict[str, Path], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--from", str(encoders[model] / "encoder"), "--data.batch_size=16", *SHARED[:1]]
    run("evaluate", "--model", model, *args)
    printed = capsys.readouterr().out
    shown = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    end = figures(encoders[model])
    assert float(shown["unknown"]) == pytest.approx(end["val/unknown"], abs=0.02)
    assert ("is an easy guess" in printed) == (float(shown["unknown"]) > 0.02)
    for name in ("perplexity", "bits_per_byte"):  # there on 64 rows, here on all
        assert float(shown[name]) == pytest.approx(end[f"val/{name}"], rel=0.1)
    if model == "elmo":  # a text of unknown words looks easy
        (tmp_path / "strange.txt").write_text("qxzv kwpf zzrt vvkq plgh mnbt.\n\n" * 400)
        run("evaluate", "--model", model, *args[:3], "--corpus", str(tmp_path / "strange.txt"), "--data.length=48")
        printed = capsys.readouterr().out
        assert "% of what is predicted is unknown to this encoder" in printed
    if model == "gpt":
        with pytest.raises(UserError, match="only 48 positions"):
            run("evaluate", "--model", model, *args, "--data.length=64")
        for flag in ("--data.validation_rows=8", "--model.encoder.init_args.dropout=0", "--trainer.max_steps=1"):
            with pytest.raises(UserError, match=f"leave out {flag}"):
                run("evaluate", "--model", model, *args, flag)


def test_evaluate_takes_rows_as_long_as_those_of_pretraining(
    encoders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As config.json says, or else the run that the folder lies in; longer rows are warned of."""

    def shown(folder: Path, *args: str) -> str:
        run("evaluate", "--model", "gpt", "--from", str(folder), "--data.batch_size=16", *SHARED[:1], *args)
        return capsys.readouterr().out

    run_of_24 = tmp_path / "run"
    shutil.copytree(encoders["gpt"], run_of_24)
    folder = run_of_24 / "encoder"
    (folder / "SHA256SUMS").unlink()
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("training_length") == 48
    trained = shown(encoders["gpt"] / "encoder", "--data.length=24")
    assert "Warning" not in trained
    (folder / "config.json").write_text(json.dumps(config))  # a folder of 0.12
    (run_of_24 / "config.yaml").write_text("data:\n  length: 24\n")
    assert shown(folder) == trained
    (run_of_24 / "config.yaml").unlink()
    note, *figures_of_24 = shown(folder, "--data.length=24").splitlines()
    assert figures_of_24 == trained.splitlines()
    assert "does not say on which length" in note
    (folder / "config.json").write_text(json.dumps(config | {"training_length": 24}))
    assert transformers.AutoConfig.from_pretrained(folder).n_positions == 48
    assert shown(folder) == trained
    assert shown(folder, "--data.length=48").startswith(
        "Warning: rows have 48 tokens, but the encoder was trained on 24"
    )
    for wrong in ("24", 0, None):
        (folder / "config.json").write_text(json.dumps(config | {"training_length": wrong}))
        with pytest.raises(UserError, match=f"config.json: training_length is {wrong!r}"):
            shown(folder)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("arm", ["full", "frozen", "scratch"])
def test_fine_tuning_in_three_arms(encoders: dict[str, Path], tmp_path: Path, model: str, arm: str) -> None:
    folder = encoders[model] / "encoder"
    args = ["--model", model, "--arm", arm, "--from", str(folder), "--out", str(tmp_path / "run"), "--data.epochs=2"]
    run("finetune", *args, "--precision=32-true")
    end = figures(tmp_path / "run")
    assert end["test/rows"] == 500
    assert end["test/loss"] < 1
    tuned = load_file(tmp_path / "run/model/model.safetensors")
    before = load_file(folder / "model.safetensors")
    same = all(torch.equal(tuned[name], before[name]) for name in before)
    assert same == (arm == "frozen")
    predicted = pipeline.load(tmp_path / "run/model").predict(["The soup was delicious.", "A"])
    row = json.loads((tmp_path / "run/predictions.jsonl").read_text().splitlines()[0])
    assert set(row["probabilities"]) == set(predicted[0]["probabilities"])
    assert (tmp_path / "run/mix.png").exists() == (arm == "frozen")


@pytest.mark.parametrize("model", ["bert", "gpt", "elmo"])
@pytest.mark.parametrize("arm", ["full", "frozen"])
def test_pairs_are_classified(
    encoders: dict[str, Path], pretrained: Path, tmp_path: Path, model: str, arm: str
) -> None:
    folder = (encoders | {"bert": pretrained})[model] / "encoder"
    args = ["--model", model, "--arm", arm, "--from", str(folder), "--out", str(tmp_path / "run"), "--data.epochs=1"]
    run("finetune", "--task", "entailment", *args, "--precision=32-true")
    end = figures(tmp_path / "run")
    assert end["test/rows"] == 500
    assert 0.3 < end["baseline/majority"] < 0.34
    rows = [json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()]
    tuned = pipeline.load(tmp_path / "run/model")
    again = tuned.predict([tuple(row["text"]) for row in rows[:20]])
    for row, result in zip(rows[:20], again, strict=True):
        assert row["probabilities"] == pytest.approx(result["probabilities"], abs=1e-4)
    with pytest.raises(UserError, match="reads pairs"):
        tuned.predict(["one text"])


def test_try(encoders: dict[str, Path], pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt = ["try", "--model", "gpt", "--from", str(encoders["gpt"] / "encoder")]
    run(*gpt, "--prompt", "The soup", "--tokens", "8")
    first = capsys.readouterr().out
    assert first.startswith("The soup")
    run(*gpt, "--prompt", "The soup", "--tokens", "8")
    assert capsys.readouterr().out == first
    run(*gpt, "--prompt", "The soup", "--tokens", "8", "--seed", "5")
    assert capsys.readouterr().out != first
    run(*gpt, "--prompt", "The soup was good. " * 30, "--tokens", "8")
    assert "are cut" in capsys.readouterr().out
    run("try", "--model", "bert", "--from", str(pretrained / "encoder"), "--prompt", "The [MASK] was [MASK].")
    shown = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in shown[1:]] == ["[MASK] 1", "[MASK] 2"]
    run("try", "--model", "elmo", "--from", str(encoders["elmo"] / "encoder"), "--word", "was", *SHARED[:1])
    shown = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("  layer") for line in shown) == 6
    assert sum("[was]" in line for line in shown) >= 2


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        ("gpt", ["--prompt", "  "], "--prompt is empty"),
        ("gpt", [], "Set PROMPT"),
        ("gpt", ["--prompt", "a", "--temperature", "-1"], "at least 0"),
        ("gpt", ["--prompt", "a", "--temperature", "nan"], "at least 0"),
        ("gpt", ["--prompt", "a", "--top_k", "3"], "does not know the flag --top_k"),
        ("gpt", ["--word", "was"], "WORD= is for elmo"),
        ("bert", ["--prompt", "no mask"], r"no \[MASK\]"),
        ("bert", ["--prompt", "word " * 99 + "[MASK]"], "a mask is cut off"),
        ("elmo", ["--prompt", "a"], "set WORD="),
        ("elmo", ["--word", "qwertz", *SHARED[:1]], "stands in 0 sentences"),
    ],
)
def test_try_refuses(encoders: dict[str, Path], pretrained: Path, model: str, args: list[str], message: str) -> None:
    folder = (encoders | {"bert": pretrained})[model] / "encoder"
    with pytest.raises(UserError, match=message) as caught:
        run("try", "--model", model, "--from", str(folder), *args)
    assert "\n" not in str(caught.value)


def test_the_tokenizer_must_be_of_the_right_scheme(encoders: dict[str, Path], tmp_path: Path) -> None:
    file = encoders["gpt"] / "encoder/tokenizer.json"
    with pytest.raises(UserError, match="is a bpe tokenizer; this model needs words"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("elmo", f"--data.tokenizer.file={file}"))
    with pytest.raises(UserError, match="GPT needs a tokenizer of scheme bpe"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("gpt", "--data.tokenizer.scheme=wordpiece"))
    for setting, message in (("filters=[[9,8]]", "from 1 to 7"), ("cutoffs=[200,100]", "must be positive and rise")):
        with pytest.raises(UserError, match=message):
            run("pretrain", "--out", str(tmp_path / "run"), *flags("elmo", f"--model.encoder.init_args.{setting}"))
    with pytest.raises(UserError, match="holds a gpt encoder, not elmo"):
        run("finetune", "--model", "elmo", "--from", str(encoders["gpt"] / "encoder"))
    with pytest.raises(UserError, match="lowercase does not go with bpe"):
        run("pretrain", "--out", str(tmp_path / "run"), *flags("gpt", "--data.tokenizer.lowercase=true"))
