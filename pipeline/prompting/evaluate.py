"""Zero-shot and few-shot evaluation: every prompt of a task, scored, under every rule the field uses."""

from __future__ import annotations

import math
import random
import re
import statistics
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline import metrics
from pipeline.errors import UserError
from pipeline.models.base import Encoder, left_to_first
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.prompting.scoring import Progress, Request, Scored, beginning, is_unknown, score, softmax_over
from tasks.base import Row, Task
from tasks.prompts import Prompt, Question, fill

RULES = ("sum", "per_token", "per_character", "per_byte", "pmi", "calibrated")
CONTENT_FREE = ("N/A", "", "[MASK]")  # Zhao et al. 2021, 3
WORD = re.compile(r"\w+|[^\w\s]")
BETWEEN = "\n\n"  # examples of a few-shot prompt


@dataclass
class Answer:
    """What one item got under one prompt."""

    question: Question
    scored: list[Scored]
    scores: dict[str, list[float]]  # rule -> score of each candidate

    def choice(self, rule: str) -> int:
        scores = self.scores[rule]
        return max(range(len(scores)), key=scores.__getitem__)

    def is_tie(self) -> bool:
        first, second = sorted(self.scores["sum"], reverse=True)[:2]
        return first == second

    def credit(self, rule: str) -> float:
        """1 where the right candidate is the best one, 1 / n where it is one of n equally good ones."""
        if len(self.scored) == 1:  # a word to be said
            return float(self.scored[0].greedy)
        scores, gold = self.scores[rule], self.question.gold
        return float(scores[gold] == max(scores)) / scores.count(max(scores))


@dataclass
class Result:
    """All answers to one prompt."""

    prompt: Prompt
    shots: int
    answers: list[Answer]
    dropped: int = 0  # examples that did not fit
    shortened: int = 0  # questions whose text behind the candidate did not
    figures: dict[str, float] = field(default_factory=dict)


def evaluate(
    encoder: Encoder,
    task: Task,
    rows: Sequence[Row],
    examples: Sequence[Row],
    *,
    shots: int,
    seed: int,
    progress: Progress = lambda n: None,
) -> list[Result]:
    """Asks all prompts of a task about rows.

    Args:
        examples: rows of the training part, for `shots` of them in front of each question.

    Raises:
        UserError: a prompt that cannot be asked; says why.
    """
    results = []
    for number, prompt in enumerate(task.prompts, start=1):
        if isinstance(prompt.candidates, dict) and not task.label_names:
            raise UserError(f"Prompt {number} has a candidate for each label, but this task has no labels.")
        if isinstance(prompt.candidates, dict) and (missing := set(task.label_names) - set(prompt.candidates)):
            raise UserError(f"Prompt {number} has no candidate for the label {', '.join(sorted(missing))}.")
        try:
            questions = [ask(prompt, task, row) for row in rows]
            shown = [ask(prompt, task, row) for row in demonstrations(task, examples, shots, seed)]
        except KeyError as error:
            fields = ", ".join(fields_of(task, rows[0]))
            raise UserError(f"Prompt {number} has a field {error} that the task's rows have not ({fields}).") from None
        check(prompt, number, questions, encoder, task.label_names)
        fitting = [fitted(encoder, question) for question in questions]
        shortened = sum(a.right != b.right for a, b in zip(fitting, questions, strict=True))
        questions, dropped = with_examples(encoder, fitting, shown)
        answers = answer(encoder, prompt, questions, shown, progress)
        figures = figures_of(answers, placed=prompt.shape != "pair")
        results.append(Result(prompt, shots, answers, dropped, shortened, figures))
    return results


def fields_of(task: Task, row: Row) -> dict[str, Any]:
    """What a prompt may name: the columns of a row, and its texts by their roles."""
    roles = {role: row[1][column] for role, column in task.columns.items() if column in row[1]}
    return {**row[1], **roles}


