"""The claims of lectures and papers, tested on made-up ladders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.experiments.claims import claims_of


def model(name: str, kind: str, *bits: float, **others: Any) -> dict[str, Any]:
    known = {"name": name, "title": name.upper(), "kind": kind, "by_seed": list(bits), "seconds": 100, "axes": {}}
    return {**known, "rates": [1, 2], "learning_rate": None if kind == "counting" else 0.1, **others}


def verdicts(*models: dict[str, Any], mixtures: Any = ()) -> dict[str, tuple[bool | None, str | None, str | None]]:
    """The beginning of a claim -> its verdict."""
    found = claims_of({"models": list(models), "mixtures": list(mixtures)})
    return {" ".join(c["claim"].split()[:3]): (c["holds"], c["by"], c["seeds"]) for c in found}


def test_a_ladder_of_names() -> None:
    rungs = [
        model("bigram-add-one", "counting", 2.4),
        model("bigram", "counting", 2.25),
        model("trigram", "counting", 2.0),
        model("5-gram", "counting", 1.9),
        model("fflm-16", "feed-forward", 1.8),
        model("rnn", "recurrent", 1.79, 1.74),
        model("lstm", "recurrent", 1.6, 1.74),
        model("gru", "recurrent", 1.601, 1.741, seconds=80),
        model("gpt", "attention", 1.5, rates=[1]),
    ]
    mixtures = [
        {"models": ["5-gram", "lstm"], "gain": 0.05, "interval": [0.04, 0.06]},
        {"models": ["fflm-16", "5-gram"], "gain": 0.001, "interval": [-0.001, 0.003]},
        {"models": ["5-gram", "gpt"], "gain": 0.02, "interval": [0.01, 0.03]},
        {"models": ["trigram", "gpt"], "gain": 0.0, "interval": [-1, 0]},
    ]
    found = verdicts(*rungs, mixtures=mixtures)
    assert found["Kneser-Ney smoothing is"] == (False, "0.150 bits per byte (6.2 %) better", "0 of 1")
    assert found["A longer history"] == (True, "0.100 bits per byte (5.0 %) better", "1 of 1")
    holds, by, seeds = found["Neural models are"]
    assert (holds, seeds) == (True, "2 of 2")
    assert by == "0.100 bits per byte (5.3 %) better, FFLM-16 against 5-GRAM; in 20 of 20 pairs"
    # The mean of two seeds is 5.4 % better, the second seed no better at all.
    assert found["Gated cells are"][0] is True
    assert found["Gated cells are"][2] == "1 of 2"
    assert found["A GRU is"] == (True, "20.0 % less time", "1 of 1")  # the later one of two
    assert found["A vanilla RNN"][0] is True
    assert found["A Transformer is"][0] is True
    assert found["Even a Transformer"] == (True, "0.0200 bits per byte (0.0100 to 0.0300)", "1 of 1")
    assert found["A neural model"][0] is False
    assert found["A neural model"][1] == "0.0010 bits per byte (-0.0010 to 0.0030), fflm-16 + 5-gram; in 1 of 2 pairs"
    assert found["The comparison is"] == (False, "4 of 5 models", None)
    for untried in ("More layers help.", "Shorter units need"):
        assert found[untried] == (None, None, None)


def test_a_ladder_of_choices() -> None:
    """Models are compared that differ in nothing else; a worse one is enough to refute what is said of all."""
    bits = {("RNN", "1"): 2.0, ("RNN", "2"): 2.01, ("LSTM", "1"): 1.7, ("LSTM", "2"): 1.6}
    rungs = [
        model(f"{cell}-{n}", "recurrent", value, axes={"cell": cell, "layers": n}) for (cell, n), value in bits.items()
    ]
    found = verdicts(*rungs)
    assert found["More layers help."] == (
        False,
        "0.010 bits per byte (0.5 %) worse, RNN-2 against RNN-1; in 1 of 2 pairs",
        "0 of 1",
    )
    assert found["Gated cells are"][1] == "0.300 bits per byte (15.0 %) better, LSTM-1 against RNN-1; in 2 of 2 pairs"
    assert found["The embedding as"] == (None, None, None)


@pytest.mark.parametrize(("words", "holds"), [([2.0, 2.0, 2.0], True), ([2.5, 2.2, 2.0], False)])
def test_shorter_units_need_longer_histories(words: list[float], holds: bool) -> None:
    by_unit = {"words": words, "bytes": [3.0, 2.5, 2.2]}
    rungs = [
        model(f"{unit}-{order}", "counting", value, axes={"unit": unit, "order": order}, tokenizer={"vocabulary": size})
        for (unit, values), size in zip(by_unit.items(), (20_000, 257), strict=True)
        for order, value in zip(("2", "3", "5"), values, strict=True)
    ]
    found = verdicts(*rungs)["Shorter units need"]
    assert found == (holds, f"bytes 5, words {2 if holds else 5}", f"{int(holds)} of 1")


def test_a_claim_of_no_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text("- {claim: a, source: b, better: [x]}\n")
    with pytest.raises(UserError, match=r"claims\.yaml has no worse"):
        claims_of({"models": [], "mixtures": []}, file)
    file.write_text("- {claim: a, source: b, better: [x], worse: [y], most: 1}\n")
    with pytest.raises(UserError, match="unknown key: most"):
        claims_of({"models": [], "mixtures": []}, file)
