"""A learned weighted mean of all layers of an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """gamma * sum_k softmax(w)_k * layer_k (Peters et al. 2018, equation 1).

    Args:
        layers: how many layers are mixed.
        dropout: rate at which a layer is left out of a training step's mix, so that none is relied on alone.
    """

    def __init__(self, layers: int, *, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def shares(self) -> dict[str, float]:
        """The weight of each layer, and gamma."""
        shares = {f"layer_{k}": float(w) for k, w in enumerate(self.weights.detach().softmax(0))}
        return {**shares, "gamma": float(self.gamma.detach())}

    def forward(self, layers: list[Tensor]) -> Tensor:
        """[(B, T, D)] -> (B, T, D)."""
        weights: Tensor = self.weights
        if self.training and self.dropout:
            out = torch.rand(len(weights), device=weights.device) < self.dropout
            weights = weights.masked_fill(out & ~out.all(), -1e9)  # not all of them
        return self.gamma * torch.einsum("k,kbtd->btd", weights.softmax(0), torch.stack(layers))
