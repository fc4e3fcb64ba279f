"""Output layers: the sum that training takes equals the log-probabilities that scoring takes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pipeline.errors import UserError
from pipeline.models.layers.output import Output

KINDS: list[dict[str, Any]] = [
    {"kind": "tied", "size": 16},
    {"kind": "tied", "size": 24},
    {"kind": "full", "size": 24},
    {"kind": "adaptive", "size": 24, "cutoffs": [10, 30]},
]


@pytest.mark.parametrize("options", KINDS, ids=lambda options: f"{options['kind']}-{options['size']}")
def test_the_loss_is_that_of_the_log_probabilities(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = Output(**options, embedding_size=16, vocab_size=50)
    embedding = torch.randn(50, 16, requires_grad=True)
    hidden, labels = torch.randn(40, options["size"], requires_grad=True), torch.randint(0, 29, (40,))
    inputs = [hidden, *layer.parameters()] + [embedding] * (options["kind"] == "tied")

    log_probs = layer.logits(hidden, embedding).log_softmax(-1)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(40))
    expected = -log_probs.gather(-1, labels[:, None]).sum()
    loss = layer.token_loss(hidden, labels, embedding)
    assert loss.count == 40
    torch.testing.assert_close(layer.logits(hidden[3], embedding).log_softmax(-1), log_probs[3])
    torch.testing.assert_close(layer.logits(hidden.view(8, 5, -1), embedding).log_softmax(-1), log_probs.view(8, 5, -1))
    torch.testing.assert_close(loss.sum, expected)
    grads = [torch.autograd.grad(each, inputs, materialize_grads=True) for each in (loss.sum, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.autograd.grad(layer.token_loss(hidden, labels, embedding).sum, [*layer.parameters()])  # none is unused

    even = layer.logits(torch.zeros(1, options["size"]), embedding).log_softmax(-1)
    torch.testing.assert_close(even, torch.full((1, 50), -math.log(50)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "adaptive", "cutoffs": [30, 10]}, "cutoffs must rise"),
        ({"kind": "adaptive", "cutoffs": [50]}, "cutoffs must rise"),
        ({"kind": "full", "cutoffs": [10]}, "adaptive"),
        ({"kind": "half"}, "output must be one of tied, full, adaptive, not half"),
    ],
)
def test_settings_that_do_not_fit_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Output(**options, size=24, embedding_size=16, vocab_size=50)
