"""Distillation: a student begins with layers of its teacher and learns what it predicts (Hinton 2015, Sanh 2019)."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

import pipeline
from pipeline.cli import config as conf
from pipeline.data.token_store import TokenStore
from pipeline.errors import Interrupted, UserError
from pipeline.finetuning.distillation import TaskTeacher
from pipeline.models.base import Encoder
from pipeline.models.losses import Loss
from pipeline.objectives import distillation
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.distillation import Distillation, SoftTargets, Teacher, chosen_layers, copy_layers
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.tracking import lineage
from pipeline.training.checkpoints import Latest
from pipeline.training.requests import PretrainRequest
from tests.conftest import figures, run

SHORT = [
    *("--data.sample_documents=300", "--data.length=48", "--data.batch_size=16", "--data.validation_rows=32"),
    *("--precision=32-true", "--validate_every=4", "--trainer.log_every_n_steps=2"),
    *("--model.optimization.warmup_steps=2", "--trainer.max_steps=8"),
]
HF = {"bert": transformers.BertForPreTraining, "gpt": transformers.GPT2LMHeadModel}


def one_layer(folder: Path, **sizes: Any) -> pipeline.encoders.Encoder:
    """A student of the model in a folder, with one of its two layers, in training mode."""
    teacher = pipeline.encoders.load(folder)
    layers = "num_hidden_layers" if teacher.scoring == "masked" else "n_layer"
    return type(teacher).from_config({**teacher.config, layers: 1, **sizes}, teacher.tokenizer)


def batch_for(model: str, vocabulary: int) -> Batch:
    """Two rows, one of them short, with every third position predicted."""
    ids = torch.randint(5, vocabulary, (2, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, 8:] = False
    positions = torch.arange(0, 24, 3)
    positions = positions[mask.flatten()[positions]]
    inputs = {"input_ids": ids, "mask": mask}
    count = torch.tensor(len(positions))
    if model == "bert":
        target = Target(ids.flatten()[positions], count, positions)
        return Batch({**inputs, "token_type_ids": torch.zeros_like(ids)}, {"mlm": target}, torch.arange(2))
    labels = torch.full_like(ids, -1)
    labels.view(-1)[positions] = ids.flatten()[positions]
    return Batch(inputs, {"lm": Target(labels, count)}, torch.arange(2))


def column(out: Path, name: str) -> list[float]:
    """The values of a metric over the run in a folder."""
    with (out / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.parametrize("model", ["bert", "gpt"])
def test_the_losses_are_those_of_the_paper(model: str, toys: Callable[[str], Path], tmp_path: Path) -> None:
    """KL divergence and cosine from the logits and layers of transformers, at the predicted positions alone."""
    folder = toys(model) / "encoder"
    student = one_layer(folder)
    student.save(tmp_path / "student")
    objective = MaskedLM(next_sentence="off") if model == "bert" else CausalLM()
    teacher = Teacher(Distillation(str(folder), temperature=3.0), student, objective, length=12)
    batch = batch_for(model, len(student.tokenizer))
    losses = teacher.losses(objective, student, batch)
    with torch.no_grad():
        agreement = teacher.losses(objective, student, batch_for(model, len(student.tokenizer)))["teacher"].correct
    assert teacher.weights == {"teacher": 2.5, "hidden": 0.5}
    assert all(batch.targets[name].count == losses[name].count for name in losses)

    ours, theirs = (HF[model].from_pretrained(place).eval() for place in (tmp_path / "student", folder))
    inputs = {"input_ids": batch.inputs["input_ids"], "attention_mask": batch.mask.long(), "output_hidden_states": True}
    positions = torch.arange(0, 24, 3)
    positions = positions[batch.mask.flatten()[positions]]
    outputs = [net(**inputs) for net in (ours, theirs)]
    logits = [getattr(out, "prediction_logits" if model == "bert" else "logits") for out in outputs]
    q, p = ((part.flatten(0, 1)[positions] / 3.0).log_softmax(-1) for part in logits)
    wanted = 9.0 * F.kl_div(q, p.exp(), reduction="sum")
    assert float(losses["teacher"].sum) == pytest.approx(float(wanted), rel=1e-4)
    assert float(agreement or 0) == int((q.argmax(-1) == p.argmax(-1)).sum())
    tops = [out.hidden_states[-1].flatten(0, 1)[positions] for out in outputs]
    cosine = F.cosine_similarity(*tops, dim=-1)
    assert float(losses["hidden"].sum) == pytest.approx(float((1 - cosine).sum()), rel=1e-3, abs=1e-4)

    (losses["teacher"].sum + losses["hidden"].sum).backward()
    gradients = [parameter.grad for parameter in student.parameters() if parameter.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0
    assert not any(parameter.requires_grad for parameter in teacher.model.model.parameters())


def test_a_student_that_is_its_teacher_has_nothing_to_learn(pretrained: Path) -> None:
    student = pipeline.encoders.load(pretrained / "encoder")
    objective = MaskedLM(next_sentence="off")
    teacher = Teacher(Distillation(str(pretrained / "encoder")), student, objective, length=12)
    with torch.no_grad():
        losses = teacher.losses(objective, student, batch := batch_for("bert", len(student.tokenizer)))
    assert float(losses["teacher"].sum) == pytest.approx(0, abs=1e-4)
    assert float(losses["hidden"].sum) == pytest.approx(0, abs=1e-4)
    assert float(losses["teacher"].correct or 0) == losses["teacher"].count == len(batch.targets["mlm"].labels)


def test_layers_are_taken_evenly() -> None:
    assert chosen_layers(6, 12) == [0, 2, 4, 7, 9, 11]  # DistilBERT's
    assert chosen_layers(2, 4) == [0, 3]
    assert chosen_layers(1, 4) == [0]
    assert chosen_layers(3, 4) == [0, 2, 3]


@pytest.mark.parametrize("model", ["bert", "gpt", "recurrent", "elmo"])
def test_a_student_begins_with_layers_of_its_teacher(model: str, toys: Callable[[str], Path]) -> None:
    """With all layers the copy is the teacher; with one it has its embeddings, first layer and output."""
    teacher = pipeline.encoders.load(toys(model) / "encoder")
    whole = type(teacher).from_config(teacher.config, teacher.tokenizer)
    report = copy_layers(whole, teacher)
    assert not report.new
    assert not report.unused
    for ours, theirs in zip(whole.parameters(), teacher.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    if model not in ("bert", "gpt"):
        return
    student = one_layer(toys(model) / "encoder")
    report = copy_layers(student, teacher)
    assert not report.new
    assert all(".1." in name for name in report.unused)
    named = dict(teacher.named_parameters())
    assert {*teacher.export_state()} == {*report.loaded, *report.unused}  # as a folder calls them
    assert all(torch.equal(value, named[name]) for name, value in student.named_parameters())
    if model == "bert":
        with pytest.raises(UserError, match=r"differ in .*: \(500, 64\) and \(500, 32\)\. A student of another size"):
            copy_layers(one_layer(toys(model) / "encoder", hidden_size=32), teacher)


def test_a_student_takes_what_both_have_and_was_trained(pretrained: Path, toys: Callable[[str], Path]) -> None:
    gpt = pipeline.encoders.load(toys("gpt") / "encoder")
    teacher = pipeline.encoders.load(pretrained / "encoder")
    config = {**teacher.config, "num_hidden_layers": 1, "architectures": ["BertForMaskedLM"]}
    report = copy_layers(type(teacher).from_config(config, teacher.tokenizer), teacher)
    assert not report.new
    own = {".".join(name.split(".")[:3]) for name in report.unused}
    assert own == {
        "bert.encoder.layer",
        "bert.pooler.dense",
        "cls.seq_relationship.weight",
        "cls.seq_relationship.bias",
    }
    teacher.untrained = frozenset(name for name in teacher.export_state() if name.startswith("cls.predictions."))
    report = copy_layers(one_layer(pretrained / "encoder"), teacher)
    assert report.new  # random there too
    assert all(name.startswith("cls.predictions.") for name in report.new)
    with pytest.raises(UserError, match="cannot begin with layers of a bert"):
        copy_layers(gpt, teacher)


@pytest.mark.parametrize("model", ["bert", "gpt"])
def test_pretraining_with_a_teacher_resumes_exactly(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "teacher"
    shutil.copytree(toys(model), source)
    before = load_file(source / "encoder/model.safetensors")
    flags = ["--model", model, "--teacher", str(source), *SHORT]
    original = Latest.on_step_end

    def stop(self: Latest, trainer: Any, module: Any) -> None:
        self.stop_requested |= trainer.global_step == 5
        original(self, trainer, module)

    run("pretrain", *flags, "--out", str(tmp_path / "whole"))
    with monkeypatch.context() as patch:
        patch.setattr(Latest, "on_step_end", stop)
        with pytest.raises(Interrupted):
            run("pretrain", *flags, "--out", str(tmp_path / "halves"))
    run("pretrain", *flags, "--out", str(tmp_path / "halves"), "--resume")
    one, two = (load_file(tmp_path / name / "encoder/model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert sum(value.numel() for value in one.values()) < sum(value.numel() for value in before.values())
    HF[model].from_pretrained(tmp_path / "whole/encoder")

    metrics, encoder = figures(tmp_path / "whole"), pipeline.encoders.load(tmp_path / "whole/encoder")
    assert 0 < metrics["val/teacher_loss"] < 1
    assert 0 <= metrics["val/hidden_loss"] < 1
    assert metrics["parameters"] == sum(parameter.numel() for parameter in encoder.parameters())
    names = ["mlm_loss", "nsp_loss"] if model == "bert" else ["lm_loss"]
    weighted = 2.5 * metrics["val/teacher_loss"] + 0.5 * metrics["val/hidden_loss"]
    assert metrics["val/loss"] == pytest.approx(sum(metrics[f"val/{name}"] for name in names) + weighted)
    state = torch.load(tmp_path / "whole/checkpoints/last.ckpt", weights_only=True)
    assert not any("teacher" in name for name in state["state_dict"])
    assert "1 of" not in (tmp_path / "whole/load_report.txt").read_text()
    stages = lineage.read(tmp_path / "whole/encoder")
    assert lineage.last(stages, "teacher")["sha256"] == lineage.weights_of(lineage.read(source / "encoder"))
    card = (tmp_path / "whole/encoder/README.md").read_text()
    assert "pretrained from some layers of a teacher that was trained on `sample`, on `sample`" in card
    after = load_file(source / "encoder/model.safetensors")
    assert all(torch.equal(value, after[name]) for name, value in before.items())

    again = ["pretrain", *flags, "--out", str(tmp_path / "whole"), "--resume", "--trainer.max_steps=12"]
    with pytest.raises(UserError, match=r"model\.distillation\.temperature 2\.0, not 1\.0"):
        run(*again, "--model.distillation.temperature=1")
    with pytest.raises(UserError, match=r"model\.distillation\.teacher_weight 2\.5, not 0\.1"):
        run(*again, "--model.distillation.teacher_weight=0.1")
    other = pipeline.encoders.load(source / "encoder")
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    shutil.rmtree(source / "encoder")
    other.save(source / "encoder")
    with pytest.raises(UserError, match=r"content of the (encoder|teacher)"):
        run(*again)


def test_a_teacher_lowers_the_loss_of_a_small_student(toys: Callable[[str], Path], tmp_path: Path) -> None:
    """An LSTM of another size than its teacher, with as many steps and rows, with and without it."""
    source = toys("gpt") / "encoder"
    sizes = [
        f"--model.encoder.init_args.{size}" for size in ("size=32", "embedding_size=32", "layers=1", "max_length=48")
    ]
    flags = ["--model", "lstm", *SHORT, *sizes, "--trainer.max_steps=60", "--validate_every=60"]
    flags += ["--model.optimization.learning_rate=2e-2"]
    run("pretrain", *flags, "--teacher", str(source), "--out", str(tmp_path / "taught"))
    run("pretrain", *flags, f"--data.tokenizer.file={source}", "--out", str(tmp_path / "alone"))
    taught, alone = (figures(tmp_path / name) for name in ("taught", "alone"))
    assert "val/hidden_loss" not in taught  # the top layers have different sizes
    assert taught["val/teacher_accuracy"] > taught["val/lm_accuracy"]
    assert taught["val/lm_loss"] < alone["val/lm_loss"] + 0.05
    assert "with a teacher that was trained on `sample`," in (tmp_path / "taught/encoder/README.md").read_text()
    assert lineage.is_public(lineage.read(tmp_path / "taught"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data.tokenizer.vocab_size=400"], "vocab_size is 400, but a student of .* there it is 500: leave"),
        (["--model", "elmo"], "needs a student that predicts each token once"),
        (["--model", "bart"], "needs a student that predicts each token once"),
        (["--data.length=64"], "data.length is 64, but the teacher in .* has 48 positions: lower data.length"),
        (["--model", "ngram"], "ngram counts its text anew: leave --from and --teacher out"),
        (["--model.distillation.temperature=abc"], r"distillation\.temperature is abc; it must be a finite number"),
        (["--model.distillation.temprature=2"], r"Did you mean model\.distillation"),
        (["--model.distillation=null"], "model.distillation is null, and --teacher .* sets it"),
        (["--model.distillation.temperature=0"], r"distillation\.temperature is 0\.0; it must be above 0"),
        (["--model.distillation.teacher_weight=-1"], r"distillation\.teacher_weight is -1\.0; it must be at least 0"),
        (["--data.length=64", "--model.encoder.init_args.max_length=64"], "data.length is 64, but the teacher"),
        (["--model.encoder.init_args.layers=3"], "has fewer layers"),
    ],
)
def test_what_cannot_be_taught_is_refused(flags: list[str], message: str, pretrained: Path, tmp_path: Path) -> None:
    short = [] if "ngram" in flags else SHORT
    with pytest.raises(UserError, match=message):
        run("pretrain", "--teacher", str(pretrained), "--out", str(tmp_path / "run"), *short, *flags)
    assert not (tmp_path / "run").exists()


def test_a_teacher_without_probabilities_is_refused(pretrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "headless"
    encoder = pipeline.encoders.load(pretrained / "encoder")
    encoder.untrained = frozenset(name for name in encoder.export_state() if name.startswith("cls."))
    encoder.save(folder)
    with pytest.raises(UserError, match="it gives vectors, but no probabilities"):
        run("pretrain", "--teacher", str(folder), "--out", str(tmp_path / "run"), *SHORT)
    with pytest.raises(UserError, match=r"^The teacher cannot be used. There is no folder .*nowhere of .* model\.$"):
        run("pretrain", "--teacher", str(tmp_path / "nowhere"), "--out", str(tmp_path / "run"), *SHORT)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "head": {}}))  # as fine-tuning writes it
    with pytest.raises(UserError, match="is a fine-tuned model; name the encoder of a pretraining"):
        run("pretrain", "--teacher", str(folder), "--out", str(tmp_path / "run"), *SHORT)


def test_models_that_predict_otherwise_have_no_teacher(toys: Callable[[str], Path], tmp_path: Path) -> None:
    for model in ("elmo", "bart"):
        with pytest.raises(UserError, match="needs a student that predicts each token once"):
            run("pretrain", "--model", model, "--teacher", str(toys(model)), "--out", str(tmp_path / model), *SHORT)
    stateful = ["--model.objective.init_args.stateful=true"]
    with pytest.raises(UserError, match="rows that do not continue each other"):
        run("pretrain", "--model", "lstm", "--teacher", str(toys("recurrent")), *SHORT, *stateful)
    with pytest.raises(UserError, match=r"model\.distillation needs a teacher: set --teacher"):
        run("pretrain", "--out", str(tmp_path / "run"), *SHORT, "--model.distillation.temperature=3")


def test_a_model_that_counts_teaches(toys: Callable[[str], Path], tmp_path: Path) -> None:
    """A GPT learns what a trigram model predicts; afterwards it agrees with it more often than at first."""
    source, out = toys("ngram") / "encoder", tmp_path / "run"
    small = ("size=32", "layers=1", "heads=2", "inner_size=64", "max_length=48")
    sizes = [f"--model.encoder.init_args.{size}" for size in small]
    flags = ["--model", "gpt", "--teacher", str(source), *SHORT, *sizes, "--trainer.max_steps=40"]
    run("pretrain", *flags, "--out", str(out), "--validate_every=10")
    found = column(out, "val/teacher_loss")
    assert found[-1] < found[0]


TASK = ["--precision=32-true", "--data.max_length=24", "--data.train_rows=64", "--validations=2"]


def test_fine_tuning_with_a_teacher(pretrained: Path, tmp_path: Path) -> None:
    """The loss is that of the probabilities, nothing of the teacher is in the run, and another run is not resumed."""
    flags = ["--task", "sentiment", "--from", str(pretrained), *TASK, "--trainer.log_every_n_steps=1"]
    run("finetune", *flags, "--out", str(tmp_path / "teacher"), "--trainer.max_steps=20")
    taught = [*flags, "--teacher", str(tmp_path / "teacher"), "--trainer.max_steps=4"]
    run("finetune", *taught, "--out", str(tmp_path / "student"))
    out = tmp_path / "student"
    state = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    assert not any("teacher" in name for name in state["state_dict"])
    rows = [line.split(",") for line in (out / "metrics.csv").read_text().splitlines()]
    columns = {name: [row[n] for row in rows[1:] if row[n]] for n, name in enumerate(rows[0])}
    total, task, teacher = (float(columns[name][0]) for name in ("train/loss", "train/task_loss", "train/teacher_loss"))
    assert total == pytest.approx(task + teacher, rel=1e-4)
    assert "teacher" in (out / "load_report.txt").read_text()
    stages = lineage.read(out / "model")
    assert lineage.last(stages, "teacher")["sha256"] == lineage.made("model", tmp_path / "teacher/model")["sha256"]
    with pytest.raises(UserError, match=r"model\.distillation\.temperature 2\.0, not 1\.0"):
        run("finetune", *taught, "--out", str(out), "--resume", "--model.distillation.temperature=1")
    run("finetune", *flags, "--out", str(tmp_path / "alone"), "--trainer.max_steps=4")
    with pytest.raises(UserError, match="is of a run without a teacher: leave --teacher out"):
        run("finetune", *taught, "--out", str(tmp_path / "alone"), "--resume")

    model, other = (pipeline.load(tmp_path / name / "model") for name in ("student", "teacher"))
    features = model.features(["good food", "the worst film of all"])
    batch = model.head.inputs(model.encoder, features)
    options = SoftTargets(str(tmp_path / "teacher/model"), temperature=4.0)
    outputs = model(batch)[0]
    loss = TaskTeacher(options, model).loss(batch, outputs, torch.tensor([0, 1]))
    q, p = ((net(batch)[0] / 4.0).log_softmax(-1) for net in (model, other))
    assert float(loss.sum) == pytest.approx(16 * float((p.exp() * (p - q)).sum()), rel=1e-4, abs=1e-6)


def test_a_tagger_learns_of_its_words_alone(pretrained: Path, tmp_path: Path) -> None:
    flags = ["--task", "tagging", "--from", str(pretrained), *TASK, "--trainer.max_steps=2"]
    run("finetune", *flags, "--out", str(tmp_path / "teacher"))
    run("finetune", *flags, "--teacher", str(tmp_path / "teacher"), "--out", str(tmp_path / "student"))
    model = pipeline.load(tmp_path / "student/model")
    batch = model.head.inputs(model.encoder, model.features([["one", "two"], ["three"]]))
    outputs = model(batch)[0]
    loss = TaskTeacher(SoftTargets(str(tmp_path / "teacher/model")), model).loss(
        batch, outputs, torch.tensor([[0, 1], [0, -1]])
    )
    assert loss.count == 3
    with pytest.raises(UserError, match="has another task, or its labels in another order"):
        run("finetune", "--task", "sentiment", *flags[2:], "--teacher", str(tmp_path / "teacher"))
    with pytest.raises(UserError, match="Distillation is for classes, and for tags without a CRF"):
        run("finetune", *flags, "--teacher", str(tmp_path / "teacher"), "--model.recipe.crf=true")
    with pytest.raises(UserError, match=r"The teacher cannot be used\. .* is an encoder without a head"):
        run("finetune", *flags, "--teacher", str(pretrained))
    run("finetune", *flags, "--out", str(tmp_path / "crf"), "--model.recipe.crf=true")
    with pytest.raises(UserError, match="Distillation is for classes, and for tags without a CRF"):
        run("finetune", *flags, "--teacher", str(tmp_path / "crf"))
    losses = []
    for parts in (1, 4):  # a part of a batch is narrower than its labels
        out = tmp_path / f"parts-{parts}"
        split = [
            f"--trainer.accumulate_grad_batches={parts}",
            "--trainer.log_every_n_steps=1",
            "--model.recipe.dropout=0",
        ]
        run("finetune", *flags, "--teacher", str(tmp_path / "teacher"), "--out", str(out), *split)
        losses.append(column(out, "train/teacher_loss"))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_teacher_and_student_read_the_same_batches(toys: Callable[[str], Path], tmp_path: Path) -> None:
    flags = ["--task", "sentiment", *TASK, "--trainer.max_steps=1"]
    run("finetune", *flags, "--from", str(toys("bert")), "--out", str(tmp_path / "teacher"))
    with pytest.raises(UserError, match="must be a gpt with the student's tokenizer"):
        run("finetune", *flags, "--model", "gpt", "--from", str(toys("gpt")), "--teacher", str(tmp_path / "teacher"))
    pairs = ["--task", "entailment", *TASK, "--trainer.max_steps=1", "--from", str(toys("bert"))]
    run("finetune", *pairs, "--out", str(tmp_path / "joined"), "--model.recipe.pair=joined")
    with pytest.raises(UserError, match="reads pairs joined, the student compared"):
        run("finetune", *pairs, "--teacher", str(tmp_path / "joined"), "--model.recipe.pair=compared")


def test_another_cell_or_size_begins_with_fresh_weights(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GRU whose teacher is an LSTM stays a GRU; a student of another size has what is not said from its teacher."""
    lstm = toys("recurrent") / "encoder"
    short = ("--data.length=48",)  # the positions of the teacher
    request = PretrainRequest(model="gru", teacher=lstm, overrides=short)
    options = conf.pretraining(request).resolved["model"]
    assert (options["encoder"]["init_args"]["cell"], options["start"]) == ("gru", None)
    request = PretrainRequest(model="lstm", teacher=lstm, overrides=short)
    options = conf.pretraining(request).resolved["model"]
    assert (options["encoder"]["init_args"]["layers"], options["start"]) == (1, str(lstm))
    size = ("--model.encoder.init_args.embedding_size=32",)
    options = conf.pretraining(replace(request, overrides=(*short, *size))).resolved["model"]
    sizes = options["encoder"]["init_args"]
    assert (sizes["size"], sizes["embedding_size"], sizes["layers"], options["start"]) == (64, 32, 1, None)
    capsys.readouterr()
    run("pretrain", "--model", "lstm", "--teacher", str(lstm), *size, *SHORT, "--out", str(tmp_path / "small"))
    assert "student     begins with fresh weights" in "".join(capsys.readouterr())
    run("pretrain", "--model", "lstm", "--teacher", str(lstm), *SHORT, "--out", str(tmp_path / "half"))
    with pytest.raises(UserError, match=r"has one layer, of which there is no half: .*size=32"):
        run("pretrain", "--model", "lstm", "--teacher", str(tmp_path / "half"), *SHORT)