def ask(prompt: Prompt, task: Task, row: Row) -> Question:
    label = task.names(row)[0] if task.label_names else None
    try:
        return fill(prompt, fields_of(task, row), task.label_names, label)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{row[0]} cannot be asked: {error}.") from None


def demonstrations(task: Task, examples: Sequence[Row], shots: int, seed: int) -> list[Row]:
    """`shots` rows, of all labels in turn where there are labels; the same for every question."""
    if not shots:
        return []
    rng = random.Random(seed)
    order = rng.sample(list(examples), len(examples))
    if task.label_names:
        by_label = {name: [row for row in order if task.names(row)[0] == name] for name in task.label_names}
        order = [row for turn in range(shots) for rows in by_label.values() for row in rows[turn : turn + 1]]
    if len(order) < shots:
        raise UserError(f"SHOTS={shots} needs as many labelled examples; the training part has {len(order)}.")
    chosen = order[:shots]
    rng.shuffle(chosen)
    return chosen


def check(prompt: Prompt, number: int, questions: Sequence[Question], encoder: Encoder, labels: Sequence[str]) -> None:
    """Refuses prompts whose candidates cannot be told apart."""
    for question in questions:
        if not all(candidate.strip() for candidate in question.candidates):
            raise UserError(f"Prompt {number} has an empty candidate for '{question.left[:60]}'.")
    if not isinstance(prompt.candidates, dict):
        return
    pieces: dict[tuple[Any, ...], str] = {}
    for name, text in zip(labels, questions[0].candidates, strict=True):
        if isinstance(encoder, Elmo) and (unknown := is_unknown(encoder, text)):
            raise UserError(f"Prompt {number}: this ELMo does not predict the word '{unknown[0]}' of label {name}.")
        key = tuple(encoder.tokenize([text])[0])
        if key in pieces:
            raise UserError(f"Prompt {number}: the labels {pieces[key]} and {name} have the same tokens.")
        pieces[key] = name


def fitted(encoder: Encoder, question: Question) -> Question:
    """Cuts the end of what is behind the candidate, the same for all, where it would push the candidate out.

    Of left and right the longer one is cut first: the right here, the begin of the left when the text is scored.
    """
    sizes = [len(ids) for ids in encoder.tokenize([question.left, question.right, *question.candidates])]
    longest = question.candidates[sizes[2:].index(max(sizes[2:]))]
    [whole] = encoder.tokenize([question.left + longest + question.right])
    kept = left_to_first(sizes[1], sizes[0], encoder.max_length - 4 - max(sizes[2:]))
    if not question.right or len(whole) <= encoder.max_length - 2 or sizes[1] <= kept:
        return question
    right = beginning(encoder, question.right, kept) if kept > 0 else ""
    return Question(question.left, question.candidates, right, question.gold)


def with_examples(
    encoder: Encoder, questions: Sequence[Question], shown: Sequence[Question]
) -> tuple[list[Question], int]:
    """Puts solved examples in front of each question; whole ones are left out from the left when they do not fit."""
    if not shown:
        return list(questions), 0
    solved = [q.left + q.candidates[q.gold] + q.right + BETWEEN for q in shown]
    sizes = [len(ids) for ids in encoder.tokenize(solved)]
    whole = [q.left + max(q.candidates, key=len) + q.right for q in questions]
    result, dropped = [], 0
    for question, ids in zip(questions, encoder.tokenize(whole), strict=True):
        first, room = len(solved), encoder.max_length - len(ids) - 4
        while first and sizes[first - 1] <= room:
            first -= 1
            room -= sizes[first]
        dropped += first
        result.append(
            Question("".join(solved[first:]) + question.left, question.candidates, question.right, question.gold)
        )
    return result, dropped


# ---------------------------------------------------------------------- scores


