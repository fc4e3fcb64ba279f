"""Blocks that are compiled, or computed twice: the same losses and gradients; and what 16-bit floats need."""

from __future__ import annotations

import copy
import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.models.layers.transformer_block import Block
from pipeline.training import optimizers
from pipeline.training.blocks import CompiledBlocks, RecomputedBlocks
from pipeline.training.optimizers import Optimization
from pipeline.training.schedules import apply_configured_rates
from pipeline.training.step_callbacks import NonFiniteGuard
from tests.conftest import SMALL, figures, run


def gradients(model: nn.Module, callback: Any = None) -> tuple[torch.Tensor, list[torch.Tensor]]:
    model = copy.deepcopy(model).train()
    module: Any = SimpleNamespace(trained=model)
    if callback is not None:
        callback.on_train_start(None, module)
        callback.on_train_batch_end(None, module, None, None, 0)
    torch.manual_seed(1)
    x = torch.randn(2, 8, 16)
    for block in model:
        x = block(x, None, causal=True)
    loss = x.square().sum()
    loss.backward()
    if callback is not None:
        callback.on_train_end(None, module)
        assert not any(block.recompute or block._compiled_call_impl for block in model)
    return loss.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("callback", "dropout"),
    [(RecomputedBlocks(), 0.3), (CompiledBlocks(backend="aot_eager"), 0.0)],
    ids=["recomputed", "compiled"],
)
def test_loss_and_gradients_are_the_same(callback: Any, dropout: float, norm: str) -> None:
    sizes: dict[str, Any] = {"size": 16, "heads": 2, "inner_size": 32, "eps": 1e-5, "activation": "gelu"}
    torch.manual_seed(0)
    model = nn.ModuleList(Block(dropout=dropout, attention_dropout=dropout, norm=norm, **sizes) for _ in range(2))
    callback.compiled = False
    (loss, plain), (again, others) = gradients(model), gradients(model, callback)
    torch.testing.assert_close(again, loss)
    assert len(plain) == len(others) == len(list(model.parameters()))
    for ours, theirs in zip(plain, others, strict=True):
        torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_run_that_recomputes_ends_the_same() -> None:
    for name, more in (("plain", []), ("again", ["--activation_checkpointing=true"])):
        run("pretrain", "--out", name, *SMALL, "--steps=4", "--model.encoder.init_args.dropout=0.1", *more)
    assert figures_of("plain") == figures_of("again")
    run("pretrain", "--out", "again", "--resume", *SMALL, "--steps=6", "--model.encoder.init_args.dropout=0.1")
    with pytest.raises(UserError, match="no Transformer blocks, which compile is for"):
        run("pretrain", "--model", "elmo", "--out", "elmo", "--data.sample_documents=60", "--steps=1", "--compile=true")


def figures_of(name: str) -> dict[str, float]:
    from pathlib import Path

    return {key: value for key, value in figures(Path(name)).items() if key.startswith("val/")}


def test_half_precision_is_refused_without_a_gpu() -> None:
    with pytest.raises(UserError, match="16-mixed needs a CUDA GPU, not cpu"):
        run("pretrain", "--out", "half", "--precision=16-mixed")


def test_with_half_precision_gradients_can_be_unscaled_before_they_are_clipped() -> None:
    from lightning.pytorch.plugins.precision.amp import _optimizer_handles_unscaling

    options = Optimization(1e-3, 0, "constant", 0.0, (0.9, 0.99), 1e-8)
    layers = [[nn.Parameter(torch.zeros(2, 2))]]
    for fused in (True, False):
        built = optimizers.build(options, layers, [], total=1, decay_parameters=set(), half=False, fused=fused)
        assert _optimizer_handles_unscaling(built["optimizer"]) is fused


def test_a_step_that_the_loss_scaler_skips_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    guard = NonFiniteGuard()
    monkeypatch.setattr(guard, "_stop", lambda trainer, module, what: stopped.append(what))

    def step(precision: str, losses: list[float], *, elsewhere: bool = True, norm: float = math.inf) -> list[str]:
        """What the guard stops for; `elsewhere`: whether the losses of another process are finite."""
        stopped.clear()
        strategy = SimpleNamespace(reduce_boolean_decision=lambda finite, all: finite and elsewhere)
        trainer = SimpleNamespace(precision=precision, world_size=1 if elsewhere else 2, strategy=strategy)
        pending = [("train/loss", torch.tensor([loss, 1.0, 0.0, 0.0])) for loss in [math.nan, *losses]]
        module = SimpleNamespace(last_loss=torch.tensor(losses[-1]), sums=SimpleNamespace(pending=pending))
        guard.num_losses = 1  # the first is of the step before
        guard.on_gradient_norm(trainer, module, torch.tensor(norm))  # type: ignore[arg-type]
        return list(stopped)

    assert step("16-mixed", [1.0, 1.0]) == []
    assert step("32-true", [1.0, 1.0]) == ["gradient"]
    assert step("32-true", [1.0], norm=1.0) == []
    for precision in ("16-mixed", "32-true"):
        assert step(precision, [math.nan]) == ["loss"]
        assert step(precision, [math.nan, 1.0]) == ["loss"]  # not the last micro-batch
    assert step("16-mixed", [1.0], elsewhere=False) == ["loss"]  # all processes stop, or none


def test_a_run_that_goes_on_in_another_precision_counts_its_steps_where_its_optimizer_does() -> None:
    weight = nn.Parameter(torch.zeros(2, 2, device="meta"))

    def built(fused: bool) -> dict[str, Any]:
        options = Optimization(1e-3, 0, "constant", 0.0, (0.9, 0.99), 1e-8)
        return optimizers.build(options, [[weight]], [], total=1, decay_parameters=set(), half=False, fused=fused)

    for after, device in ((True, "meta"), (False, "cpu")):  # meta in place of a GPU
        parts = built(fused=False)
        state = parts["optimizer"].state[weight]
        state["step"] = torch.zeros(())
        module = SimpleNamespace(configure_optimizers=partial(built, after))
        apply_configured_rates(parts["optimizer"], parts["lr_scheduler"]["scheduler"], module)
        assert state["step"].device.type == device
