"""The claims of lectures and papers, tested on made-up ladders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import UserError
from pipeline.experiments.ladder import rungs as ladder
from pipeline.experiments.ladder.claims import claims_of, load, selected
from pipeline.presets.files import CONFIGS


def model(name: str, kind: str, *bits: float, **others: Any) -> dict[str, Any]:
    known = {"name": name, "title": name.upper(), "kind": kind, "by_seed": list(bits), "seconds": 100, "axes": {}}
    return {
        **known,
        "rates": [{"learning_rate": 0.2}, {"learning_rate": 0.1}],
        "learning_rate": None if kind == "counting" else 0.1,
        **others,
    }


Verdicts = dict[str, tuple[bool | None, str | None, str | None]]


def verdicts(*models: dict[str, Any], mixtures: Any = ()) -> Verdicts:
    found = claims_of({"models": list(models), "mixtures": list(mixtures)})
    return {claim["claim"]: (claim["holds"], claim["by"], claim["seeds"]) for claim in found}


def of(found: Verdicts, beginning: str) -> tuple[bool | None, str | None, str | None]:
    """The verdict on the claim that begins so."""
    [verdict] = [verdict for claim, verdict in found.items() if claim.startswith(beginning)]
    return verdict


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
        model("gpt", "attention", 1.5, rates=[{"learning_rate": 0.1}]),
    ]
    mixtures = [
        {"models": ["5-gram", "lstm"], "gain": 0.05, "interval": [0.04, 0.06]},
        {"models": ["fflm-16", "5-gram"], "gain": 0.001, "interval": [-0.001, 0.003]},
        {"models": ["5-gram", "gpt"], "gain": 0.02, "interval": [0.01, 0.03]},
        {"models": ["trigram", "gpt"], "gain": 0.0, "interval": [-1, 0]},
    ]
    found = verdicts(*rungs, mixtures=mixtures)
    assert of(found, "Bigrams with Kneser-Ney") == (False, "0.150 bits per byte (6.2 %) better", "0 of 1")
    assert of(found, "A 5-gram model") == (True, "0.100 bits per byte (5.0 %) better", "1 of 1")
    holds, by, seeds = of(found, "Every neural model is")
    assert (holds, seeds) == (True, "2 of 2")
    assert by == "0.100 bits per byte (5.3 %) better, FFLM-16 against 5-GRAM; in 20 of 20 pairs"
    # The mean of two seeds is 5.4 % better, the second seed no better at all.
    assert of(found, "Gated cells are")[0] is True
    assert of(found, "Gated cells are")[2] == "1 of 2"
    assert of(found, "A GRU takes") == (True, "20.0 % less time", "1 of 1")
    assert of(found, "A GRU is") == (True, "0.001 bits per byte (0.1 %) worse", "2 of 2")
    assert of(found, "A vanilla RNN")[0] is True
    assert of(found, "A Transformer is")[0] is True
    assert of(found, "A mixture with") == (True, "0.0200 bits per byte (0.0100 to 0.0300)", "1 of 1")
    assert of(found, "A mixture of")[0] is False
    assert of(found, "A mixture of")[1] == "0.0010 bits per byte (-0.0010 to 0.0030), fflm-16 + 5-gram; in 1 of 2 pairs"
    assert of(found, "Every neural model here") == (False, "4 of 5 models; 1 best at the highest rate tried", None)
    for untried in ("Two layers are", "Shorter units need"):
        assert of(found, untried) == (None, None, None)


def test_a_ladder_of_choices() -> None:
    """Models are compared that differ in nothing else; a worse one is enough to refute what is said of all."""
    bits = {("RNN", "1"): 2.0, ("RNN", "2"): 2.01, ("LSTM", "1"): 1.7, ("LSTM", "2"): 1.6}
    rungs = [
        model(f"{cell}-{n}", "recurrent", value, axes={"cell": cell, "layers": n}) for (cell, n), value in bits.items()
    ]
    found = verdicts(*rungs)
    assert of(found, "Two layers are") == (
        False,
        "0.010 bits per byte (0.5 %) worse, RNN-2 against RNN-1; in 1 of 2 pairs",
        "0 of 1",
    )
    assert (
        of(found, "Gated cells are")[1] == "0.300 bits per byte (15.0 %) better, LSTM-1 against RNN-1; in 2 of 2 pairs"
    )
    assert of(found, "Tying the output") == (None, None, None)


@pytest.mark.parametrize(("words", "holds"), [([2.0, 2.0, 2.0], True), ([2.5, 2.2, 2.0], False)])
def test_shorter_units_need_longer_histories(words: list[float], holds: bool) -> None:
    by_unit = {"bytes": [3.0, 2.5, 2.2], "words": words}
    rungs = [
        model(f"{unit}-{order}", "counting", value, axes={"unit": unit, "order": order})
        for unit, values in by_unit.items()
        for order, value in zip(("2", "3", "5"), values, strict=True)
    ]
    found = of(verdicts(*rungs), "Shorter units need")
    assert found == (holds, f"bytes 5, words {2 if holds else 5}", f"{int(holds)} of 1")


def test_a_claim_of_no_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "claims.yaml"
    file.write_text("- {claim: a, source: b, better: [x]}\n")
    with pytest.raises(UserError, match=r"claims\.yaml has no worse"):
        claims_of({"models": [], "mixtures": []}, file)
    file.write_text("- {claim: a, source: b, better: [x], worse: [y], most: 1}\n")
    with pytest.raises(UserError, match="unknown key: most"):
        claims_of({"models": [], "mixtures": []}, file)


def test_every_model_of_a_claim_is_on_a_ladder() -> None:
    """A rung that is called otherwise would leave a claim untried for ever."""
    rungs = [vars(rung) for file in sorted((CONFIGS / "ladder").glob("*.yaml")) for rung in ladder.load(file).rungs]
    axes = {axis for rung in rungs for axis in rung["axes"]}
    for claim in load():
        for names in (getattr(claim, field, ()) for field in ("better", "worse", "mixed", "partner")):
            for selector in names:
                assert selected(rungs, [selector]), selector
        assert {getattr(claim, field) for field in ("history", "unit") if hasattr(claim, field)} <= axes
