"""Spans as conlleval counts them: cases worked out by its rules, malformed sequences among them."""

from __future__ import annotations

import pytest

from pipeline.metrics import span_scores, spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
        ("I-PER I-PER O I-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),  # IOB1, or an I without a B
        ("B-PER I-LOC I-LOC", [("PER", 0, 0), ("LOC", 1, 2)]),  # the type changes inside
        ("O I-PER B-PER", [("PER", 1, 1), ("PER", 2, 2)]),
        ("S-PER B-LOC I-LOC E-LOC S-PER", [("PER", 0, 0), ("LOC", 1, 3), ("PER", 4, 4)]),
        ("B-PER E-PER I-PER", [("PER", 0, 1), ("PER", 2, 2)]),  # after E a new one begins
        ("B-creative-work I-creative-work", [("creative-work", 0, 1)]),
        ("O O", []),
        ("", []),
    ],
)
def test_spans(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert spans(tags.split()) == expected


def test_span_scores() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "B-PER", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O", "I-PER", "B-ORG"]]
    scores = span_scores(gold, predicted)
    # Right: LOC, LOC, PER; 5 predicted, 4 gold.
    assert (scores["precision"], scores["recall"], scores["support"]) == (3 / 5, 3 / 4, 4)
    assert scores["f1"] == pytest.approx(2 * 0.6 * 0.75 / 1.35)
    assert scores["PER"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2}
    assert scores["LOC"]["f1"] == 1
    assert scores["ORG"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert span_scores([["O"]], [["O"]])["f1"] == 0
    with pytest.raises(ValueError, match="2 gold tags and 1 predicted"):
        span_scores([["O", "O"]], [["O"]])
