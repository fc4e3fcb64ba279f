"""The scalar mix is the paper's formula."""

from __future__ import annotations

import numpy as np
import torch

from pipeline.finetuning.heads.scalar_mix import ScalarMix


def test_scalar_mix_is_the_formula() -> None:
    torch.manual_seed(0)
    mix = ScalarMix(3, dropout=0.0)
    weights = np.array([0.3, -1.0, 2.0])
    mix.weights.data, mix.gamma.data = torch.tensor(weights), torch.tensor(1.7)
    layers = [torch.randn(2, 5, 4, dtype=torch.float64) for _ in range(3)]
    share = np.exp(weights) / np.exp(weights).sum()
    expected = 1.7 * sum(s * layer.numpy() for s, layer in zip(share, layers, strict=True))
    assert np.abs(mix(layers).detach().numpy() - expected).max() < 1e-6
    shares = mix.shares()
    assert np.allclose([shares[f"layer_{k}"] for k in range(3)], share)
    assert shares["gamma"] == np.float32(1.7)


def test_layers_are_left_out_in_training_only() -> None:
    torch.manual_seed(0)
    mix = ScalarMix(3, dropout=0.4)
    layers = [torch.full((1, 1, 1), float(10**k)) for k in range(3)]
    assert abs(float(mix.eval()(layers).detach()) - 111 / 3) < 1e-4
    mix.train()
    seen = {round(float(mix(layers)), 3) for _ in range(200)}
    assert seen == {37.0, 5.5, 50.5, 55.0, 1.0, 10.0, 100.0}  # every mix but that of no layer at all