def answer(
    encoder: Encoder, prompt: Prompt, questions: Sequence[Question], shown: Sequence[Question], progress: Progress
) -> list[Answer]:
    """Scores questions; `shown` are the examples that stand in front of them, and of what they are measured by."""
    requests = [Request(q.left, candidate, q.right) for q in questions for candidate in q.candidates]
    found = iter(score(encoder, requests, progress=progress))
    asked = [[next(found) for _ in question.candidates] for question in questions]
    priors = prior(encoder, prompt, questions, shown)
    fixed = isinstance(prompt.candidates, dict)
    free = content_free(encoder, prompt, questions[0].candidates, shown) if fixed else None
    answers = []
    for question, scored in zip(questions, asked, strict=True):
        totals = [one.total for one in scored]
        behind = "" if isinstance(encoder, Bert) else question.right  # is scored with the candidate
        texts = [(candidate + behind).removeprefix(" ") for candidate in question.candidates]  # as lm-eval counts them
        scores = {
            "sum": totals,
            "per_token": [one.total / max(1, one.tokens) for one in scored],
            "per_character": [total / max(1, len(text)) for total, text in zip(totals, texts, strict=True)],
            "per_byte": [total / max(1, len(text.encode())) for total, text in zip(totals, texts, strict=True)],
        }
        if priors:
            scores["pmi"] = [t - priors[c] for t, c in zip(totals, question.candidates, strict=True)]
        if free:
            shares = softmax_over(totals).clamp(min=1e-300).log().tolist()
            scores["calibrated"] = [share - math.log(p) for share, p in zip(shares, free, strict=True)]
        answers.append(Answer(question, scored, scores))
    return answers


def emptied(prompt: Prompt, text: str) -> tuple[str, str]:
    """The prompt with `text` in place of every field: what stands left and right of the candidate."""
    plain = "".join(
        literal + (text if name is not None else "") for literal, name, *_ in string.Formatter().parse(prompt.text)
    )
    left, _, right = plain.partition("[MASK]") if prompt.shape == "cloze" else (plain, "", "")
    return left, right


def score_empty(
    encoder: Encoder, prompt: Prompt, text: str, candidates: Sequence[str], shown: Sequence[Question]
) -> list[float]:
    """Nats of candidates in the prompt with `text` in place of every field, after the same examples.

    The space in front of a mask stays: without it the candidate would be the end of the word before.
    """
    left, right = emptied(prompt, text)
    [question], _ = with_examples(encoder, [Question(left.lstrip(), list(candidates), right, 0)], shown)
    found = score(encoder, [Request(question.left, candidate, right) for candidate in candidates])
    return [one.total for one in found]


def prior(
    encoder: Encoder, prompt: Prompt, questions: Sequence[Question], shown: Sequence[Question]
) -> dict[str, float]:
    """Candidate -> its log-likelihood after the prompt without its fields (domain-conditional PMI: Holtzman 2021)."""
    if prompt.shape in ("pair", "last_word"):
        return {}
    candidates = list(dict.fromkeys(candidate for question in questions for candidate in question.candidates))
    return dict(zip(candidates, score_empty(encoder, prompt, "", candidates, shown), strict=True))


def content_free(encoder: Encoder, prompt: Prompt, candidates: Sequence[str], shown: Sequence[Question]) -> list[float]:
    """How likely each label is to begin with: the mean over inputs that say nothing (Zhao et al. 2021)."""
    texts = CONTENT_FREE if prompt.shape != "cloze" else CONTENT_FREE[:2]
    shares = [softmax_over(score_empty(encoder, prompt, text, candidates, shown)).tolist() for text in texts]
    return [max(1e-300, statistics.fmean(column)) for column in zip(*shares, strict=True)]


# ---------------------------------------------------------------------- figures


