"""Objectives as modules of their own: from outside the package, without our command line, and in parts of a batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc import locate
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import entropy
from torch import nn

import pipeline
from pipeline.data import store_builder
from pipeline.data.documents import Source
from pipeline.data.rows import PackedBlocks
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.models.bart import Bart
from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.gpt import Gpt
from pipeline.models.losses import Loss
from pipeline.objectives.base import Objective
from pipeline.objectives.batch import Batch, Target
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.denoising import Denoising
from pipeline.objectives.frozen import Frozen
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.presets.former_names import CLASSES
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe
from pipeline.training.corpus_data import CorpusData, TokenizerOptions
from pipeline.training.loader import MicroBatches
from pipeline.training.optimizers import Optimization
from pipeline.training.pretraining import Pretraining
from tests.conftest import SMALL, figures, run

SHORT = [*SMALL, "--validate_every=4", "--trainer.max_steps=6"]


class SkipLM(Objective):
    """A toy: each token from those up to two before it, with a learned scale of its input."""

    requires = frozenset({"causal"})
    main = "skip"

    def __init__(self, distance: int = 2) -> None:
        super().__init__()
        self.distance, self.scale = distance, nn.Parameter(torch.ones(()))

    def rows(self, store: TokenStore, tokenizer: Tokenizer, *, length: int, phase: int, seed: int) -> PackedBlocks:
        return PackedBlocks(store, length, boundary=tokenizer.id("eos"), phase=phase)

    def batch(self, rows: PackedBlocks, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        ids = torch.from_numpy(rows(index)[0])[:, :-1]
        labels = torch.full_like(ids, -1)
        labels[:, : -self.distance] = ids[:, self.distance :]
        inputs = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
        return Batch(inputs, {"skip": Target(labels, (labels >= 0).sum())}, rows=torch.from_numpy(index))

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        labels = batch.targets["skip"].labels
        hidden = model(batch.inputs).layers[-1][labels >= 0]
        return {"skip": model.token_loss(self.scale * hidden, labels[labels >= 0])}

    def report(self, metrics: dict[str, float], *, per_byte: float) -> dict[str, float]:
        return {"skip_perplexity": float(np.exp(metrics["skip_loss"]))}


def test_an_objective_from_outside_the_package_pretrains(tmp_path: Path) -> None:
    (tmp_path / "skip.yaml").write_text(
        f"model:\n  objective:\n    class_path: {__name__}.SkipLM\n    init_args:\n      distance: 3\n"
    )
    run("pretrain", "--model", "gpt", "--out", "run", *SHORT, "--config", str(tmp_path / "skip.yaml"))
    metrics = figures(Path("run"))
    assert metrics["val/skip_perplexity"] == pytest.approx(np.exp(metrics["val/skip_loss"]))
    state = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert state["state_dict"]["objective.scale"] != 1  # trained with the model
    assert state["identity"]["model.objective.init_args.distance"] == 3
    assert not any("scale" in name for name in load_file("run/encoder/model.safetensors"))


class Distillation(CausalLM):
    """Each token from those before it, and the whole guess of a teacher for it (Hinton et al. 2015)."""

    def __init__(self, teacher: str) -> None:
        super().__init__()
        self.folder = teacher

    @property
    def weights(self) -> dict[str, float]:
        return {"teacher": 0.25}

    def setup(self, model: Encoder, store: TokenStore) -> None:
        self.teacher = Frozen(pipeline.encoders.load(self.folder))

    def batch(self, rows: PackedBlocks, index: np.ndarray, tokenizer: Tokenizer, *, rng: np.random.Generator) -> Batch:
        batch = super().batch(rows, index, tokenizer, rng=rng)
        batch.targets["teacher"] = batch.targets["lm"]
        return batch

    def forward(self, model: Encoder, batch: Batch) -> dict[str, Loss]:
        guess, truth = (
            net.logits(out.layers[-1]).log_softmax(-1)
            for net, out in ((model, model(batch.inputs)), (self.teacher.model, self.teacher(batch.inputs)))
        )
        divergence = (truth.exp() * (truth - guess)).sum(-1)[batch.targets["teacher"].labels >= 0]
        return {**super().forward(model, batch), "teacher": Loss(divergence.sum(), divergence.numel())}


def test_a_teacher_is_no_part_of_the_run(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its weights are in no checkpoint, no optimizer and no count; a resumed run, audit and evaluation have it too."""
    teacher = toys("gpt") / "encoder"
    before = load_file(teacher / "model.safetensors")
    objective = [f"--model.objective={__name__}.Distillation", f"--model.objective.teacher={teacher}"]
    short = [*SMALL, "--validate_every=2", *objective]
    run("pretrain", "--model", "gpt", "--out", "run", *short, "--trainer.max_steps=2")
    run("pretrain", "--model", "gpt", "--out", "run", *short, "--trainer.max_steps=4", "--resume")
    metrics, encoder = figures(Path("run")), pipeline.encoders.load("run/encoder")
    assert metrics["val/teacher_loss"] > 0
    assert metrics["val/loss"] == pytest.approx(metrics["val/lm_loss"] + 0.25 * metrics["val/teacher_loss"])
    assert metrics["parameters"] == sum(parameter.numel() for parameter in encoder.parameters())
    state = torch.load("run/checkpoints/last.ckpt", weights_only=True)
    assert not any("teacher" in name for name in state["state_dict"])
    assert sum(len(part["state"]) for part in state["optimizer_states"]) == len(list(encoder.parameters()))
    run("audit", "--model", "gpt", *SMALL, *objective)
    run("evaluate", "--model", "gpt", "--from", "run/encoder", SMALL[0], *objective)
    printed = capsys.readouterr().out
    assert "all passed" in printed
    assert "teacher_loss" in printed
    after = load_file(teacher / "model.safetensors")
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def modules(**other: Any) -> tuple[Pretraining, CorpusData]:
    """As configs/pretrain/gpt.yaml and SMALL have them."""
    objective = CausalLM(packing="concat")
    sizes = {"size": 64, "layers": 2, "heads": 2, "inner_size": 128, "max_length": 48}
    module = Pretraining(
        encoder=partial(Gpt, **sizes, dropout=0.0, attention_dropout=0.0, norm="pre"),
        objective=objective,
        embeddings="random",
        optimization=Optimization(learning_rate=1e-3, warmup_steps=2, schedule="cosine", weight_decay=0.1,
                                  betas=(0.9, 0.95), eps=1e-8),
    )  # fmt: skip
    data = CorpusData(
        objective=other.get("objective", objective),
        tokenizer=TokenizerOptions("bpe", None, 500, lowercase=False, train_megabytes=20),
        length=48,
        batch_size=16,
        validation_rows=64,
        validation_every=20,
        workers=0,
        sample_documents=300,
    )
    return module, data


