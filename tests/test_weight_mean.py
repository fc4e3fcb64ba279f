"""The mean of the weights of the last steps, against torch's own; the conformance suite resumes with it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel

from pipeline.errors import Interrupted, UserError
from pipeline.tracking.words_seen import saved_in
from pipeline.training.base_module import Training
from pipeline.training.weight_mean import WeightMean, final_weights
from tests.conftest import SMALL, figures, run

pytestmark = pytest.mark.slow
HALF = [*SMALL, "--model.optimization.average_share=0.5", "--trainer.max_steps=6", "--validate_every=2"]


def test_the_encoder_is_the_mean_of_the_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: list[AveragedModel] = []
    add = WeightMean.add

    def watched(self: WeightMean, module: Any) -> None:
        if not theirs:
            theirs.append(AveragedModel(module.encoder))
        theirs[0].update_parameters(module.encoder)
        add(self, module)

    monkeypatch.setattr(WeightMean, "add", watched)
    run("pretrain", "--out", str(tmp_path / "run"), *HALF, "--save-at-words", str(list(range(200, 20_000, 200))))
    [mean] = theirs
    assert mean.n_averaged == 3
    expected, encoder = dict(mean.module.named_parameters()), load_file(tmp_path / "run/encoder/model.safetensors")
    saved = encoder["bert.embeddings.word_embeddings.weight"]
    assert torch.allclose(saved, expected["word_embedding.weight"], atol=1e-6)
    last = saved_in(tmp_path / "run/encoders")[-1]
    assert last.step == 6
    on_the_way = load_file(last.folder / "model.safetensors")
    assert all(torch.equal(on_the_way[name], value) for name, value in encoder.items())
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)
    trained, averaged = state["state_dict"], state["mean_weights"]
    assert all(torch.allclose(averaged[f"encoder.{name}"], value, atol=1e-6) for name, value in expected.items())
    assert not all(torch.equal(trained[name], averaged[name]) for name in averaged)


def test_a_shared_weight_goes_on_under_all_its_names() -> None:
    block = torch.nn.Linear(1, 1, bias=False)
    module, mean = torch.nn.ModuleList([block, block]), WeightMean()
    for value in (1.0, 3.0):
        torch.nn.init.constant_(block.weight, value)
        mean.add(module)

    def check() -> None:
        checkpoint: dict[str, Any] = {"state_dict": module.state_dict()}
        mean.save(checkpoint)
        assert [float(value) for value in checkpoint["state_dict"].values()] == [3.0, 3.0]
        assert [float(value) for value in final_weights(checkpoint).values()] == [2.0, 2.0]

    with mean.put_into(module):  # as where a validation has its checkpoint written
        assert float(block.weight) == 2.0
        check()
    check()


def test_the_last_validation_is_of_what_is_saved(tmp_path: Path) -> None:
    whole = "--data.validation_rows=100000"
    run("pretrain", "--model=gpt", "--out", str(tmp_path / "run"), *HALF, whole)
    mean = figures(tmp_path / "run")
    evaluated = ["--from", str(tmp_path / "run/encoder"), "--out", str(tmp_path / "evaluated.json")]
    run(
        "evaluate",
        "--model=gpt",
        *evaluated,
        "--data.sample_documents=300",
        "--data.batch_size=16",
    )
    evaluated_loss = json.loads((tmp_path / "evaluated.json").read_text())["lm_loss"]
    assert evaluated_loss == pytest.approx(mean["val/lm_loss"], abs=1e-4)


def test_the_share_is_of_the_steps() -> None:
    """0.8 of ten steps are eight, whatever 1 - 0.8 is in binary."""
    for share, total, count in (
        (0.8, 10, 8),
        (0.9, 100, 90),
        (0.55, 1000, 550),
        (0.2, 977, 195),
        (0.01, 10, 1),
        (0, 9, 0),
    ):
        of_share: Any = SimpleNamespace(average_share=share)
        module: Any = SimpleNamespace(optimization=of_share, total_steps=total, global_step=total)
        assert Training.averaged_steps.fget(module) == count  # type: ignore[attr-defined]


def test_a_mean_of_other_steps_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that goes on for longer averages its own last steps; one that is no longer to average does not."""
    out = tmp_path / "run"
    run("pretrain", "--out", str(out), *HALF)
    for steps, share, count in ((8, "0.5", 2), (10, "0", 0)):
        more = [f"--trainer.max_steps={steps}", f"--model.optimization.average_share={share}", "--resume"]
        run("pretrain", "--out", str(out), *HALF, *more)
        assert f"the mean of the weights begins anew at step {steps - 2}" in "".join(capsys.readouterr())
        state = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
        assert state.get("mean_count", 0) == count
    saved = load_file(out / "encoder/model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(saved, state["state_dict"]["encoder.word_embedding.weight"])


def test_a_mean_that_begins_anew_is_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run("pretrain", "--out", str(straight), *HALF, "--model.optimization.average_share=0")
    shutil.copytree(straight, stopped)
    more = [*HALF, "--trainer.max_steps=12", "--model.optimization.average_share=0.75", "--resume"]
    run("pretrain", "--out", str(straight), *more)
    assert "the mean of the weights begins anew at step 6" in "".join(capsys.readouterr())
    add = WeightMean.add

    def add_and_stop(self: WeightMean, module: Any) -> None:
        add(self, module)
        if self.count == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(WeightMean, "add", add_and_stop)
    with pytest.raises(Interrupted):
        run("pretrain", "--out", str(stopped), *more)
    monkeypatch.undo()
    capsys.readouterr()
    run("pretrain", "--out", str(stopped), *more)
    assert "begins anew" not in "".join(capsys.readouterr())
    one, other = (load_file(out / "encoder/model.safetensors") for out in (straight, stopped))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_best_checkpoint_of_a_fine_tune_is_of_the_mean(pretrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    short = ["--data.epochs=0.3", "--validations=1", "--precision=32-true", "--model.optimization.average_share=1"]
    run("finetune", "--from", str(pretrained / "encoder"), "--out", str(out), *short)
    state = torch.load(out / "checkpoints/best.ckpt", weights_only=True)
    saved = load_file(out / "model/model.safetensors")["classifier.weight"]
    assert torch.equal(saved, state["mean_weights"]["model.head.classifier.weight"])
    assert not torch.equal(saved, state["state_dict"]["model.head.classifier.weight"])


def test_a_share_that_is_none() -> None:
    with pytest.raises(UserError, match=r"average_share is 1\.5; it must be a share, from 0 to 1"):
        run("pretrain", "--model.optimization.average_share=1.5")
