"""Spans as conlleval counts them: cases worked out by its rules, malformed sequences among them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import seqeval.metrics as seqeval

from pipeline.metrics import span_scores, spans
from tasks.base import Example
from tasks.entailment import Entailment
from tasks.metrics import clustered_error, standard_error
from tasks.sentiment import Sentiment
from tasks.tagging import Tagging


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


def test_the_error_of_tags_is_that_of_sentences() -> None:
    """Against a bootstrap over sentences: as many answers that err together say less than single ones."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 40, 400)
    skill = rng.beta(4, 1, 400)
    right = [int(rng.binomial(size, share)) for size, share in zip(sizes, skill, strict=True)]
    found = clustered_error(right, sizes.tolist())
    drawn = rng.integers(400, size=(2000, 400))
    shares = np.array(right)[drawn].sum(1) / sizes[drawn].sum(1)
    assert found == pytest.approx(float(shares.std()), rel=0.05)
    assert found > 1.5 * standard_error(sum(right) / int(sizes.sum()), int(sizes.sum()))
    alone = [0, 1, 1, 0, 1, 1, 1, 1] * 50
    assert clustered_error(alone, [1] * 400) == pytest.approx(standard_error(0.75, 400), rel=0.01)
    assert clustered_error([3], [4]) == standard_error(0.75, 4)


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
    odd = span_scores([["B-f1", "O", "B-PER"]], [["B-f1", "O", "O"]])
    assert (odd["f1"], odd["support"]) == (pytest.approx(2 / 3), 2)
    with pytest.raises(ValueError, match="2 gold tags and 1 predicted"):
        span_scores([["O", "O"]], [["O"]])


@pytest.mark.parametrize("marks", ["BI", "BIES"])
def test_span_scores_are_those_of_seqeval(marks: str) -> None:
    """Of random tags, most of whose sequences are malformed."""
    rng = random.Random(0)
    tags = ["O", *(f"{mark}-{kind}" for kind in ("PER", "LOC", "creative-work") for mark in marks)]
    for _ in range(100):
        gold = [rng.choices(tags, k=rng.randrange(1, 20)) for _ in range(20)]
        predicted = [[tag if rng.random() < 0.6 else rng.choice(tags) for tag in sentence] for sentence in gold]
        found = span_scores(gold, predicted)
        theirs = seqeval.classification_report(gold, predicted, output_dict=True, zero_division=0)
        theirs |= theirs.pop("micro avg")
        for name in ("precision", "recall", "f1"):
            key = "f1-score" if name == "f1" else name
            assert found[name] == pytest.approx(theirs[key], abs=1e-9)
            for kind in ("PER", "LOC", "creative-work"):
                assert found[kind][name] == pytest.approx(theirs[kind][key], abs=1e-9)


def test_baselines_of_texts() -> None:
    single = Sentiment(labels={"0": "bad", "1": "good"})
    train = [Example("a good film", 1), Example("a bad film", 0)] * 5
    test = [Example("good", 1), Example("so bad", 0), Example("so bad", 0), Example("bad", 1)]
    assert single.baselines(train, test) == {"majority": 0.5, "bag_of_words": 0.75}
    assert single.baselines(train[:1] * 4, test)["bag_of_words"] == 0.5  # one class alone
    assert single.baselines([Example(" ", 1), Example("", 1), Example("", 0)], test)["bag_of_words"] == 0.5
    single.__class__ = type("ByF1", (Sentiment,), {"metric": "macro_f1"})
    assert single.baselines(train, test)["majority"] == pytest.approx(1 / 3)  # (2/3 + 0) / 2, in the task's metric
    assert single.baselines([Example("x", 0), Example("y", 0), Example("z", 1)], test[:1])["majority"] == 0
    pairs = Entailment(labels={"0": "no", "1": "yes"})
    train = [Example(("it rains", "not so"), 0), Example(("it snows", "just so"), 1)] * 5
    found = pairs.baselines(train, [Example(("it snows", "not so"), 0), Example(("it snows", "just so"), 1)])
    assert (found["majority"], found["hypothesis_only"]) == (0.5, 1.0)


def test_baselines_of_tags() -> None:
    names = Tagging(labels={tag: tag for tag in ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")})
    tags = {name: index for index, name in enumerate(names.label_names)}

    def example(text: str, labels: str) -> Example:
        return Example(text.split(), [tags[tag] for tag in labels.split()])

    train = [example("Anna Lee saw New York", "B-PER I-PER O B-LOC I-LOC"), example("Anna went", "B-PER O")]
    test = [example("Anna Lee left York and Anna", "B-PER I-PER O B-LOC O B-PER")]
    # The longest known span first; "York" alone was none: 2 of 2 found are right, of 3.
    assert names.baselines(train, test)["training_spans"] == pytest.approx(2 * 2 / (2 + 3))
    parts = Tagging(labels={tag: tag for tag in ("N", "V")}, spans=False)
    train = [Example(["time", "flies"], [0, 1]), Example(["flies", "time", "flies"], [0, 0, 0])]
    found = parts.baselines(train, [Example(["flies", "time", "unseen"], [0, 0, 1])])
    assert found == {"majority": pytest.approx(2 / 3), "most_frequent_tag": pytest.approx(2 / 3)}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gold", [[0] * 9 + [1], [1] * 9 + [0], [0, 1] * 5, [1] * 10])
def test_one_answer_for_all_has_no_correlation(gold: list[int]) -> None:
    figures = Sentiment(labels={"a": "a", "b": "b"}).scores(gold, [1] * len(gold)).figures
    assert figures["matthews"] == 0
    assert figures["accuracy"] == sum(gold) / len(gold)
