"""Solved examples in front of questions: which are chosen, and what answers after them are compared with."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.models.gpt import Gpt
from pipeline.prompting import Request, calibration, score
from pipeline.prompting.evaluate import answer
from pipeline.prompting.few_shot import demonstrations, unseen, with_examples
from pipeline.prompting.requests import Scored
from pipeline.prompting.scoring import score_with, scorer_of
from pipeline.tokenization.byte_bpe import ByteBpe
from tasks.prompts import Prompt, fill
from tasks.sentiment import Sentiment

LABELS = ["no", "maybe", "yes"]
ROWS = [(f"row {i}", {"text": f"text {i}", "label": LABELS[i % 3]}) for i in range(30)]
SEEDS = range(30)


@pytest.fixture(scope="module")
def gpt() -> Gpt:
    tokenizer = ByteBpe.train(["the cat saw the dog", "the dog saw a small cat"] * 9, vocab_size=290)
    sizes = {"size": 32, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 48}
    return Gpt(tokenizer, **sizes, dropout=0.0, attention_dropout=0.0).eval()  # type: ignore[arg-type]


def labels_of(shots: int, seed: int) -> Counter[str]:
    task = Sentiment(columns={"text": "text", "label": "label"}, labels={name: name for name in LABELS})
    task.label_names = LABELS
    return Counter(row[1]["label"] for row in demonstrations(task, ROWS, shots, seed))


def test_the_seed_says_which_labels_are_shown_first() -> None:
    assert {label for seed in SEEDS for label in labels_of(1, seed)} == {*LABELS}
    for shots in (2, 3, 4, 5):
        shown = [labels_of(shots, seed) for seed in SEEDS]
        assert all(max(counts.values()) - min(counts[name] for name in LABELS) <= 1 for counts in shown)
        assert all(labels_of(3, seed) <= labels_of(5, seed) for seed in SEEDS)


def test_questions_are_no_examples_of_themselves() -> None:
    task = Sentiment(columns={"text": "text", "label": "label"}, labels={name: name for name in LABELS})
    task.prompts = [Prompt("choice", "{text} It was", {name: f" {name}" for name in LABELS})]
    asked = [(place, {**row, "text": f" {row['text']} "}) for place, row in ROWS[:3]]
    assert unseen(task, ROWS, asked) == ROWS[3:]


def test_the_prior_of_a_question_does_not_depend_on_others(gpt: Gpt) -> None:
    """A long candidate elsewhere leaves less room for examples there, and there alone."""
    prompt = Prompt("choice", "{text}", ["{a}", "{b}"], gold=0)
    shown = [fill(prompt, {"text": "the dog saw", "a": " a cat", "b": " the"}, [], None)] * 2
    short = {"text": "the cat saw", "a": " the dog", "b": " a dog"}
    long = {"text": "the cat saw", "a": " the dog" + " saw a cat" * 11, "b": " a"}
    found = []
    for rows in ([short], [short, long]):
        asked = with_examples(scorer_of(gpt), [fill(prompt, row, [], None) for row in rows], shown)
        found.append(answer(scorer_of(gpt), prompt, asked, shown))
        assert [question.examples for question in asked][:1] == [2]
    assert asked[1].examples < 2
    assert found[0][0].scores["pmi"] == pytest.approx(found[1][0].scores["pmi"], abs=1e-4)


def test_a_masked_model_names_unknown_words(pretrained: Path) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    known, unknown = score(bert, [Request("The soup was", " good"), Request("The soup was", " ßßß日")])
    assert known.unknown == ()
    assert unknown.unknown
    assert not unknown.greedy


def test_examples_fit_in_front_of_texts_that_say_nothing(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is right of the candidate takes room too."""
    bert = pipeline.encoders.load(pretrained / "encoder")
    prompt = Prompt("cloze", "it was [MASK] . " + "{text} this is the end . " * 3, {"no": "bad", "yes": "good"})
    rows = [{"text": "the food was good ."}, {"text": "the soup ."}]
    shown = [fill(prompt, row, ["no", "yes"], "yes") for row in rows]
    asked = with_examples(scorer_of(bert), [fill(prompt, rows[1], ["no", "yes"], "no")], shown)
    cuts: list[int] = []

    def scored(*args: Any) -> list[Scored]:
        found = score_with(*args)
        cuts.extend(one.cut for one in found)
        return found

    monkeypatch.setattr(calibration, "score_with", scored)
    [found] = answer(scorer_of(bert), prompt, asked, shown)
    assert "calibrated" in found.scores
    assert len(cuts) == 6  # an empty prompt for PMI, and two for calibration
    assert set(cuts) == {0}