def test_a_student_goes_on_with_a_teacher(pretrained: Path, tmp_path: Path) -> None:
    """FROM= and TEACHER= are two folders; the card of a run that follows does not speak of a teacher."""
    run("pretrain", "--teacher", str(pretrained), "--out", str(tmp_path / "student"), *SHORT)
    flags = ["pretrain", "--from", str(tmp_path / "student"), *SHORT]
    run(*flags, "--teacher", str(pretrained), "--out", str(tmp_path / "on"))
    card = (tmp_path / "on/encoder/README.md").read_text()
    assert "then `sample`, with a teacher that was trained on `sample`, on" in card
    assert figures(tmp_path / "on")["parameters"] == figures(tmp_path / "student")["parameters"]
    run(*flags, "--out", str(tmp_path / "alone"))
    assert "teacher" not in (tmp_path / "alone/encoder/README.md").read_text().partition("## Lineage")[0]


def test_many_predictions_are_computed_in_chunks(toys: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = toys("gpt") / "encoder"
    student, objective = one_layer(folder), CausalLM()
    teacher = Teacher(Distillation(str(folder)), student, objective, length=12)
    found = []
    for chunk in (1000, 3):
        monkeypatch.setattr(distillation, "CHUNK", chunk)
        student.zero_grad()
        loss = teacher.losses(objective, student, batch_for("gpt", len(student.tokenizer)))["teacher"]
        loss.sum.backward()
        assert loss.correct is None  # in training
        gradient = torch.cat([p.grad.flatten() for p in student.parameters() if p.grad is not None])
        found.append((loss.sum.item(), gradient))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-6)


