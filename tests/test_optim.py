"""Muon against torch's own; which parameters it takes; what a saved state brings back."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from pipeline.errors import UserError
from pipeline.training import optimizers as optim
from pipeline.training import schedules
from pipeline.training.optimizers import Muon, Optimization, newton_schulz
from pipeline.training.resume import check_same_run
from tests.conftest import SMALL, run

SETTINGS: dict[str, Any] = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant", "weight_decay": 0.1}
SETTINGS |= {"betas": (0.9, 0.95), "eps": 1e-2}  # another eps than torch's own


def network(hidden: int = 24) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"in": nn.Embedding(9, 8), "layer": nn.Linear(8, hidden), "down": nn.Linear(hidden, 8)})


def learn(model: nn.ModuleDict, *optimizers: torch.optim.Optimizer, steps: int, first: int = 0) -> list[torch.Tensor]:
    for step in range(first, first + steps):
        ids = torch.randint(9, (16,), generator=torch.Generator().manual_seed(step))
        x = model["in"](ids)
        (model["down"](model["layer"](x).relu()) - torch.roll(x.detach(), 1, 0)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def muon(model: nn.ModuleDict, *, half: bool, **changes: Any) -> torch.optim.Optimizer:
    options = Optimization(**(SETTINGS | {"optimizer": "muon"} | changes))
    layers = [list(model["in"].parameters()), list(model["layer"].parameters()), list(model["down"].parameters())]
    matrices = {id(parameter) for parameter in model.parameters() if parameter.dim() > 1}
    return optim.build(options, layers, [], total=100, decay_parameters=matrices, half=half)["optimizer"]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="an older torch has no Muon to compare with")
def test_muon_is_torchs_and_the_rest_is_adamws() -> None:
    ours, theirs = network(), network()
    weights = [theirs["layer"].weight, theirs["down"].weight]
    others = [parameter for parameter in theirs.parameters() if all(parameter is not weight for weight in weights)]
    decayed = [{"params": [p], "weight_decay": 0.1 * (p.dim() > 1)} for p in others]
    pair = [
        torch.optim.Muon(weights, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(decayed, lr=1e-2, betas=(0.9, 0.95), eps=SETTINGS["eps"]),
    ]
    for one, other in zip(learn(ours, muon(ours, half=True), steps=5), learn(theirs, *pair, steps=5), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_the_cosine_schedule_is_that_of_transformers() -> None:
    unused = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    [theirs] = transformers.get_cosine_schedule_with_warmup(unused, 4, 20).lr_lambdas
    ours = [schedules.rate_at(step, warmup=4, total=20, schedule="cosine") for step in range(4, 21)]
    assert ours == pytest.approx([theirs(step) for step in range(4, 21)])


def test_cautious_decay_leaves_the_weights_that_grow() -> None:
    plain, decayed, cautious = network(), network(), network()
    before = [weight.detach().clone() for weight in plain.parameters()]
    learn(plain, muon(plain, half=False, weight_decay=0.0), steps=1)
    learn(decayed, muon(decayed, half=False), steps=1)
    learn(cautious, muon(cautious, half=False, cautious_decay=True), steps=1)
    for name in ("layer.weight", "down.weight"):
        start = dict(zip(dict(plain.named_parameters()), before, strict=True))[name]
        without, full, some = (model.get_parameter(name) for model in (plain, decayed, cautious))
        change = (without - start) * start
        grows, shrinks = change > 0, change < 0
        assert grows.float().mean() > 0.2
        assert shrinks.float().mean() > 0.2
        assert torch.equal(some[grows], without[grows])
        assert torch.allclose(some[shrinks], full[shrinks], atol=1e-7)
        assert not torch.equal(some, without)


def test_muon_in_float32_is_near_it_in_bf16() -> None:
    start, half, full = network(), network(), network()
    learn(half, muon(half, half=True), steps=5)
    learn(full, muon(full, half=False), steps=5)
    moved = (full["layer"].weight - start["layer"].weight).norm()
    assert 0 < (half["layer"].weight - full["layer"].weight).norm() < 0.05 * moved


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_newton_schulz_keeps_the_singular_vectors(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    inside = u.T @ newton_schulz(x) @ v.T
    values = inside.diagonal()
    assert (inside - torch.diag(values)).abs().max() < 1e-4
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_newton_schulz_takes_many_matrices_at_once(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, *shape) * torch.tensor([1.0, 100.0, 0.01])[:, None, None]
    assert torch.allclose(newton_schulz(x), torch.stack([newton_schulz(one) for one in x]), atol=1e-5)


def test_matrices_of_one_shape_are_updated_together_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does, here on a processor."""
    apart, together = network(hidden=8), network(hidden=8)
    learn(apart, muon(apart, half=False), steps=3)
    monkeypatch.setattr(optim, "apart", lambda weight: False)
    learn(together, muon(together, half=False), steps=3)
    for one, other in zip(apart.parameters(), together.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_loaded_state_goes_on_as_the_old_one() -> None:
    model = network()
    optimizer = muon(model, half=False)
    learn(model, optimizer, steps=3)
    again = copy.deepcopy(model)
    other = muon(again, half=False)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, two in zip(learn(model, optimizer, steps=3, first=3), learn(again, other, steps=3, first=3), strict=True):
        assert torch.equal(one, two)


def test_layers_without_a_gradient_stay_and_rates_differ_by_layer() -> None:
    model = network()
    optimizer = muon(model, half=False, layer_decay=0.5)
    before = model["layer"].weight.clone()
    model["layer"].requires_grad_(False)
    learn(model, optimizer, steps=2)
    assert torch.equal(model["layer"].weight, before)
    assert isinstance(optimizer, Muon)
    rates = {group["lr"] for group in optimizer.param_groups if group["muon"]}
    assert rates == {1e-2, 5e-3}


def test_the_encoder_has_its_own_share_of_the_rate() -> None:
    options = Optimization(**(SETTINGS | {"layer_decay": 0.5, "encoder_rate": 0.1}))
    low, top, head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    layers = [list(low.parameters()), list(top.parameters())]
    built = optim.build(options, layers, head.parameters(), total=9, decay_parameters=set(), half=False)
    rates = {id(p): group["initial_lr"] for group in built["optimizer"].param_groups for p in group["params"]}
    assert [rates[id(module.weight)] for module in (low, top, head)] == pytest.approx([5e-4, 1e-3, 1e-2])


def test_sharded_matrices_are_refused_before_anything_is_done(tmp_path: Path) -> None:
    flags = ["--out", str(tmp_path / "run"), "--model.optimization.optimizer=muon", "--trainer.strategy=fsdp"]
    with pytest.raises(UserError, match="Muon needs whole matrices"):
        run("pretrain", *SMALL, *flags)
    assert not (tmp_path / "run").exists()


def test_a_run_of_before_muon_names_the_optimizer_to_set() -> None:
    now = {"model.optimization.optimizer": "muon", "version": "0.9.0"}
    with pytest.raises(UserError, match=r"optimizer adamw, not muon.*Set --model\.optimization\.optimizer=adamw"):
        check_same_run(Path("last.ckpt"), now, {"version": "0.8.0"})
    now |= {"model.optimization.learning_rate": 2e-3, "model.objective.init_args.first_mask_rate": 0.3}
    flags = "--model.objective.init_args.first_mask_rate=null --model.optimization.learning_rate=0.001 "
    with pytest.raises(UserError, match=f"Set {re.escape(flags)}--model.optimization.optimizer=adamw, or set"):
        check_same_run(Path("last.ckpt"), now, {"version": "0.8.0", "model.optimization.learning_rate": 1e-3})


def test_warm_up_is_one_step_ahead_of_transformers() -> None:
    weight = nn.Parameter(torch.zeros(1))
    theirs = transformers.get_linear_schedule_with_warmup(torch.optim.SGD([weight], lr=1.0), 4, 20).lr_lambdas[0]
    ours = [schedules.rate_at(step, warmup=4, total=20, schedule="linear") for step in range(21)]
    assert ours[:5] == pytest.approx([(s + 1) / 5 for s in range(5)])
    assert [theirs(step) for step in range(5)] == pytest.approx([s / 4 for s in range(5)])
    assert ours[4:] == pytest.approx([theirs(step) for step in range(4, 21)])


@pytest.mark.parametrize(("warmup", "total"), [(4, 50), (45, 50), (0, 10), (3, 4)])
def test_warm_up_stable_decay_equals_that_of_transformers(warmup: int, total: int) -> None:
    """After the warm-up; a warm-up that leaves less than the last fifth of the run shortens the decay."""
    decay = min(total // 5, total - warmup)
    arguments = {"num_warmup_steps": warmup, "num_decay_steps": max(1, decay), "num_training_steps": total}
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = transformers.get_wsd_schedule(optimizer, decay_type="linear", **arguments).lr_lambdas[0]
    ours = [schedules.rate_at(step, warmup=warmup, total=total, schedule="wsd") for step in range(warmup, total + 1)]
    assert ours == pytest.approx([theirs(step) for step in range(warmup, total + 1)])
