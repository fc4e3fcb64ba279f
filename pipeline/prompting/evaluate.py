"""Zero-shot and few-shot evaluation: encoder, task and rows in, answers and metrics out; no files, no flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import UserError
from pipeline.models.base import Encoder
from pipeline.prompting.calibration import Calibration
from pipeline.prompting.few_shot import columns_and_roles, fit_right, with_examples
from pipeline.prompting.metrics import Answer, metrics_of
from pipeline.prompting.requests import Progress, Request, Scorer
from pipeline.prompting.scoring import score_with, scorer_of
from tasks.dataset import DataSet, Row, shortened
from tasks.prompts import Prompt, Question, fill


@dataclass
class Result:
    """All answers to one prompt.

    Attributes:
        shots: solved examples in front of each question.
        dropped: number of examples that did not fit.
        shortened: number of questions whose text right of the candidate did not fit.
    """

    prompt: Prompt
    shots: int
    answers: list[Answer]
    dropped: int
    shortened: int
    metrics: dict[str, float]


def evaluate(
    encoder: Encoder,
    task: DataSet,
    rows: Sequence[Row],
    demonstrations: Mapping[int, Sequence[Row]] | None = None,
    *,
    progress: Progress = lambda n: None,
) -> dict[int, list[Result]]:
    """Fills and scores all prompts of a task.

    Args:
        demonstrations: number of shots -> the solved examples in front of each question; None: zero shots.

    Returns:
        Number of shots -> a result for each prompt.

    Raises:
        UserError: a prompt that cannot be filled or scored; says why.
    """
    demonstrations = demonstrations or {0: []}
    results: dict[int, list[Result]] = {shots: [] for shots in demonstrations}
    for number, prompt in enumerate(task.prompts, start=1):
        # A continuation of an empty context is no whole text: only texts that are compared are read both ways.
        scorer = scorer_of(encoder, both_ways=prompt.shape == "pair")
        questions = fill_all(prompt, number, task, rows)
        check(scorer, prompt, number, questions, task.label_names)
        fitting = fit_right(scorer, questions)
        shortened = sum(a.right != b.right for a, b in zip(fitting, questions, strict=True))
        kept = 0
        for shots, examples in sorted(demonstrations.items()):
            shown = fill_all(prompt, number, task, examples)
            prompted = with_examples(scorer, fitting, shown)
            dropped = sum(len(shown) - question.examples for question in prompted)
            kept = kept or len(scorer.tokens)
            answers = answer(scorer, prompt, prompted, shown, progress)
            if examples:
                scorer.tokens.forget(kept)  # questions with these examples in front occur once
            else:
                kept = len(scorer.tokens)
            metrics = metrics_of(answers, placed=prompt.placed)
            results[shots].append(Result(prompt, shots, answers, dropped, shortened, metrics))
    return results


def fill_all(prompt: Prompt, number: int, task: DataSet, rows: Sequence[Row]) -> list[Question]:
    """The questions of a prompt about rows.

    Raises:
        UserError: the prompt, which is the task's `number`-th, does not fit the task or a row.
    """
    if isinstance(prompt.candidates, dict) and not task.label_names:
        raise UserError(f"Prompt {number} has a candidate for each label, but this task has no labels.")
    if isinstance(prompt.candidates, dict) and (missing := set(task.label_names) - set(prompt.candidates)):
        raise UserError(f"Prompt {number} has no candidate for the label {', '.join(sorted(missing))}.")
    try:
        return [_question(prompt, task, row) for row in rows]
    except KeyError as error:
        fields = ", ".join(columns_and_roles(task, rows[0]))
        raise UserError(f"Prompt {number} uses the field {error}; the task's rows have only {fields}.") from None


def _question(prompt: Prompt, task: DataSet, row: Row) -> Question:
    names = task.names(row) if task.label_names else []
    if isinstance(prompt.candidates, dict) and len(names) != 1:
        raise UserError(f"{row[0]} has {len(names)} labels, and a prompt with a candidate for each label asks for one.")
    label = names[0] if names else None
    try:
        return fill(prompt, columns_and_roles(task, row), task.label_names, label)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{row[0]} cannot be filled into the prompt: {error}.") from None


def check(scorer: Scorer, prompt: Prompt, number: int, questions: Sequence[Question], labels: Sequence[str]) -> None:
    """Refuses prompts whose candidates cannot be distinguished.

    Raises:
        UserError: an empty candidate, a word that the encoder cannot predict, or labels of the same tokens.
    """
    for question in questions:
        if not all(candidate.strip() for candidate in question.candidates):
            raise UserError(f"Prompt {number} has an empty candidate for '{shortened(question.left)}'.")
    if not isinstance(prompt.candidates, dict):
        return
    names: dict[tuple[Any, ...], str] = {}
    tokens = scorer.tokens(questions[0].candidates)
    for name, text, candidate in zip(labels, questions[0].candidates, tokens, strict=True):
        if scorer.encoder.unknown_words(candidate):
            raise UserError(f"Prompt {number}: the encoder does not predict all of '{text.strip()}', of label {name}.")
        key = tuple(candidate)
        if key in names:
            raise UserError(f"Prompt {number}: the labels {names[key]} and {name} have the same tokens.")
        names[key] = name


def answer(
    scorer: Scorer,
    prompt: Prompt,
    questions: Sequence[Question],
    shown: Sequence[Question],
    progress: Progress = lambda n: None,
) -> list[Answer]:
    """Scores questions, in front of which the examples `shown` already stand."""
    requests = [Request(q.left, candidate, q.right) for q in questions for candidate in q.candidates]
    scored = iter(score_with(scorer, requests, progress))
    by_question = [[next(scored) for _ in question.candidates] for question in questions]
    calibration = Calibration(scorer, prompt, questions, shown)
    return [
        Answer(question, candidates, calibration.scores(question, candidates))
        for question, candidates in zip(questions, by_question, strict=True)
    ]
