"""The audit passes on our code, and fails on code that was broken on purpose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.models import bert, elmo, gpt
from pipeline.models.layers import transformer_block
from pipeline.models.layers.key_values import KeyValues
from pipeline.objectives import masked_lm, sentence_pairs
from pipeline.objectives.batch import Batch
from pipeline.objectives.bidirectional_lm import BidirectionalLM
from pipeline.objectives.causal_lm import CausalLM
from tests.conformance import CAUSAL_ROWS
from tests.conftest import run

pytestmark = pytest.mark.slow

FLAGS = ["--data.sample_documents=300", "--data.tokenizer.vocab_size=500", "--data.length=48"]


def report(model: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, bool]:
    """name of a check -> passed; the exit status agrees with it."""
    try:
        run("audit", "--model", model, *FLAGS, *flags)
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("pass", "FAIL"))]
    checks = {line[6:].split(":")[0]: line.startswith("pass") for line in lines}
    assert status == (not all(checks.values()))
    return checks


@pytest.mark.parametrize(
    ("model", "count", "flags"),
    [
        ("bert", 15, []),
        ("bert", 16, ["--model.objective.init_args.whole_word=true"]),
        ("gpt", 9, []),
        ("gpt", 9, ["--model.encoder.init_args.norm=post", "--model.objective.init_args.packing=document"]),
        ("elmo", 10, []),
        ("elmo", 10, ["--model.objective.init_args.stateful=true"]),
    ],
)
def test_ours_passes(model: str, count: int, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    checks = report(model, capsys, *flags)
    assert all(checks.values()), checks
    assert len(checks) == count


def test_blocks_without_effect_hide_no_leak(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zero = "--model.encoder.init_args.zero_outputs=true"
    assert all(report("bert", capsys, zero, f"--model.objective={CAUSAL_ROWS}").values())
    monkeypatch.setattr(bert, "padding_bias", lambda mask: None)
    assert not report("bert", capsys, zero)["padding does not matter"]


def wrapped(function: Callable, **changes: Callable) -> Callable:
    """`function` with some keyword arguments turned into others."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, **{name: turn(kwargs[name]) for name, turn in changes.items()}})

    return broken


def changed_result(function: Callable, change: Callable) -> Callable:
    @functools.wraps(function)  # the configuration checks signatures
    def broken(*args: Any, **kwargs: Any) -> Any:
        return change(function(*args, **kwargs))

    return broken