def figures_of(answers: Sequence[Answer], *, placed: bool) -> dict[str, float]:
    """Accuracy by rule with its standard error, chance, majority, and how often each place is chosen.

    Args:
        placed: whether the place of a candidate means something (of a pair the right one always comes first).
    """
    count = len(answers)
    rules = [rule for rule in RULES if rule in answers[0].scores]
    figures = {f"accuracy_{rule}": sum(a.credit(rule) for a in answers) / count for rule in rules}
    figures["accuracy"] = figures.pop("accuracy_sum")
    figures["standard_error"] = metrics.standard_error(figures["accuracy"], count)
    sizes = [len(answer.question.candidates) for answer in answers]
    if min(sizes) > 1:
        figures["chance"] = statistics.fmean(1 / size for size in sizes)
        if placed:
            figures["majority"] = metrics.majority([answer.question.gold for answer in answers])
            chosen = Counter(answer.choice("sum") for answer in answers)
            figures |= {f"chosen_{place}": chosen[place] / count for place in range(max(sizes))}
        figures["ties"] = sum(answer.is_tie() for answer in answers)
    else:
        figures["perplexity"] = math.exp(min(50.0, -statistics.fmean(a.scored[0].total for a in answers)))
    figures["cut"] = sum(any(one.cut for one in answer.scored) for answer in answers)
    figures["unknown_words"] = sum(any(one.unknown for one in answer.scored) for answer in answers)
    return figures


def summary(results: Sequence[Result]) -> dict[str, float]:
    """Over the templates of one number of shots: the mean of each accuracy, and how far they spread."""
    accuracies = [result.figures["accuracy"] for result in results]
    names = [name for name in results[0].figures if all(name in result.figures for result in results)]
    figures = {name: statistics.fmean(result.figures[name] for result in results) for name in names}
    return {**figures, "accuracy_min": min(accuracies), "accuracy_max": max(accuracies)}


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """How often each word stands in texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(WORD.findall(text))
    return counts


def unigram(answers: Sequence[Answer], counts: Counter[str]) -> list[float]:
    """Which answers the frequency of the candidates' words alone gets right (add-one, sum of logarithms).

    Candidates of the same words in another order are a tie: of n the right one has 1 / n.
    """
    total = math.log(counts.total() + len(counts) + 1)

    def nats(text: str) -> float:
        return sum(math.log(counts[word] + 1) - total for word in WORD.findall(text))

    right = []
    for one in answers:
        scores = [nats(candidate) for candidate in one.question.candidates]
        best = [i for i, value in enumerate(scores) if math.isclose(value, max(scores), rel_tol=1e-9)]
        right.append((one.question.gold in best) / len(best))
    return right


def by_group(right: Sequence[float], rows: Sequence[Row], column: str) -> dict[str, tuple[float, int]]:
    """Value of a column -> accuracy of its rows, and how many they are."""
    groups: dict[str, list[float]] = {}
    for value, (_, row) in zip(right, rows, strict=True):
        groups.setdefault(str(row.get(column)), []).append(value)
    return {name: (statistics.fmean(right), len(right)) for name, right in sorted(groups.items())}


def method(encoder: Encoder, task: Task) -> str:
    """How this encoder scores this task, in words."""
    shapes = {prompt.shape for prompt in task.prompts}
    if isinstance(encoder, Gpt):
        return "log-likelihood of what follows the context"
    if isinstance(encoder, Elmo):
        return "forward log-likelihood after a context, forward and backward of whole texts"
    if "cloze" in shapes:
        return "log-likelihood at the masks"
    return "pseudo-log-likelihood, each token masked in turn (a BERT does not go on with a text)"


def predictions(result: Result, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row for each item: what was asked, and what each candidate got."""
    found = []
    for number, (one, (place, row)) in enumerate(zip(result.answers, rows, strict=True)):
        question = one.question
        found.append(
            {
                "id": row.get("idx", row.get("pairID", row.get("id", number))),
                "place": place,
                "shots": result.shots,
                "template": result.prompt.text,
                "context": question.left,
                "behind": question.right,
                "candidates": question.candidates,
                "tokens": [scored.tokens for scored in one.scored],
                "log_likelihoods": [scored.total for scored in one.scored],
                "scores": one.scores,
                "choice": one.choice("sum"),
                "gold": question.gold,
                "right": one.credit("sum"),
            }
        )
    return found
