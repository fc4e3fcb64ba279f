"""The page of a ladder: one file, small, read with and without its script, on a phone too."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.metrics import signed
from pipeline.reporting import ladder_charts
from pipeline.reporting.label_placement import spread
from pipeline.reporting.ladder_page import write_page
from pipeline.reporting.ladder_reading import difference, surprisal
from tests import browser

KINDS = ("baseline", "counting", "counting", "feed-forward", "recurrent", "recurrent", "attention")
SECTIONS = ["Seventy years", "One prompt", "One paragraph", "Cost", "Reach", "Grammar", "Mixtures", "Claims"]
SECTIONS += ["How it was made"]


def model(number: int, kind: str) -> dict[str, Any]:
    bits, trained = 3.3 - 0.12 * number, kind not in ("baseline", "counting")
    history = [
        {"step": 10 * i, "tokens": 100 * i, "seconds": 2.0 * i, "flops": 1e9 * i, "bits_per_byte": bits + 1 / i}
        for i in range(1, 90)
    ]
    return {
        "name": f"model-{number}",
        "title": f"Model of kind <{kind}> {number}",
        "year": 1948 + 5 * number,
        "source": "Shannon 1948",
        "kind": kind,
        "parameters": 10**number,
        "seconds": 180.0 if trained else 3.0,
        "flops": 9e10 * trained,
        "bits_per_byte": bits,
        "perplexity": 2**bits,
        "steps": 890,
        "tokens": 8900,
        "rates": [{"learning_rate": rate, "bits_per_byte": bits} for rate in (1e-3, 2e-3)] * trained,
        "history": history * trained,
        "beats_counting": {key: history[30][key] for key in ("step", "tokens", "seconds", "flops")}
        if trained
        else None,
        "by_context": [[1, 1, 7.0], [2, 2, 6.5 - 0.1 * number], [3, 4, 6.0 - 0.2 * number]],
        "blimp": {"accuracy": 0.6, "phenomena": {"npi_present_1": 0.7, "transitive": 0.4}},
        "continuation": f" of the {number} </script><b>\x00",
    }


@pytest.fixture
def ladder() -> dict[str, Any]:
    models = [model(number, kind) for number, kind in enumerate(KINDS)]
    tokens = ["The", " <b>", "\n", *[" city"] * 400]
    mixtures = [
        {
            "models": [a["name"], b["name"]],
            "weight": 0.6,
            "bits_per_byte": 1.4,
            "better_half": b["name"],
            "gain": 0.02,
            "interval": [0.01, 0.03],
        }
        for a, b in itertools.combinations(models[1:], 2)
    ]
    return {
        "corpus": "sample",
        "tokenizer": {"scheme": "bpe", "vocabulary": 500},
        "train_tokens": 1000,
        "train_bytes": 4000,
        "validation_tokens": 100,
        "validation_bytes": 400,
        "version": "0",
        "precision": "32-true",
        "device": "cpu",
        "date": "2026-01-01",
        "command": "python -m pipeline ladder",
        "models": models,
        "mixtures": mixtures,
        "paragraph": {
            "tokens": tokens,
            "nats": {m["name"]: [0.1 + place % 9 for place in range(len(tokens))] for m in models},
        },
        "prompt": "The city",
        "published_blimp": [{"title": "GPT-2", "accuracy": 0.886, "phenomena": {"transitive": 0.86}}],
        "claims": [
            {"claim": f"Claim {holds}", "source": "a paper", "holds": holds, "by": "0.1", "seeds": "1 of 1"}
            for holds in (True, False, None)
        ],
    }


def test_a_page_has_every_section_and_no_more_than_its_ladder(ladder: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "ladder.html"
    write_page(ladder, file)
    page = file.read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == SECTIONS
    assert len(page.encode()) < 400_000
    assert not re.search(r"https?:|src=|@import|url\(|<link|<b>\x00|<kind|NaN|undefined", page)
    [script] = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert page.count('class="ring"') == 16  # four trained models, two charts, two sizes
    assert "✓ holds" in page
    assert "✗ does not hold" in page
    assert "– not tried" in page
    assert "GPT-2 (published)" in page
    assert "88.6 %" in page
    # What was not measured is left out; a model that gave a token no probability is none of the charts.
    for entry in ladder["models"]:
        entry |= {"blimp": None, "history": [], "by_context": [], "continuation": "", "rates": []}
    ladder["models"][1] |= {"bits_per_byte": math.inf, "perplexity": math.inf}
    for key in ("mixtures", "paragraph", "claims", "prompt", "command"):
        del ladder[key]
    write_page(ladder, file)
    assert re.findall(r"<h2>(.*?)</h2>", file.read_text()) == SECTIONS[:1]
    assert "infinite" in file.read_text()
    # A product of choices is no history, and its tokenizers may differ.
    for number, entry in enumerate(ladder["models"]):
        entry |= {"bits_per_byte": 2.0 + number, "axes": {"unit": "ab"[number % 2], "order": str(number // 2)}}
    write_page(ladder | {"tokenizer": None}, file)
    assert re.findall(r"<h2>(.*?)</h2>", file.read_text()) == ["Choices"]
    assert "tokenizers differ" in file.read_text()


@browser.needs_browser
def test_a_browser_shows_the_page_with_and_without_its_script(ladder: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "ladder.html"
    write_page(ladder, file)
    for scripts in (True, False):
        needed, inner, drawings = browser.measured(file.read_text(), 360, tmp_path, scripts=scripts)
        assert needed <= inner == 360
        assert drawings == 4  # those for narrow screens
    page = browser.opened(file, tmp_path)  # with the policy under which only its own script runs
    assert '<div id="fixed" hidden="">' in page
    assert page.count("<option") == 2 * len(KINDS) + 1
    assert "as each model expected it" in page


def test_colors_follow_what_was_expected() -> None:
    tokens = ["a", "b", "c"]
    assert [mark for _, mark, _ in surprisal("m", tokens, [0.1, 4.0, None]).tokens] == ["u0", "u2", "u8"]
    assert [mark for _, mark, _ in difference("m", "n", tokens, [1.0, 4.0, 2.0], [4.0, 1.0, 2.1]).tokens] == [
        "p3",
        "m3",
        "u0",
    ]


def test_a_gain_of_nothing_has_no_sign(ladder: dict[str, Any], tmp_path: Path) -> None:
    for mixture in ladder["mixtures"]:
        mixture |= {"gain": -1e-9, "interval": [-2e-9, 1e-9]}
    write_page(ladder, tmp_path / "ladder.html")
    page = (tmp_path / "ladder.html").read_text()
    assert not re.search(r"[>( ]-0(\.0+)?[<) ]", page)
    assert "; no better than Model of kind" in page
    assert [signed(gain) for gain in (0.05, -0.0004, -0.05)] == ["+0.050", "0.000", "-0.050"]


def test_an_axis_of_close_powers_has_ticks_between_them() -> None:
    assert [label for _, label in ladder_charts.powers([2e11, 5e12]).ticks] == [
        "2 × 10¹¹",
        "5 × 10¹¹",
        "10¹²",
        "2 × 10¹²",
        "5 × 10¹²",
    ]
    assert [label for _, label in ladder_charts.powers([1e9, 1e11]).ticks] == ["10⁹", "10¹⁰", "10¹¹"]


@pytest.mark.parametrize("values", [[2.1, 2.3], [2.2], [1.4, 1.48], [1.2, 4.0]])
def test_axes_of_close_ends_have_ticks(values: list[float]) -> None:
    assert ladder_charts.ratios(values).ticks
    assert len(ladder_charts.durations([10 * value for value in (values[0], 4 * values[0])]).ticks) > 1


def test_an_axis_of_years_has_whole_ones() -> None:
    ticks = ladder_charts.linear([2018, 2020], margin=0.04, form=ladder_charts.WHOLE).ticks
    assert ticks == [(2018, "2018"), (2019, "2019"), (2020, "2020")]


def test_no_line_strikes_through_a_label() -> None:
    items = [
        ladder_charts.Item("5-gram", "5-gram", ladder_charts.Look("s0"), points, "")
        for points in ([(1.0, 2.0)], [(0.0, 3.0), (4.0, 1.5)])
    ]
    scale = ladder_charts.linear([0.0, 4.0])
    svg = ladder_charts.plot(items, scale, scale, x_label="x", y_label="y", level=(2.0, "best", "best"))
    for drawing in svg.split("</svg>")[:2]:
        [line] = re.findall(r'class="baseline" points="[\d.]+,([\d.]+)', drawing)
        [label] = re.findall(r'class="name \w+" x="[\d.]+" y="([\d.]+)"', drawing)
        assert abs(float(label) - 4.5 - float(line)) >= 8


def test_labels_are_apart() -> None:
    heights = spread([50, 50, 52, 190, 199], 0, 200, gap=16)
    ordered = sorted(heights)
    assert all(b - a >= 16 for a, b in itertools.pairwise(ordered))
    assert ordered[0] >= 0
    assert ordered[-1] <= 200
    assert heights[3] < heights[4]
