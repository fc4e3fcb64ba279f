"""Templates: how rows become questions, without any model."""

from __future__ import annotations

import pytest

from tasks.errors import TaskError
from tasks.prompts import Prompt, fill

ROW = {"premise": "The man sat.", "choice1": "He slept.", "label": 1, "question": "effect"}


def test_prompts_are_filled() -> None:
    prompt = Prompt(
        "choice",
        "{premise!p} {question}",
        [" {choice1!l}", " no"],
        "label",
        {"question": {"effect": "so"}},
    )
    question = fill(prompt, ROW, [], None)
    assert (question.left, question.candidates, question.gold) == ("The man sat so", [" he slept.", " no"], 1)
    cloze = Prompt("cloze", "{premise} It was [MASK]!", {"bad": "sad", "good": "fun"})
    question = fill(cloze, ROW, ["good", "bad"], "bad")
    assert (question.left, question.right) == ("The man sat. It was ", "!")
    assert (question.candidates, question.gold) == (["fun", "sad"], 1)
    question = fill(cloze, {"premise": "A [MASK] broke."}, ["good", "bad"], "bad")  # the row's own
    assert (question.left, question.right) == ("A [MASK] broke. It was ", "!")
    for nothing in (None, float("nan")):
        with pytest.raises(ValueError, match="it has nothing under 'premise'"):
            fill(cloze, {"premise": nothing}, ["good", "bad"], "bad")
    last = fill(Prompt("last_word", "{premise}"), ROW, [], None)
    assert (last.left, last.candidates) == ("The man", [" sat."])


def test_a_row_is_filled_in_without_the_spaces_around_it() -> None:
    prompt = Prompt("choice", "{text}{why}", [" {a}", " b"], gold="right", values={"why": {"1": " because"}})
    row = {"text": "it was ", "why": 1, "a": "good\n", "right": "1.0"}
    question = fill(prompt, row, [], None)
    assert (question.left, question.candidates, question.gold) == ("it was because", [" good", " b"], 1)
    with pytest.raises(ValueError, match=r"the right answer is '0\.7', which is no number of a candidate"):
        fill(prompt, {**row, "right": 0.7}, [], None)
    with pytest.raises(TaskError, match=r"has 2 \[MASK\]; it needs one"):
        Prompt("cloze", "{text} [MASK] or [MASK]", [" a", " b"])