def test_a_student_of_private_texts_is_private() -> None:
    public = {"stage": "pretrain", "public": True}
    assert lineage.is_public([public, {"stage": "teacher", "public": True}])
    assert not lineage.is_public([public, {"stage": "teacher"}])
    assert not lineage.is_public([public, {"stage": "finetune"}])


class Twice(CausalLM):
    """Reads each batch twice, and has a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        super().forward(model, batch)
        return super().forward(model, batch)


class Shifted(CausalLM):
    """Has the model read other tokens than those of the batch, and shares its embedding."""

    def setup(self, model: Encoder, store: TokenStore) -> None:
        self.embedding = model.token_embedding

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        shifted = replace(batch, inputs={**batch.inputs, "input_ids": batch.inputs["input_ids"].roll(1, 1)})
        return super().forward(model, shifted)


def test_an_objective_that_changes_what_is_read_has_no_teacher(toys: Callable[[str], Path], tmp_path: Path) -> None:
    """Parameters that it shares with the model are trained once, and counted once."""
    encoder, kind = toys("gpt") / "encoder", f"--model.objective={__name__}.Shifted"
    flags = [kind, "--out", str(tmp_path / "run"), *SHORT]
    with pytest.raises(UserError, match="Shifted has the model read other tokens than a batch, and a teacher"):
        run("pretrain", "--model", "gpt", "--teacher", str(encoder), *flags)
    run("pretrain", "--model", "gpt", "--from", str(encoder), *flags, "--overwrite")
    parameters = sum(parameter.numel() for parameter in pipeline.encoders.load(encoder).parameters())
    assert figures(tmp_path / "run")["parameters"] == parameters


def test_an_objective_that_reads_a_batch_twice_has_no_teacher(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, kind = str(toys("gpt") / "encoder"), f"--model.objective={__name__}.Twice"
    with pytest.raises(
        UserError, match="Twice reads a batch 2 times, and a teacher is for objectives that read it once"
    ):
        run("pretrain", "--model", "gpt", "--teacher", encoder, kind, "--out", str(tmp_path / "run"), *SHORT)
    run("evaluate", "--model", "gpt", "--from", encoder, kind, "--data.sample_documents=40")
    assert "Warning: Twice has 3 parameters of its own, which no encoder folder has" in capsys.readouterr().out
