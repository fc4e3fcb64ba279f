"""Few-shot prompts: solved examples in front of each question, and what fits into the encoder's positions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.console import typed
from pipeline.errors import UserError
from pipeline.models.inputs import first_segment_length
from pipeline.prompting.requests import Scorer, beginning
from tasks.dataset import DataSet, Row
from tasks.prompts import Question, fields_of

BETWEEN = "\n\n"  # examples of a few-shot prompt
JOINTS = 2  # tokens that texts may have more when they are joined: one at either side of the candidate


def demonstrations(task: DataSet, examples: Sequence[Row], shots: int, seed: int) -> list[Row]:
    """`shots` rows, of all labels in turn where there are labels, the seed says of which first; the same for every
    question.

    Raises:
        UserError: there are fewer.
    """
    if not shots:
        return []
    rng = random.Random(seed)
    order = rng.sample(list(examples), len(examples))
    if task.label_names:
        by_label = {name: [row for row in order if task.names(row)[:1] == [name]] for name in task.label_names}
        names = random.Random(seed).sample(task.label_names, len(task.label_names))
        order = [row for turn in range(shots) for name in names for row in by_label[name][turn : turn + 1]]
    if len(order) < shots:
        raise UserError(
            f"{typed.flag('shots', shots)} needs as many labeled examples; the training part has {len(order)}."
        )
    chosen = order[:shots]
    rng.shuffle(chosen)
    return chosen


def unseen(task: DataSet, examples: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """The examples that are none of the questions: an answer would stand in front of its own question."""
    texts = (text for prompt in task.prompts for text in prompt.texts)
    names = sorted({name for text in texts for name in fields_of(text)})

    def shown(row: Row) -> tuple[str, ...]:
        fields = columns_and_roles(task, row)
        return tuple(str(fields.get(name)).strip() for name in names)

    asked = set(map(shown, rows))
    return [row for row in examples if shown(row) not in asked]


def columns_and_roles(task: DataSet, row: Row) -> dict[str, Any]:
    """What a prompt may name: the columns of a row, and its texts by their roles."""
    roles = {role: row[1][column] for role, column in task.columns.items() if column in row[1]}
    return {**row[1], **roles}


def fit_right(scorer: Scorer, questions: Sequence[Question]) -> list[Question]:
    """Cuts the end of what is right of the candidates, the same for all, where it would push a candidate out.

    Of left and right the longer one is cut first: the right here, the beginning of the left when the text is scored.
    """
    texts = [text for q in questions if q.right for text in (q.left, q.right, *q.candidates)]
    sizes = {text: len(tokens) for text, tokens in zip(texts, scorer.tokens(texts), strict=True)}
    longest = [max(q.candidates, key=sizes.__getitem__) if q.right else "" for q in questions]
    scorer.tokens([q.left + candidate + q.right for q, candidate in zip(questions, longest, strict=True) if q.right])
    return [
        _fit(scorer, q, candidate, sizes) if q.right else q for q, candidate in zip(questions, longest, strict=True)
    ]


def _fit(scorer: Scorer, question: Question, longest: str, sizes: dict[str, int]) -> Question:
    [whole] = scorer.tokens([question.left + longest + question.right])
    room = scorer.room - JOINTS - sizes[longest]
    kept = first_segment_length(sizes[question.right], sizes[question.left], room)
    if len(whole) <= scorer.room or sizes[question.right] <= kept:
        return question
    return replace(question, right=beginning(scorer.encoder, question.right, kept) if kept > 0 else "")


def with_examples(scorer: Scorer, questions: Sequence[Question], shown: Sequence[Question]) -> list[Question]:
    """Puts solved examples in front of each question; whole ones are dropped from the left when they do not fit."""
    if not shown:
        return list(questions)
    solved = solve(shown)
    sizes = [len(tokens) for tokens in scorer.tokens(solved)]
    known = list(dict.fromkeys(candidate for question in questions for candidate in question.candidates))
    lengths = dict(zip(known, map(len, scorer.tokens(known)), strict=True))
    whole = [q.left + max(q.candidates, key=lengths.__getitem__) + q.right for q in questions]
    result = []
    for question, tokens in zip(questions, scorer.tokens(whole), strict=True):
        first, room = len(solved), scorer.room - JOINTS - len(tokens)
        while first and sizes[first - 1] <= room:
            first -= 1
            room -= sizes[first]
        left = "".join(solved[first:]) + question.left
        result.append(replace(question, left=left, examples=len(solved) - first))
    return result


def solve(shown: Sequence[Question]) -> list[str]:
    """Examples as they stand in front of a question."""
    return [q.left + q.candidates[q.gold] + q.right + BETWEEN for q in shown]
