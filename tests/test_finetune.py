"""Fine-tuning through its public command: arms, figures, predictions, the saved model."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import BertConfig, BertForPreTraining

import pipeline
from pipeline.errors import UserError
from pipeline.models.layers.dropout import Dropout
from pipeline.training import base_module
from pipeline.training.finetuning import FineTuning
from pipeline.training.optimizers import Optimization
from pipeline.training.recipe import Recipe
from pipeline.training.task_data import Buckets, TaskData
from tasks.sentiment import Sentiment
from tests.conftest import assert_plot, figures, run

pytestmark = pytest.mark.slow

FAST = ["--data.epochs=2", "--validations=2", "--precision=32-true", "--data.max_length=32"]


@pytest.fixture(scope="module")
def tuned(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("finetune")
    for arm in ("full", "frozen", "scratch"):
        where = ["--from", str(pretrained / "encoder"), "--out", str(folder / arm)]
        run("finetune", "--arm", arm, *where, *FAST, *(["--data.characters=[9999,1]"] if arm == "full" else []))
    return {arm: folder / arm for arm in ("full", "frozen", "scratch")}


@pytest.mark.parametrize("arm", ["full", "frozen", "scratch"])
def test_run_folder(tuned: dict[str, Path], arm: str) -> None:
    end = figures(tuned[arm])
    assert end["test/rows"] == 500
    assert end["baseline/majority"] == 0.5
    assert {"test/accuracy", "test/standard_error", "test/macro_f1", "val/accuracy", "tokens", "parameters"} <= set(end)
    with open(tuned[arm] / "metrics.csv", newline="") as file:  # of the checkpoint that was tested
        [row] = [row for row in csv.DictReader(file) if int(row["step"]) == end["best_step"]]
    logged = {name: float(value) for name, value in row.items() if name.startswith("val/") and value}
    assert {name: end[name] for name in logged} == pytest.approx(logged, rel=1e-6)
    assert end["val/accuracy"] == end["val/best_accuracy"]
    predictions = [json.loads(line) for line in (tuned[arm] / "predictions.jsonl").read_text().splitlines()]
    right = sum(row["gold"] == row["label"] for row in predictions)
    assert right / len(predictions) == pytest.approx(end["test/accuracy"])
    pictures = {"curves.png", "confusion.png", *(["mix.png"] if arm == "frozen" else [])}
    assert {"model", "config.yaml", "load_report.txt", *pictures} <= {path.name for path in tuned[arm].iterdir()}
    for picture in pictures:
        assert_plot(tuned[arm] / picture)


def test_the_best_checkpoint_is_tested_and_saved(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where validations get worse, it is not the last one."""
    scores, seen = FineTuning.scores, []

    def falling(self: FineTuning, split: str) -> Any:
        found = scores(self, split)
        if split == "valid":
            seen.append(split)
            found["accuracy"] = 1 / len(seen)
        return found

    monkeypatch.setattr(FineTuning, "scores", falling)
    flags = ["--validations=2", "--precision=32-true", "--model.optimization.learning_rate=1e-2"]
    where = ["--from", str(pretrained / "encoder"), "--out", "run"]
    run("finetune", *where, "--data.epochs=2", "--data.train_rows=64", *flags)
    end, name = figures(Path("run")), "classifier.weight"
    assert (end["best_step"], end["steps"], end["val/accuracy"]) == (2, 4, 1.0)
    saved = load_file("run/model/model.safetensors")[name]
    best, last = (
        torch.load(f"run/checkpoints/{kind}.ckpt", weights_only=True)["state_dict"][f"model.head.{name}"]
        for kind in ("best", "last")
    )
    assert torch.equal(saved, best)
    assert not torch.equal(saved, last)


def test_the_test_by_characters_shown(tuned: dict[str, Path]) -> None:
    end = figures(tuned["full"])
    assert end["test/characters_9999/accuracy"] == end["test/accuracy"]
    rows = [json.loads(line) for line in (tuned["full"] / "predictions.jsonl").read_text().splitlines()]
    answers = pipeline.load(tuned["full"] / "model").predict([row["text"][:1] for row in rows])
    right = sum(answer["label"] == row["gold"] for answer, row in zip(answers, rows, strict=True))
    assert end["test/characters_1/accuracy"] == pytest.approx(right / len(rows))
    assert_plot(tuned["full"] / "characters.png")


def test_arms_differ_as_they_say(tuned: dict[str, Path], pretrained: Path) -> None:
    source = pipeline.encoders.load(pretrained / "encoder").state_dict()
    models = {arm: pipeline.load(folder / "model") for arm, folder in tuned.items()}
    frozen = models["frozen"].encoder.state_dict()
    assert all(torch.equal(source[name], frozen[name]) for name in source)
    name = "word_embedding.weight"
    full, scratch = (models[arm].encoder.state_dict()[name] for arm in ("full", "scratch"))
    assert not torch.equal(full, source[name])
    assert (full - source[name]).abs().mean() < (scratch - source[name]).abs().mean() / 3
    load_reports = {arm: (folder / "load_report.txt").read_text() for arm, folder in tuned.items()}
    assert " 0 new, 0 unused" in load_reports["full"]
    assert "0 tensors loaded" in load_reports["scratch"]
    assert "never trained, so not saved with the encoder: cls.predictions.bias" in load_reports["scratch"]
    assert "never trained" not in load_reports["full"]