def trainer(steps: int, **more: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(max_steps=steps, accelerator="cpu", gradient_clip_val=1.0, **quiet, **more)  # type: ignore[arg-type]


def test_lightning_alone_trains_the_weights_of_the_command(tmp_path: Path) -> None:
    run("pretrain", "--model", "gpt", "--out", str(tmp_path / "run"), *SHORT, "--model.optimization.optimizer=adamw")
    module, data = modules()
    fit = trainer(6)
    fit.fit(module, data)
    decay = {id(p): group["weight_decay"] for group in fit.optimizers[0].param_groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        assert decay[id(parameter)] == (0.1 if parameter.dim() > 1 else 0), name  # neither biases nor norms
    ours = load_file(tmp_path / "run/encoder/model.safetensors")
    assert all(torch.equal(value, ours[name]) for name, value in module.encoder.export_state().items())
    assert float(fit.callback_metrics["val/lm_loss"]) == pytest.approx(figures(tmp_path / "run")["val/lm_loss"])
    assert int(module.tokens_seen) == figures(tmp_path / "run")["tokens"]


def test_lightning_alone_resumes(tmp_path: Path) -> None:
    module, data = modules()
    first = trainer(6)
    first.fit(module, data)
    first.save_checkpoint(tmp_path / "end.ckpt")
    again, data = modules()
    second = trainer(8)
    second.fit(again, data, ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    assert second.global_step == 8
    assert int(again.tokens_seen) > int(module.tokens_seen)


@pytest.mark.parametrize(("rows", "sizes"), [(512, [59] * 3), (100, [50, 50]), (40, [40])])
def test_validation_reads_the_rows_that_are_asked_for(rows: int, sizes: list[int]) -> None:
    _, data = modules()
    data.validation_rows, data.length = rows, 16  # of 177 in all
    data.trainer = trainer(1)
    data.prepare()
    assert [len(batch.rows) for batch in data.val_dataloader()] == sizes
    assert len({int(row) for batch in data.val_dataloader() for row in batch.rows}) == min(rows, 177)


def test_a_loss_that_is_not_finite_stops_lightning_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    original = CausalLM.forward

    def broken(self: CausalLM, model: Encoder, batch: Batch) -> dict[str, Loss]:
        losses = original(self, model, batch)
        losses["lm"].sum = losses["lm"].sum * torch.nan
        return losses

    module, data = modules()
    monkeypatch.setattr(CausalLM, "forward", broken)
    with pytest.raises(UserError, match="loss is not finite at step 0"):
        trainer(2, num_sanity_val_steps=0).fit(module, data)


@pytest.mark.parametrize("name", ["causal", "denoising"])
def test_the_unigram_baseline_is_of_all_that_is_predicted(tmp_path: Path, name: str) -> None:
    """Ends of documents too, which are many where documents are short."""
    texts = [f"the cat saw {word} ." for word in ("it", "a dog", "me", "the small dog")] * 20
    (tmp_path / "short.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokenizer = (ByteBpe if name == "causal" else Seq2SeqBpe).train(texts, vocab_size=300)
    store = store_builder.build(Source(files=[tmp_path / "short.jsonl"]), tokenizer, tmp_path / "stores")
    objective: Objective = CausalLM() if name == "causal" else Denoising(permute_sentences=False)
    if name == "denoising":
        sizes = {"size": 16, "layers": 1, "heads": 2, "inner_size": 16, "max_length": 40}
        objective.setup(Bart(tokenizer, **sizes, dropout=0.0, attention_dropout=0.0), store)  # type: ignore[arg-type]
    rows = objective.rows(store, tokenizer, length=32, phase=0, seed=0)
    batch = objective.batch(rows, np.arange(len(rows)), tokenizer, rng=np.random.default_rng(0))
    labels = batch.targets[objective.main].labels
    counts = np.bincount(labels[labels >= 0].numpy())
    expected = entropy(counts)
    assert objective.baselines(store, tokenizer)[1] == pytest.approx(expected, rel=5e-3)
    assert abs(store.unigram_entropy(len(tokenizer)) - expected) > 0.05


def test_module_and_data_share_their_objective() -> None:
    module, data = modules(objective=CausalLM())
    with pytest.raises(UserError, match="the same objective"):
        trainer(2).fit(module, data)


def toy_batch(rows: int) -> Batch:
    """5 positions a row, of which the first is predicted in each; sparse and dense targets."""
    ids = torch.arange(rows * 5).view(rows, 5)
    sparse = Target(ids[:, 0], torch.tensor(rows), positions=torch.arange(rows) * 5)
    dense = Target(ids, torch.tensor(rows * 5), spelling=torch.ones(rows))
    inputs = {"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}
    return Batch(inputs, {"sparse": sparse, "dense": dense}, torch.arange(rows), {"table": torch.zeros(3, 2)})


@pytest.mark.parametrize(("rows", "parts"), [(8, 4), (7, 3), (3, 5)])
def test_parts_hold_every_row_once(rows: int, parts: int) -> None:
    batch = toy_batch(rows)
    shares = [batch.part(index, parts) for index in range(parts)]
    assert torch.cat([share.rows for share in shares]).tolist() == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        assert share.tokens == rows * 5
        assert share.targets["sparse"].count == rows
        assert share.shared["table"].shape == (3, 2)
        places = share.inputs["input_ids"].flatten()[share.targets["sparse"].positions]
        assert places.tolist() == share.targets["sparse"].labels.tolist()
        assert len(share.targets["dense"].labels) == len(share.targets["dense"].spelling) == len(share)  # type: ignore[arg-type]


@pytest.mark.parametrize(("device", "at_once"), [("cuda", True), ("mps", False), ("cpu", False)])
def test_only_a_gpu_of_nvidia_copies_while_it_computes(
    monkeypatch: pytest.MonkeyPatch, device: str, at_once: bool
) -> None:
    """From memory that is not kept Apple's GPUs would read what is written there next; they have no float64 either."""
    asked = list[bool]()

    def to(tensor: torch.Tensor, device: str, non_blocking: bool) -> torch.Tensor:
        asked.append(non_blocking)
        return tensor

    batch = toy_batch(3)
    batch.targets["dense"].spelling = torch.ones(3, dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "to", to)
    spelling = batch.to(device).targets["dense"].spelling
    assert spelling is not None
    assert spelling.dtype == (torch.float32 if device == "mps" else torch.float64)
    assert set(asked) == {at_once}


def test_a_process_without_a_row_computes_one_that_counts_nothing() -> None:
    class Steps:
        def __call__(self, step: int) -> Batch:
            return toy_batch(3)

        def part(self, batch: Batch, index: int, parts: int) -> Batch:
            return batch.part(index, parts)

    shares = [MicroBatches(Steps(), parts=1, world=4, rank=rank)[0][0] for rank in range(4)]
    assert [share.empty for share in shares] == [False, False, False, True]
    assert [len(share) for share in shares] == [1, 1, 1, 1]


OLD = {
    "model": {"objective": "pipeline.objectives.CausalLM", "seed": 3},
    "data": {"batches": {"class_path": "pipeline.batches.CausalBlocks", "init_args": {"packing": "document"}}},
}


def test_sections_of_older_configurations_are_joined() -> None:
    from pipeline.presets.former_names import current

    section = {"class_path": "pipeline.objectives.causal_lm.CausalLM", "init_args": {"packing": "document"}}
    assert current(OLD) == {"model": {"objective": section, "seed": 3}, "data": {}}
    assert current({"data": {"batches": {"init_args": {"packing": "concat"}}}}) == {
        "model": {"objective": {"init_args": {"packing": "concat"}}},
        "data": {},
    }
    dotted = {
        "model.objective": "pipeline.objectives.CausalLM",
        "data.batches.class_path": "pipeline.batches.CausalBlocks",
        "data.batches.init_args.packing": "document",
    }
    assert current(dotted) == {
        "model.objective.class_path": "pipeline.objectives.causal_lm.CausalLM",
        "model.objective.init_args.packing": "document",
    }
    assert current(current(OLD)) == current(OLD)
    mixed = {"model": {"objective": {"init_args": {"b": 2}}}, "data": {"batches": {"init_args": {"a": 1}}}}
    assert current(mixed)["model"]["objective"] == {"init_args": {"a": 1, "b": 2}}


def test_former_names_are_keys_and_class_paths_alone() -> None:
    from pipeline.presets.former_names import current, flags

    text = {"data": {"text": "pipeline.batches.MaskedPairs", "task": {"init_args": {"text": "model.craft is {text}"}}}}
    assert current(text) == text
    tuned = {"model": {"recipe": {"lstm": 0}, "encoder": None}}  # as 0.14 wrote it
    assert current(tuned) == {"model": {"recipe": {"lstm": 0}}}
    callbacks = [{"class_path": "pipeline.speed.Profile"}, "pipeline.tracking.Progress"]
    assert current({"trainer": {"callbacks": callbacks}})["trainer"]["callbacks"] == [
        {"class_path": "pipeline.training.throughput.Profile"},
        "pipeline.training.progress.Progress",
    ]
    assert flags(["--data", "model.craft", "--model.craft.dropout", "0.1", "--data.batches.packing=document"]) == [
        *("--data", "model.craft", "--model.recipe.dropout", "0.1", "--model.objective.packing=document"),
    ]
    for old, new in (  # 0.12, 0.15, and a checkpoint's flat keys
        (
            {"data": {"batches": {"init_args": {"carry": True}}}},
            {"data": {}, "model": {"objective": {"init_args": {"stateful": True}}}},
        ),
        ({"model": {"objective": {"carry": 1}}}, {"model": {"objective": {"stateful": 1}}}),
        ({"model.objective.init_args.carry": True}, {"model.objective.init_args.stateful": True}),
    ):
        assert current(old) == new
    for path in CLASSES.values():
        assert locate(path) is not None, path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: {batches: null}", "old.yaml is not valid: data.batches, a part of model.objective today, is null"),
        ("model: {craft: {crf: true}, recipe: {lstm: 0}}", "old.yaml is not valid: model.craft is the former name of"),
    ],
)
def test_older_configurations_that_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "old.yaml").write_text(content)
    with pytest.raises(UserError, match=message):
        run("pretrain", "--config", "old.yaml")


def test_flags_and_files_of_older_versions_still_parse(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(OLD))
    (tmp_path / "old.yaml").write_text(json.dumps(OLD))  # which is YAML too
    for number, given in enumerate((
        ["--config", str(tmp_path / "old.yaml")],
        ["--model.objective=pipeline.objectives.CausalLM", "--data.batches.init_args.packing=document"],
        ["--data.batches=pipeline.batches.CausalBlocks", "--data.batches.packing=document"],
    )):  # fmt: skip
        out = tmp_path / str(number)
        run("pretrain", "--model", "gpt", "--out", str(out), *SMALL, "--trainer.max_steps=1", *given)
        state = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
        assert figures(out)["seed"] == (OLD["model"]["seed"] if number == 0 else 0)
        assert state["identity"]["model.objective.init_args.packing"] == "document"
        assert not any("batches" in name for name in state["identity"] if name.startswith("data."))


class MaskedAlone(MaskedLM):
    """Masked words alone, of a model that has heads for pairs all the same."""

    def __init__(self, mask_rate: float = 0.15) -> None:
        super().__init__(mask_rate=mask_rate, next_sentence="off")

    @property
    def model_options(self) -> dict[str, Any]:
        return {}


def test_heads_that_an_objective_does_not_train_are_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    own = ["--model.objective=tests.test_objectives.MaskedAlone", "--save-at-words=100"]
    run("pretrain", *SMALL, *own, "--steps=4", "--validate-every=4", "--out", str(out))
    assert "MaskedAlone does not train bert.pooler.dense.bias" in capsys.readouterr().out
    on_the_way = next((out / "encoders").iterdir())
    (out / "metrics.json").unlink()  # as of a run that is killed after its last step
    shutil.move(out / "encoder", tmp_path / "before")
    run("pretrain", *SMALL, *own, "--steps=4", "--validate-every=4", "--out", str(out), "--resume")
    for folder in (tmp_path / "before", out / "encoder", on_the_way):
        names = {name.rpartition(".")[0] for name in load_file(folder / "model.safetensors")}
        assert "cls.predictions.transform.dense" in names
        assert not names & {"bert.pooler.dense", "cls.seq_relationship"}
        assert pipeline.encoders.load(folder).config["architectures"] == ["BertForMaskedLM"]


def test_a_model_that_lacks_what_settings_of_an_objective_ask_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="MaskedLM needs a model that can do next_sentence; Cbow does masked"):
        run("pretrain", "--model=cbow", "--model.objective.init_args.next_sentence=nsp", "--out", str(tmp_path / "run"))


def test_weights_that_layers_share_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Bert.layer_groups
    monkeypatch.setattr(Bert, "layer_groups", lambda self: [*groups(self), groups(self)[-1]])
    with pytest.raises(UserError, match=r"A parameter stands in two layers of Bert\.layer_groups"):
        run("pretrain", *SMALL, "--out", str(tmp_path / "run"))
