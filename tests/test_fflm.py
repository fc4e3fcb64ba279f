"""The feed-forward model equals the lines of its paper in NumPy; its state, its begin and its settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pipeline
from pipeline.errors import UserError
from pipeline.models.fflm import FeedForward
from pipeline.objectives.initialization import from_one_vector
from pipeline.tokenization.byte_bpe import ByteBpe

TOKENIZER = ByteBpe.train(["a robin sat in the garden"] * 3, vocab_size=260)
KINDS = [
    {},
    {"direct": True, "output": "full"},
    {"hidden_size": 0, "direct": True, "output": "full"},
    {"hidden_size": 0, "combine": "sum"},
]


def small(**options: Any) -> FeedForward:
    torch.manual_seed(0)
    settings = {"order": 4, "embedding_size": 6, "hidden_size": 10, "max_length": 20, "dropout": 0.0, **options}
    model = FeedForward(TOKENIZER, **settings).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.eval()


def read(model: FeedForward, ids: torch.Tensor, state: Any = None) -> Any:
    return model({"input_ids": ids, "mask": torch.ones_like(ids, dtype=torch.bool)}, state)


@pytest.mark.parametrize("options", KINDS)
def test_it_is_the_paper(options: dict[str, Any]) -> None:
    """Bengio et al. 2003, equations 1 and 2: y = b + W x + U tanh(d + H x); Mnih and Hinton 2007, equation 5."""
    model = small(**options)
    ids = torch.randint(0, len(TOKENIZER), (3, 9))
    out = read(model, ids)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    c, b = state["embedding.weight"], state["output.bias"]
    linear, direct = model.config["combine"] == "sum", model.config["direct"]
    for row, t in ((0, 0), (1, 1), (1, 8), (2, 5)):
        window = [c[ids[row, i]] if i >= 0 else state["begin"] for i in range(t - 2, t + 1)]
        x = np.concatenate(window)
        top = [] if model.hidden is None else [state["hidden.bias"] + state["hidden.weight"] @ x]
        top = [*(top if linear else map(np.tanh, top)), *([x] if direct else [])]
        u_and_w = state.get("output.weight", c @ state.get("output.project.weight", np.eye(6)))
        y = b + u_and_w @ np.concatenate(top)
        np.testing.assert_allclose(model.logits(out.layers[-1][row, t]).detach().numpy(), y, atol=1e-6)


@pytest.mark.parametrize("order", [2, 4, 16])
def test_in_two_pieces_with_the_state_is_in_one(order: int) -> None:
    model = small(order=order)
    ids = torch.randint(0, len(TOKENIZER), (3, 9))
    first = read(model, ids[:, :2])
    second = read(model, ids[:, 2:], first.state)
    whole = read(model, ids)
    torch.testing.assert_close(torch.cat([first.layers[-1], second.layers[-1]], 1), whole.layers[-1])
    assert second.state.equal(whole.state)
    assert whole.state.shape == (3, order - 2)


@pytest.mark.parametrize("output", ["tied", "full", "adaptive"])
def test_logits_are_of_one_vector_or_of_many(output: str) -> None:
    model = small(output=output, hidden_size=16)
    hidden = torch.randn(2, 3, 16).double()
    many = model.logits(hidden)
    assert many.shape == (2, 3, len(TOKENIZER))
    torch.testing.assert_close(model.logits(hidden[1, 2]), many[1, 2])
    labels = torch.randint(0, len(TOKENIZER), (6,))
    expected = torch.nn.functional.cross_entropy(many.flatten(0, 1), labels, reduction="sum")
    torch.testing.assert_close(model.token_loss(hidden.flatten(0, 1), labels).sum, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 1}, "at least one token"),
        ({"embedding_size": 0}, "at least 1"),
        ({"hidden_size": -1}, "0 for no hidden layer"),
        ({"combine": "sum"}, "no hidden layer"),
        ({"hidden_size": 0}, "direct: true"),
        ({"embedding_size": 11}, "at least embedding_size"),
        ({"cutoffs": [9]}, "adaptive"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small(**options)


def test_one_vector_is_not_that_of_padding(toys: Callable[[str], Path]) -> None:
    bert = pipeline.encoders.load(toys("bert") / "encoder")
    from_one_vector(bert, None, seed=0)  # type: ignore[arg-type]
    assert bert.token_embedding is not None
    norms = bert.token_embedding.weight.detach().norm(dim=1)
    assert norms.unique().tolist() == pytest.approx([0.0, float(norms.max())])
    assert (norms == 0).nonzero().flatten().tolist() == [bert.tokenizer.id("pad")]


@pytest.mark.parametrize("output", ["tied", "full"])
def test_all_tokens_can_begin_with_one_vector(output: str) -> None:
    """Le et al. 2010: equal tokens are told apart by what follows them, and only those that occur."""
    model = small(output=output)
    from_one_vector(model, None, seed=0)  # type: ignore[arg-type]
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    hidden = read(model, ids).layers[-1]
    assert hidden[0, 4].equal(hidden[0, 5])  # the same after other tokens
    model.token_loss(hidden[0, 2:5], torch.tensor([4, 5, 6])).sum.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0 if parameter.grad is None else parameter.grad
    rows = model.embedding.weight.unique(dim=0)
    assert len(rows) > 4
    assert len(rows) < len(TOKENIZER) or output == "tied"