def candidates(mask: Callable) -> Callable:
    """Masks whatever token there is, padding and marks too."""

    def broken(ids: np.ndarray, allowed: np.ndarray, lengths: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        return mask(ids, np.ones_like(allowed), lengths, *args, **kwargs)

    return broken


def same_masks(mask: Callable) -> Callable:
    def broken(ids: np.ndarray, allowed: np.ndarray, lengths: np.ndarray, rng: Any, **kwargs: Any) -> Any:
        return mask(ids, allowed, lengths, np.random.default_rng(0), **kwargs)

    return broken


def rolled(name: str) -> Callable:
    """Labels one place too far."""

    def change(batch: Batch) -> Batch:
        target = batch.targets[name]
        target.labels = target.labels.roll(-1, 0 if target.labels.dim() == 1 else 1)
        return batch

    return change


def unlabeled(batch: Batch) -> Batch:
    if "nsp" in batch.targets:
        batch.targets["nsp"].labels *= 0
    return batch


def longer(batch: Batch) -> Batch:
    """A position too many, as of rows that still have the token that only labels have."""
    target = batch.targets["lm"]
    target.labels = torch.cat([target.labels, target.labels[:, -1:]], 1)
    batch.inputs = {name: torch.cat([value, value[:, -1:]], 1) for name, value in batch.inputs.items()}
    return batch


def not_causal(function: Callable) -> Callable:
    return lambda *args, causal=False, **kwargs: function(*args, causal=False, **kwargs)


def blurred(function: Callable) -> Callable:
    """Each output has a little of the one after it."""

    def broken(*args: Any) -> Any:
        return [(out + 0.1 * out.roll(-1, 1), state) for out, state in function(*args)]

    return broken


def partners(change: Callable) -> Callable:
    """The begin and end of what comes from elsewhere, changed."""

    def breaking(function: Callable) -> Callable:
        def broken(*args: Any) -> tuple[int, tuple[int, int]]:
            other, (begin, end) = function(*args)
            return other, change(begin, end)

        return broken

    return breaking


BREAKAGES: list[tuple[str, str, object, str, Callable]] = [
    # model, the check that must fail, where, what, how
    ("bert", "masked positions", masked_lm, "mask_tokens", lambda f: wrapped(f, rate=lambda rate: rate * 1.3)),
    ("bert", "replaced by [MASK]", masked_lm, "mask_tokens", lambda f: wrapped(f, mask_id=lambda _: 7)),
    (
        "bert",
        "replaced at random",
        masked_lm,
        "mask_tokens",
        lambda f: wrapped(f, replacements=lambda _: np.array([4])),
    ),
    ("bert", "no special or padding token is masked", masked_lm, "mask_tokens", candidates),
    ("bert", "two passes mask differently", masked_lm, "mask_tokens", same_masks),
    ("bert", "left as they were", masked_lm.MaskedLM, "batch", lambda f: changed_result(f, rolled("mlm"))),
    (
        "bert",
        "random next sentences",
        masked_lm.MaskedLM,
        "batch",
        lambda f: changed_result(f, unlabeled),
    ),
    (
        "bert",
        "random sentences come from the same document",
        sentence_pairs,
        "_elsewhere",
        lambda f: lambda windows, document, *_: (document, tuple(map(int, windows.starts[document : document + 2]))),
    ),
    (
        "bert",
        "the first token of the second text does not show random sentences",
        sentence_pairs,
        "_elsewhere",
        partners(lambda a, b: (b - 1, b)),
    ),
    (
        "bert",
        "the last token of the second text does not show random sentences",
        sentence_pairs,
        "_elsewhere",
        partners(lambda a, b: (a, max(a, b - 3))),
    ),
    (
        "bert",
        "the length of both texts does not show random sentences",
        sentence_pairs,
        "_elsewhere",
        partners(lambda a, b: (a, a + 1)),
    ),
    ("bert", "padding does not matter", bert, "padding_bias", lambda f: lambda mask: None),
    (
        "bert",
        "the order in a batch does not matter",
        bert.Block,
        "forward",
        lambda f: changed_result(f, lambda x: x + 0.1 * x[:1]),
    ),
    ("bert", "a fresh model's loss", bert.Bert, "logits", lambda f: changed_result(f, lambda x: x * 20)),
    ("gpt", "rows have data.length positions at most", CausalLM, "batch", lambda f: changed_result(f, longer)),
    ("gpt", "labels are the next tokens", CausalLM, "batch", lambda f: changed_result(f, rolled("lm"))),
    ("gpt", "changing later tokens moves no other output", transformer_block, "attention", lambda f: not_causal(f)),
    ("gpt", "no gradient reaches later tokens", transformer_block, "attention", lambda f: not_causal(f)),
    (
        "gpt",
        "the state of generation changes nothing",
        KeyValues,
        "extend",
        lambda f: lambda self, block, keys, values: f(self, block, keys * 0, values),
    ),
    (
        "gpt",
        "packed documents equal one per row",
        gpt.Gpt,
        "forward",
        lambda f: lambda self, batch, state=None: f(self, {k: v for k, v in batch.items() if k != "documents"}, state),
    ),
    ("gpt", "a fresh model's loss", gpt.Gpt, "embed", lambda f: changed_result(f, lambda x: x * 0)),
    (
        "elmo",
        "forward labels are the next words",
        BidirectionalLM,
        "batch",
        lambda f: changed_result(f, rolled("forward")),
    ),
    (
        "elmo",
        "backward labels are the words before",
        BidirectionalLM,
        "batch",
        lambda f: changed_result(f, rolled("backward")),
    ),
    ("elmo", "changing earlier words moves no other output", elmo, "_turn", lambda f: lambda x, turn: x),
    ("elmo", "no gradient reaches earlier words", elmo, "_turn", lambda f: lambda x, turn: x),
    ("elmo", "changing later words moves no other output", elmo, "side_by_side", lambda f: blurred(f)),
    ("elmo", "no gradient reaches later words", elmo, "side_by_side", lambda f: blurred(f)),
    ("elmo", "padding does not matter", elmo, "_reversed", lambda f: lambda mask: None),
]


@pytest.mark.parametrize(
    ("model", "check", "where", "what", "how"), BREAKAGES, ids=[f"{b[0]}-{b[1]}" for b in BREAKAGES]
)
def test_broken_code_fails(
    model: str,
    check: str,
    where: object,
    what: str,
    how: Callable,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(where, what, how(getattr(where, what)))
    if check == "a fresh model's loss" and model != "elmo":  # logits that are certain of one token
        if model == "gpt":
            monkeypatch.setattr(
                gpt.Gpt, "logits", lambda self, hidden: torch.zeros(*hidden.shape[:-1], len(self.tokenizer))
            )
        monkeypatch.setattr(f"pipeline.models.{model}.linear_cross_entropy", certain)
    checks = report(model, capsys)
    assert checks[check] is False


def certain(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, bias: Any = None) -> Any:
    from pipeline.models.losses import classification_loss

    return classification_loss(torch.nn.functional.one_hot(labels * 0, len(weight)).float() * 9, labels)


def test_whole_words_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(masked_lm, "mask_tokens", wrapped(masked_lm.mask_tokens, continues_word=lambda _: None))
    checks = report("bert", capsys, "--model.objective.init_args.whole_word=true")
    assert checks["no word is masked in part"] is False