@pytest.mark.parametrize(("flags", "rate"), [([], 1e-2), (["--model.optimization.learning_rate=3e-3"], 3e-3)])
def test_a_head_alone_has_a_rate_of_its_own(pretrained: Path, tmp_path: Path, flags: list[str], rate: float) -> None:
    out, more = tmp_path / "run", ["--data.train_rows=32", *flags]
    run("finetune", "--from", str(pretrained / "encoder"), "--arm", "frozen", "--out", str(out), *FAST, *more)
    assert yaml.safe_load((out / "config.yaml").read_text())["model"]["optimization"]["learning_rate"] == rate
    state = torch.load(out / "checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]
    assert {group["initial_lr"] for group in state["param_groups"]} == {rate}


def test_stopped_early_then_killed_before_the_test(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that had stopped early trains no further when it is resumed, and has the same figures."""
    more = ["--patience=1", "--validations=8", "--data.epochs=4", "--model.optimization.learning_rate=1e-7"]
    flags = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), "--precision=32-true", *more]
    run("finetune", *flags)
    first = figures(tmp_path / "run")
    chosen = f"checkpoint: step {first['best_step']:,} of {first['steps']:,}, the best on the validation part"
    assert f"{chosen} (accuracy {first['val/best_accuracy']:.4f})" in capsys.readouterr().out
    (tmp_path / "run/metrics.json").unlink()
    run("finetune", *flags, "--resume")
    again = figures(tmp_path / "run")
    for name in ("steps", "best_step", "val/best_accuracy", "test/accuracy", "val/accuracy", "test/loss"):
        assert again[name] == pytest.approx(first[name]), name
    (tmp_path / "run/metrics.json").unlink()
    best = tmp_path / "run/checkpoints/best.ckpt"
    best.rename(tmp_path / "best.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt is missing, the checkpoint to test; set --overwrite"):
        run("finetune", *flags, "--resume")  # the last step is not the best one
    (tmp_path / "best.ckpt").rename(best)
    run("finetune", *flags, "--resume", "--patience=20")  # in place of that of the checkpoint
    assert figures(tmp_path / "run")["steps"] > first["steps"]


@pytest.mark.parametrize("arm", ["full", "frozen"])
def test_dropout_is_on_in_what_is_trained(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    original, modes = FineTuning.training_step, []

    def looks(self: FineTuning, batch: dict, batch_idx: int) -> torch.Tensor:
        inside = [module for module in self.model.encoder.modules() if isinstance(module, Dropout)]
        modes.append(
            ({module.p for module in inside}, {module.training for module in inside}, self.model.head.training)
        )
        return original(self, batch, batch_idx)

    monkeypatch.setattr(FineTuning, "training_step", looks)
    more = ["--arm", arm, "--out", str(tmp_path / "run"), "--data.train_rows=64", "--model.recipe.dropout=0.2"]
    run("finetune", "--from", str(pretrained / "encoder"), *FAST, *more)
    assert len(modes) == 4  # after the first validation too
    assert all(mode == ({0.2}, {arm == "full"}, True) for mode in modes)


def test_the_saved_model_predicts_what_the_test_did(tuned: dict[str, Path]) -> None:
    rows = [json.loads(line) for line in (tuned["full"] / "predictions.jsonl").read_text().splitlines()][:50]
    model = pipeline.load(tuned["full"] / "model")
    results = model.predict([row["text"] for row in rows])
    for row, result in zip(rows, results, strict=True):
        assert result["label"] == row["label"]
        assert result["probability"] == pytest.approx(row["probability"], abs=1e-4)
        assert sum(result["probabilities"].values()) == pytest.approx(1)


def test_an_encoder_is_not_a_model(pretrained: Path) -> None:
    with pytest.raises(UserError, match="without a head"):
        pipeline.load(pretrained / "encoder")


def test_an_encoder_made_by_transformers(pretrained: Path, tmp_path: Path) -> None:
    tokenizer = pipeline.encoders.load(pretrained / "encoder").tokenizer
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    BertForPreTraining(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs", max_length=512)
    flags = [*FAST, "--data.epochs=1"]
    run("finetune", "--from", str(tmp_path / "theirs"), "--out", str(tmp_path / "run"), *flags)
    assert figures(tmp_path / "run")["test/rows"] == 500


def table(folder: Path, name: str, rows: list[tuple[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")


ROWS = [('good " film', 1), ("bad film", 0)] * 20


def test_local_data_for_a_hub_task(pretrained: Path, tmp_path: Path) -> None:
    table(tmp_path / "sst2", "train.tsv", ROWS)
    table(tmp_path / "sst2", "dev.tsv", ROWS[:10])
    flags = ["--from", str(pretrained / "encoder"), "--data", str(tmp_path / "sst2"), "--task", "sst2"]
    small = [*FAST, "--data.task.init_args.valid_rows=5"]
    run("finetune", *flags, "--out", str(tmp_path / "run"), *small)
    assert figures(tmp_path / "run")["test/rows"] == 10
    first = json.loads((tmp_path / "run/predictions.jsonl").read_text().splitlines()[0])
    assert first["text"] == 'good " film'  # quotes are plain characters

    for broken, message in (
        ([("x", 2)], "label '2'; the task knows 0 .negative., 1 .positive."),
        ([], "holds no row"),
    ):
        table(tmp_path / "sst2", "dev.tsv", broken)
        with pytest.raises(UserError, match=message):
            run("finetune", *flags, "--out", str(tmp_path / "other"), *small)
    (tmp_path / "sst2/dev.tsv").write_text("words\tlabel\nx\t1\n")
    with pytest.raises(UserError, match="no 'sentence'"):
        run("finetune", *flags, "--out", str(tmp_path / "other"), *small)
    (tmp_path / "sst2/dev.tsv").write_text("text\tlabel\nx\tpositive\n")  # called as its role; the label by name
    run("finetune", *flags, "--out", str(tmp_path / "by-role"), *small)
    assert figures(tmp_path / "by-role")["test/rows"] == 1
    (tmp_path / "sst2/dev.tsv").unlink()
    with pytest.raises(UserError, match=r"no test part: no file at .* is named 'dev'"):
        run("finetune", *flags, "--out", str(tmp_path / "other"), *small)
    assert not (tmp_path / "other/metrics.json").exists()


def test_buckets_use_every_row_once_an_epoch() -> None:
    lengths = [3 + i % 50 for i in range(1003)]
    buckets = Buckets(lengths, 16, seed=0, data=None)  # type: ignore[arg-type]
    plan = buckets.plan(0)
    assert sorted(int(i) for batch in plan for i in batch) == list(range(1003))
    spread = [max(lengths[i] for i in batch) - min(lengths[i] for i in batch) for batch in plan]
    assert sum(spread) / len(spread) < 5
    assert [b.tolist() for b in plan] == [b.tolist() for b in buckets.plan(0)]
    assert [b.tolist() for b in plan] != [b.tolist() for b in buckets.plan(1)]


def recipe() -> Recipe:
    shared: Any = {
        "words": "first",
        "crf": False,
        "class_weights": "none",
        "label_smoothing": 0.0,
        "lm_weight": 0.0,
        "pair": "auto",
        "reinit_layers": 0,
    }
    return Recipe(dropout=0.1, layers="auto", mix_dropout=0.0, lstm=0, unfreeze_share=0.0, **shared)


@pytest.mark.parametrize(
    ("arm", "limit"), [("full", {"max_epochs": 2}), ("scratch", {"max_steps": 3, "accumulate_grad_batches": 2})]
)
def test_lightning_alone_trains_and_tests(
    pretrained: Path, monkeypatch: pytest.MonkeyPatch, arm: Any, limit: dict[str, int]
) -> None:
    """Without our commands: the trainer asks the modules for data and network."""
    seeds: list[int] = []
    built: list[tuple[int, int]] = []
    build = base_module.optimizers.build

    def noted(options: Optimization, *args: Any, total: int, **more: Any) -> Any:
        built.append((options.warmup_steps, total))
        return build(options, *args, total=total, **more)

    monkeypatch.setattr(base_module.optimizers, "build", noted)
    monkeypatch.setattr(base_module, "seed_generators", lambda seed, device: seeds.append(seed))
    rates = Optimization(1e-3, warmup_steps=0, schedule="linear", weight_decay=0.01, betas=(0.9, 0.98), eps=1e-6)
    folder = str(pretrained / "encoder")
    module = FineTuning(optimization=rates, warmup_share=0.2, recipe=recipe(), arm=arm, encoder=folder)
    settings: Any = {"max_length": 32, "cut": "head", "epochs": 1, "workers": 0, "train_rows": 40}
    data = TaskData(task=Sentiment(sample="sentiment"), batch_size=8, **settings)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(**limit, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(module, data)
    assert trainer.global_step == limit.get("max_steps", 2 * 5)
    parts = limit.get("accumulate_grad_batches", 1)
    assert len(set(seeds)) == len(seeds) == trainer.global_step * parts  # no step, nor part of one, drops as another
    assert built == [(round(0.2 * trainer.global_step), trainer.global_step)]
    assert rates.warmup_steps == 0  # the settings that were given stay as they were
    trainer.test(module, data, verbose=False)
    assert {"test/loss", "test/accuracy", "test/macro_f1"} <= set(trainer.callback_metrics)
    [answer] = module.model.predict(["a lovely garden"])
    assert answer["label"] in data.task.label_names
