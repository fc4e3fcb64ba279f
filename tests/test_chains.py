"""One training after another: pretraining that goes on from an encoder, on a task's texts too, and tasks in a row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pipeline
from pipeline.cli.continued import kept_settings
from pipeline.data.task_texts import document
from pipeline.errors import Interrupted, UserError
from pipeline.models import registry
from pipeline.objectives.causal_lm import CausalLM
from pipeline.reporting.run_record import RunRecord
from pipeline.reporting.shared import nodes_of
from pipeline.tracking import lineage
from pipeline.training.checkpoints import Latest
from tests.conformance import TOYS, TRAINED, preset
from tests.conftest import run

SHORT = [
    "--data.length=48",
    "--data.batch_size=8",
    "--data.validation_rows=16",
    "--validate_every=3",
    "--precision=32-true",
]
SHORT += ["--model.optimization.warmup_steps=2", "--trainer.max_steps=6", "--trainer.log_every_n_steps=2"]
TINY = [
    "--validations=1",
    "--precision=32-true",
    "--data.max_length=24",
    "--data.train_rows=32",
    "--trainer.max_steps=1",
]


@pytest.mark.parametrize("model", TRAINED)
def test_a_folder_says_how_its_encoder_is_made(model: str, toys: Callable[[str], Path]) -> None:
    folder = toys(model) / "encoder"
    encoder, found = pipeline.encoders.load(folder), registry.arguments(folder)
    again = type(encoder)(encoder.tokenizer, **found)
    assert again.state_dict().keys() == encoder.state_dict().keys()
    sizes = {name: value for name, _, value in (size.partition("=") for size in TOYS[model].sizes.split())}
    kept = kept_settings(folder, CausalLM(packing="concat"))
    for name, value in sizes.items():
        assert str(kept[f"model.encoder.init_args.{name}"]).replace(" ", "") == value
    assert not [name for name in kept if name.endswith("dropout")]


@pytest.mark.parametrize("model", ["bert", "gpt", "elmo", "bart"])
def test_pretraining_goes_on_and_resumes_exactly(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = toys(model)
    flags = ["--model", preset(model), "--from", str(source), "--corpus", "task:entailment", *SHORT]
    run("pretrain", *flags, "--out", str(tmp_path / "straight"), "--model.optimization.learning_rate=1e-9")
    start, end = (load_file(folder / "encoder/model.safetensors") for folder in (source, tmp_path / "straight"))
    assert start.keys() == end.keys()
    for name, value in start.items():
        assert torch.allclose(value, end[name], atol=1e-4), name  # at such a rate nothing moves
    report = (tmp_path / "straight/load_report.txt").read_text()
    assert "0 new, 0 unused; trained before on sample" in report
    stages = lineage.read(tmp_path / "straight/encoder")
    assert [stage["name"] for stage in stages if stage["stage"] == "corpus"] == ["sample", "task:entailment"]
    assert stages[: len(lineage.read(source / "encoder"))] == lineage.read(source / "encoder")
    card = (tmp_path / "straight/encoder/README.md").read_text()
    assert "from the weights of an encoder that was trained on `sample`" in card

    if model != "bert":
        return
    original = Latest.on_step_end

    def stop(self: Latest, trainer: Any, module: Any) -> None:
        self.stop_requested |= trainer.global_step == 4
        original(self, trainer, module)

    run("pretrain", *flags, "--out", str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(Latest, "on_step_end", stop)
        with pytest.raises(Interrupted):
            run("pretrain", *flags, "--out", str(tmp_path / "halves"))
    run("pretrain", *flags, "--out", str(tmp_path / "halves"), "--resume")
    one, two = (load_file(tmp_path / name / "encoder/model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())


def test_the_model_is_that_of_the_encoder(toys: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Where none is named; a recurrent encoder is a GRU, an LSTM or a plain one."""
    for model in ("gpt", "recurrent"):
        run("finetune", "--from", str(toys(model)), "--trainer.max_steps=1", "--precision=32-true")
        name = TOYS[model].preset or model
        assert (Path("runs/finetune") / f"{name}-sentiment/metrics.json").exists()
        assert f"finetune --model {name} --task sentiment" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model.encoder.init_args.size=32"], "init_args.size is 32, but a run that goes on from .* there it is 64"),
        (["--data.tokenizer.vocab_size=400"], "vocab_size is 400, but a run that goes on"),
        (["--data.tokenizer.lowercase=true"], "lowercase has no effect: the tokenizer is that of"),
        (["--model.embeddings=cooccurrence"], "embeddings is cooccurrence, but a run that goes on"),
        (["--model", "gpt"], "is bert, not gpt; set --model bert"),
        (["--corpus", "task:nothing"], "There is no task 'nothing'.*new-task --name nothing` writes"),
        (["--corpus", "task:blimp"], "has prompts and nothing to train on"),
    ],
)
def test_what_contradicts_the_encoder_is_refused(
    flags: list[str], message: str, pretrained: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        run("pretrain", "--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), *SHORT, *flags)
    with pytest.raises(UserError, match="ngram counts its text anew"):
        run("pretrain", "--model", "ngram", "--from", str(pretrained / "encoder"))
    assert not (tmp_path / "run").exists()


def test_the_texts_of_a_task_are_those_of_its_training_part_alone(
    pretrained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "dev", "test"):
        rows = [
            {"premise": f"{split} premise {n}.", "hypothesis": f"Hypothesis\n{n}.", "label": "yes"} for n in range(60)
        ]
        rows[0]["label"] = "no"
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = tmp_path / "mine.yaml"
    task.write_text(
        "data:\n  task:\n    class_path: tasks.entailment.Entailment\n"
        "    init_args: {splits: {train: train, valid: dev, test: test}}\n"
    )
    flags = [
        "--from",
        str(pretrained / "encoder"),
        "--corpus",
        f"task:{task}",
        "--data",
        str(tmp_path / "data"),
        *SHORT,
    ]
    capfd.readouterr()
    run("pretrain", *flags, "--out", str(tmp_path / "run"))
    assert f"finetune --task {task} --data {tmp_path / 'data'} --from {tmp_path / 'run'}/encoder" in "".join(
        capfd.readouterr()
    )
    facts = json.loads((tmp_path / "run/corpus.json").read_text())["parts"]
    assert facts["train"]["documents"] + facts["validation"]["documents"] == 60
    assert facts["train"]["lines"] == 2 * facts["train"]["documents"]
    assert document(("a\n b", "c")) == "a b\nc"
    assert document(["two", "words"]) == "two words"


def test_a_task_after_another(pretrained: Path, tmp_path: Path) -> None:
    """The encoder is that of the run before, the head is new; then pretraining goes on, with a new output layer."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    where = ["--from", str(pretrained), "--out", str(first)]
    run("finetune", "--task", "entailment", *where, *TINY, "--model.optimization.learning_rate=1e-2")
    run("finetune", "--task", "sentiment", "--from", str(first), "--out", str(second), *TINY, "--arm", "frozen")
    assert "it was fine-tuned on entailment: its head is not taken" in (second / "load_report.txt").read_text()
    before, after = (pipeline.load(folder / "model").encoder.export_state() for folder in (first, second))
    read = [name for name in before if not name.startswith("cls.")]  # by the head; the rest is new in both
    assert all(torch.equal(before[name], after[name]) for name in read)
    assert not torch.equal(before[read[0]], pipeline.encoders.load(pretrained / "encoder").export_state()[read[0]])
    assert lineage.tasks_of(lineage.read(second / "model")) == ["entailment", "sentiment"]
    assert "Its encoder was fine-tuned on `entailment` before." in (second / "model/README.md").read_text()
    drawn = [node for node in nodes_of(lineage.read(second)) if node.title == "Fine-tuning"]
    assert [node.facts[0].split()[:2] for node in drawn] == [["task", "entailment"], ["task", "sentiment"]]
    assert [stage["stage"] for stage in RunRecord.read(second).beginnings][-3:] == ["task", "finetune", "model"]
    run("pretrain", "--from", str(first), "--out", str(third), "--corpus", "task:entailment", *SHORT)
    report = (third / "load_report.txt").read_text()
    assert "trained before on sample, entailment" in report
    assert "new in the encoder: cls.predictions.bias" in report
    encoder = pipeline.encoders.load_with_heads(third / "encoder")
    assert encoder.encode(["The soup was good."], logits=True).logits is not None


def test_pretraining_in_several_languages_goes_on_and_is_evaluated(tmp_path: Path) -> None:
    """In others than those of the preset too: files have them in their names."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, line in (("train.en", "Anna reads a book."), ("train.fr", "Anna lit un livre.")):
        (folder / f"{name}.txt").write_text(f"{line}\n\n" * 40)
        (folder / f"{name.replace('train', 'valid')}.txt").write_text(f"{line}\n\n" * 8)
    sizes = [f"--model.encoder.init_args.{size}" for size in ("size=16", "layers=1", "heads=2", "inner_size=32")]
    where = ["--model", "mbart", "--corpus", str(folder), *SHORT, "--data.batch_size=4"]
    first, second = (["--out", str(tmp_path / name)] for name in ("first", "second"))
    names = ["--data.tokenizer.vocab_size=300", "--data.tokenizer.languages=[en,fr]"]
    run("pretrain", *where, *first, *sizes, *names)
    run("pretrain", *where, *second, "--from", str(tmp_path / "first/encoder"))
    run("evaluate", "--model", "mbart", "--from", str(tmp_path / "second/encoder"), "--corpus", str(folder))
