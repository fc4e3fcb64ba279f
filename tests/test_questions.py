"""Questions answered by a part of a text: where answers are, how they are read and scored, and what is learned."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F
from torchmetrics.functional.text import squad

import pipeline
from pipeline.data import labeled
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from pipeline.finetuning.features import Feature
from pipeline.finetuning.heads.span import LONGEST, SpanHead, windows
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.predictions import predictions_of
from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.inputs import Inputs
from pipeline.tokenization.wordpiece import WordPiece
from tasks.base import Example
from tasks.guess import Table
from tasks.questions import Answer, Questions, asking, closest_sentence, score
from tests.conformance import TOYS
from tests.conftest import assert_plot, figures, run
from tests.test_tuned import options

COLORS, ANIMALS = ["red", "blue", "green", "white"], ["dog", "cat", "horse", "bird"]
FILLING = ["we", "saw", "it", "on", "the", "way", "to", "the", "old", "house", "by", "the", "sea"]
TASK = """\
data:
  task:
    class_path: tasks.questions.Questions
    init_args: {columns: {question: question, context: context, answers: answers}}
"""
VECTORS = sorted(model for model, toy in TOYS.items() if toy.pretrains and not toy.counts)


def question(color: str, animal: str, words: list[str], kind: str) -> dict[str, Any]:
    text, word = " ".join([*words, color, animal]), {"color": color, "animal": animal}[kind]
    return {
        "question": f"what {kind}?",
        "context": text,
        "answers": {"text": [word], "answer_start": [text.rindex(word)]},
    }


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Half of the questions ask for a color, half for an animal, and both are in each text."""
    rng = random.Random(seed)
    asked = ("color", "animal")
    return [
        question(rng.choice(COLORS), rng.choice(ANIMALS), rng.sample(FILLING, rng.randint(0, 4)), asked[number % 2])
        for number in range(count)
    ]


def write(folder: Path) -> Path:
    for split, count in (("train", 240), ("valid", 40), ("test", 60)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(count, seed=count)))
    (folder / "colors.yaml").write_text(TASK)
    return folder / "colors.yaml"


# ---------------------------------------------------------------------- where answers are


ODD = "  Ünïcode 🙂 text — naïve café, 中文字 and\tstate-of-the-art; “quoted” words… don't stop: Zürich 1,234.56. "
LONG = " ".join(f"word{number} of many" for number in range(60)) + " and the end"
PLACES = [
    (ODD, "Ünïcode"),
    (ODD, "naïve café"),
    (ODD, "“quoted” words…"),
    (ODD, "don't stop"),
    (ODD, "Zürich"),
    (ODD, "1,234.56"),
    (LONG, "word0"),
    (LONG, "many word31"),
    (LONG, "the end"),
    ("x" * 4_500 + " after it", "after it"),
    ("short", "short"),
]


def example(text: str, answer: str) -> Example:
    return Questions().example(("row", {"question": "which part is it?", "context": text, "answers": answer}))


def with_outputs_at(
    model: FineTunedModel, examples: list[Example]
) -> tuple[list[Feature], torch.Tensor, list[Any], Inputs]:
    """Features and labels of examples, and what is read from outputs that have these labels."""
    head, features = model.head, model.features([one.text for one in examples])
    batch = head.inputs(model.encoder, features)
    labels, _ = head.collate(model.encoder, [examples[one.text].label for one in features], features)
    outputs = torch.zeros(len(features), batch["answerable"].shape[1], 2).scatter_(1, labels[:, None], 20.0)
    found = predictions_of(
        enumerate(head.decode(outputs, batch)), features, [one.text for one in examples], join=head.join
    )
    return features, labels, [one.label.texts[0] for one in found], batch


@pytest.mark.parametrize("pair", ["joined", "attended"])
@pytest.mark.parametrize("model", VECTORS)
def test_the_tokens_of_an_answer_give_its_text(model: str, pair: str, toys: Callable[[str], Path]) -> None:
    """In every family: special tokens, windows and tokens of a part of a character are accounted for."""
    encoder = pipeline.encoders.load(toys(model) / "encoder")
    if pair == "joined" and not (encoder.joint_pairs or encoder.special.between):
        pytest.skip("it has no token between texts")
    settings = options(name="span", pairs=True, columns={}, max_length=40)
    settings.pair = pair  # type: ignore[assignment]
    tuned = FineTunedModel(encoder, labels=["begin", "end"], options=settings)
    examples = [example(*place) for place in PLACES]
    features, labels, found, batch = with_outputs_at(tuned, examples)
    assert len(features) > len(PLACES)
    assert batch["mask"].shape[-1] <= 40
    inside = set()
    for feature, ends, there in zip(features, labels.tolist(), batch["answerable"], strict=True):
        answer = examples[feature.text].label
        whole = feature.window[0][0] <= answer.begin and feature.window[-1][1] >= answer.end
        assert [bool(there[end]) for end in ends] == [whole, whole]  # else a special token
        inside |= {feature.text} if whole else set()
    assert len(inside) >= len(PLACES) - 2  # of many tokens each, where tokens are bytes
    assert {number: found[number] for number in inside} == {number: PLACES[number][1] for number in inside}
    with torch.no_grad():
        outputs = tuned.eval()(batch)[0]
    assert outputs.shape == (len(features), batch["mask"].shape[-1], 2)
    assert torch.isfinite(F.cross_entropy(outputs, labels))


def test_a_question_takes_half_of_the_positions_at_most(pretrained: Path) -> None:
    encoder = pipeline.encoders.load(pretrained / "encoder")
    settings = options(name="span", pairs=True, columns={}, max_length=23)
    tuned = FineTunedModel(encoder, labels=["begin", "end"], options=settings)
    features = tuned.features([("what is it ? " * 30, "some words of a text " * 5), ("why", "")])
    assert [len(one.ids[0]) for one in features[:-1]] == [10] * (len(features) - 1)
    assert all(one.was_cut and len(one) <= 20 for one in features[:-1])
    assert (features[-1].ids[1], features[-1].was_cut) == ([], False)
    answers = tuned.predict([("what is it ? " * 30, "  some words"), ("why", "")])
    assert answers[0]["cut"]
    assert "  some words"[answers[0]["begin"] : answers[0]["end"]] == answers[0]["answer"] != ""
    assert (answers[1]["answer"], answers[1]["begin"], answers[1]["end"]) == ("", 0, 0)


def test_texts_are_not_compared_as_vectors(pretrained: Path, tmp_path: Path) -> None:
    task = ["--task", str(write(tmp_path)), "--data", str(tmp_path), "--from", str(pretrained), "--data.epochs=1"]
    with pytest.raises(
        UserError, match="pair is compared, which this task's head does not read: set joined or attended"
    ):
        run("finetune", *task, "--model.recipe.pair=compared", "--out", "run")
    with pytest.raises(UserError, match=r"data\.cut is for texts of one label; a text is read in windows"):
        run("finetune", *task, "--data.cut=tail", "--out", "run")


# ---------------------------------------------------------------------- what is learned


@pytest.mark.parametrize("model", ["bert", "elmo"])
def test_answers_are_learned_predicted_and_shown(
    model: str, toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read as one sequence, and, by an encoder that reads texts one by one, token by token."""
    task, out = write(tmp_path), tmp_path / "run"
    flags = ["--data.epochs=20", "--precision=32-true", "--learning-rate", "3e-3", "--validations=2"]
    flags += ["--task", str(task), "--data", str(tmp_path), "--from", str(toys(model) / "encoder")]
    run("finetune", "--model", model, *flags, "--out", str(out))
    end = figures(out)
    assert end["test/answer_f1"] > 0.8 > end["baseline/closest_sentence"]  # without the question: 0.5
    assert end["test/answer_f1"] >= end["test/exact_match"]
    said = capsys.readouterr().out
    assert "test answer F1 " in said
    assert f"pairs are {'joined' if model == 'bert' else 'attended'}" in said
    assert_plot(out / "questions.png")
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["text"][1][line["begin"] : line["end"]] == line["answer"]
    text = "we saw the sea green bird"
    (tmp_path / "new.csv").write_text(f'question,context\nwhat color?,"{text}"\nwhat animal?,"{text}"\n')
    run("predict", "--from", str(out), "--data", str(tmp_path / "new.csv"), "--out", str(tmp_path / "out.csv"))
    answers = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["predicted_answer"] for row in answers] == ["green", "bird"]
    assert text[int(answers[0]["predicted_begin"]) : int(answers[0]["predicted_end"])] == "green"
    assert 0 < float(answers[0]["probability"]) <= 1
    run("score", "--from", str(out), "--task", str(task), "--data", str(tmp_path), "--out", str(tmp_path / "own.json"))
    assert json.loads((tmp_path / "own.json").read_text())["answer_f1"] == pytest.approx(end["test/answer_f1"])
    run("report", "--from", str(out))
    assert "answers have no right word" in (out / "report.html").read_text() or end["test/answer_f1"] == 1


@pytest.mark.parametrize(
    ("model", "theirs"), [("bert", "BertForQuestionAnswering"), ("gpt", "GPT2ForQuestionAnswering")]
)
def test_it_is_the_head_of_transformers(model: str, theirs: str, toys: Callable[[str], Path], tmp_path: Path) -> None:
    encoder: Encoder = pipeline.encoders.load(toys(model) / "encoder")
    tuned = FineTunedModel(
        encoder, labels=["begin", "end"], options=options(name="span", pairs=True, columns={}, max_length=40)
    ).eval()
    torch.nn.init.normal_(tuned.head.classifier.weight)
    tuned.save(tmp_path / "model", card="")
    other, report = transformers.AutoModelForQuestionAnswering.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert type(other).__name__ == theirs
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    examples = [example("one small text", "small text")]
    features, labels, _, batch = with_outputs_at(tuned, examples)
    assert batch["mask"].all()
    names = {"token_type_ids": batch["token_type_ids"]} if "token_type_ids" in batch else {}
    with torch.no_grad():
        expected = other.eval()(batch["input_ids"], **names, start_positions=labels[:, 0], end_positions=labels[:, 1])
        outputs = tuned(batch)[0]
    torch.testing.assert_close(outputs[..., 0], expected.start_logits, rtol=0, atol=1e-4)
    torch.testing.assert_close(outputs[..., 1], expected.end_logits, rtol=0, atol=1e-4)
    loss = tuned.head.loss(outputs, labels)
    assert float(loss.sum) / loss.count == pytest.approx(float(expected.loss), rel=1e-4)
    again = pipeline.load(tmp_path / "model")
    assert again.predict([("what?", "one small text")]) == tuned.predict([("what?", "one small text")])
    assert len(features) == 1


# ---------------------------------------------------------------------- how answers are read and scored


TEXT = " The red dog saw the red cat."


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ({"text": ["red cat", "cat"], "answer_start": [21, 25]}, Answer(20, 27, ["red cat", "cat"])),
        (
            [{"text": "red cat", "answer_start": 21}, {"text": "cat", "answer_start": 25}],
            Answer(20, 27, ["red cat", "cat"]),
        ),
        ({"text": "red cat", "answer_start": 21}, Answer(20, 27, ["red cat"])),
        ({"text": [" red cat"], "answer_start": [20]}, Answer(20, 27, ["red cat"])),
        ("red", Answer(4, 7, ["red"])),
        (" red ", Answer(4, 7, ["red"])),
        ("at", Answer(25, 27, ["at"])),  # a part of a word, where it is no word
        ({"text": ["red cat", None, " "], "answer_start": [21.0, 0, 0]}, Answer(20, 27, ["red cat"])),
        (["dog", "dog"], Answer(8, 11, ["dog"])),
    ],
)
def test_how_answers_are_read(value: Any, wanted: Answer) -> None:
    found = Questions().example(("a.jsonl, line 1", {"question": "what?", "context": TEXT, "answers": value}))
    assert found.label == wanted
    assert found.text[1][wanted.begin : wanted.end] == wanted.texts[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"text": ["red cat"], "answer_start": [3]}, "line 1 has the answer 'red cat', which is not in the text at"),
        ({"text": ["red cat"], "answer_start": ["x"]}, "which is not in the text at character x"),
        ("Red", "which is not in the text in this case"),
        ({"text": ["red", "nowhere"], "answer_start": [5, 6]}, "has the answer 'nowhere', which is not in the text at"),
        ({"text": 1905, "answer_start": 5}, "has the answer '1905', which is not in the text at character 5"),
        ({"text": ["red"], "answer_start": []}, "as its answers; answers are text"),
        ([{"answer": "red"}], "as its answers; answers are text"),
        ("horse", "line 1 has the answer 'horse', which is not in the text\\.$"),
    ],
)
def test_answers_that_are_not_in_the_text(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Questions().label(("a.jsonl, line 1", {"question": "what?", "context": TEXT, "answers": value}))


def test_words_come_before_parts_of_words_and_a_column_says_more() -> None:
    row = {"question": "what?", "context": "a hundred red cats, red dogs", "answers": "red"}
    assert Questions().label(("row", row))[:2] == (10, 13)
    assert Questions().label(("row", {**row, "answer_start": "20"}))[:2] == (20, 23)
    several = {**row, "answers": ["red", "dogs"], "answer_start": [20, 24]}  # side by side
    assert Questions().label(("row", several)) == Answer(20, 23, ["red", "dogs"])
    with pytest.raises(UserError, match="which is not in the text at character 3"):
        Questions().label(("row", {**several, "answer_start": [3, 24]}))
    with pytest.raises(UserError, match="which is not in the text at character 21"):
        Questions().label(("row", {**row, "answer_start": 21}))


def test_the_files_of_squad_are_read(tmp_path: Path) -> None:
    answers = [{"text": "red", "answer_start": 4}]
    asked = [{"id": "1", "question": "what color?", "answers": answers}, {"question": "who?", "answers": []}]
    content = {"version": "1.1", "data": [{"title": "Dogs", "paragraphs": [{"context": "the red dog", "qas": asked}]}]}
    (tmp_path / "train-v1.1.json").write_text(json.dumps(content))
    [(_, first), (_, second)] = read_rows(tmp_path / "train-v1.1.json")
    assert Questions().label(("row", first)) == Answer(4, 7, ["red"])
    assert Questions().is_ignored(("row", second))
    content["data"][0]["paragraphs"][0].pop("context")  # type: ignore[index]
    (tmp_path / "train-v1.1.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="has paragraphs, as the files of SQuAD, but not all with a context and qas"):
        read_rows(tmp_path / "train-v1.1.json")


CLASSES = {"question": "is it so?", "passage": "a red dog", "answer": "red"}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"Question": "what?", "Passage": f"it is n{n}", "answer_text": f" n{n} "} for n in range(60)], True),
        ([{"question": "what?", "text": "a red dog", "answers": {"text": ["red"], "answer_start": [2]}}] * 9, True),
        ([{"question": "what?", "text": "a red dog", "answers": {"text": [None], "answer_start": [None]}}] * 9, False),
        ([{"question": "what?", "text": "a red dog", "answers": 1912}] * 9, False),
        ([{**CLASSES, "answer": "abcd"[n % 4]} for n in range(60)], False),
        ([{**CLASSES, "passage": f"r{n}", "answer": f"r{n}", "label": "yn"[n % 2]} for n in range(60)], False),
        ([{**CLASSES, "answer": None}] * 9, False),
        ([{"question": "is it so?", "context": f"a red dog {n}", "answers": "red"} for n in range(60)], True),
    ],
)  # fmt: skip
def test_which_tables_are_guessed(rows: list[dict[str, Any]], found: bool) -> None:
    assert (Questions.guess_columns(Table(rows)) is not None) == found


@pytest.mark.parametrize("wanted", [0.25, 7])
def test_parts_share_no_text(wanted: float, tmp_path: Path) -> None:
    with (tmp_path / "all.jsonl").open("w") as file:
        for row in rows(60, seed=3):
            file.write(json.dumps(row) + "\n")
            file.write(json.dumps({**row, "question": "and what else?"}) + "\n")
    parts = labeled.read(Questions(valid_rows=wanted, test_rows=wanted), str(tmp_path / "all.jsonl")).parts
    texts = [{one.text[1] for one in parts[split].examples} for split in ("train", "valid", "test")]
    assert all(texts)
    assert sum(map(len, texts)) == len(set().union(*texts))


def test_a_part_without_a_usable_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text(json.dumps({"question": "what?", "context": "a dog", "answers": []}) + "\n")
    with pytest.raises(UserError, match="no row that can be used: all are left out, without an answer"):
        labeled.read(Questions(), str(tmp_path / "all.jsonl"))


def test_every_answer_is_whole_in_a_window() -> None:
    """Of LONGEST tokens, or of a half of a window with few."""
    assert [range(0)[part] for part in windows(0, 20)] == [range(0)]
    for tokens, room in ((1, 20), (20, 20), (21, 20), (500, 100), (129, 64), (7, 2)):
        found = [range(tokens)[part] for part in windows(tokens, room)]
        assert max(map(len, found)) <= room
        longest = min(LONGEST, room // 2 + 1, tokens)
        for begin in range(tokens - longest + 1):
            assert any(begin in part and begin + longest - 1 in part for part in found)
        assert len(found) == 1 or found[-1].stop == tokens > found[-2].stop  # and no window is in another


def test_questions_without_an_answer_are_left_out(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = write(tmp_path)
    empty: list[Any] = [{"text": [], "answer_start": []}, [], None, ""]
    lines = [{**row, "answers": value} for row, value in zip(rows(4, seed=1), empty, strict=True)]
    with (tmp_path / "train.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    where = ["--task", str(task), "--data", str(tmp_path), "--from", str(pretrained)]
    run("finetune", *where, "--out", "run", "--data.epochs=1", "--trainer.max_steps=1", "--precision=32-true")
    assert "train 240 rows (4 left out, without an answer)" in capsys.readouterr().out.replace("\n", " ")


def test_the_questions_of_a_text_stay_together() -> None:
    task, text = Questions(), "the red dog"
    first, second = (
        task.example(("row", {"question": f"what {kind}?", "context": text, "answers": answer}))
        for kind, answer in (("color", "red"), ("animal", "dog"))
    )
    assert task.group(first) == task.group(second)
    assert first.content != second.content


def test_scores_are_those_of_squad() -> None:
    """Case, marks and articles do not count, and the best answer does."""
    rng, vocabulary = random.Random(0), ["the", "a", "Red", "red,", "dog", "cat's", "(cat)", "an", "sea"]
    for _ in range(100):
        said, *right = (" ".join(rng.choices(vocabulary, k=rng.randint(1, 4))) + " house" for _ in range(3))
        answers = {"text": right, "answer_start": [0, 0]}
        theirs = squad([{"prediction_text": said, "id": ""}], [{"answers": answers, "id": ""}])  # type: ignore[dict-item]
        assert score(right, said) == pytest.approx((float(theirs["f1"]) / 100, float(theirs["exact_match"]) / 100))
    assert score(["Denver Broncos"], "the denver broncos!") == (1.0, 1.0)
    assert score(["Santa Clara", "Levi's Stadium in Santa Clara"], "Levi's Stadium") == (pytest.approx(4 / 7), 0.0)
    assert score(["gold"], "silver") == (0.0, 0.0)
    gold, said = [Answer(0, 0, ["gold"]), Answer(0, 0, ["the red dog"])], [Answer(0, 0, ["x"]), Answer(0, 0, ["red"])]
    found = Questions().scores(gold, said).figures
    assert found["answer_f1"] == pytest.approx((0 + 2 / 3) / 2)
    assert found["standard_error"] == pytest.approx(1 / 3)
    assert found["exact_match"] == 0


def test_questions_of_a_text_err_together() -> None:
    """The standard error is over texts: two answers of one that are wrong are one mistake."""
    rows = [{"question": "q?", "context": text, "answers": "sea"} for text in ("the sea", "a sea", "by the sea")]
    gold = [Questions().label(("row", row)) for row in rows for _ in range(2)]
    said = [Answer(0, 0, [text]) for text in ("sea", "sea", "sea", "sea", "x", "x")]
    error = Questions().scores(gold, said).figures["standard_error"]
    assert error == pytest.approx(np.std([1, 1, 0], ddof=1) / 3**0.5)
    assert Questions().scores(gold[-2:], said[:1] + said[-1:]).figures["standard_error"] == 0  # of one text: not known


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("वह अब दिल्ली में रहता", "दिल्ली में"),
        ("वह रहता दिल्ली में", "दिल्ली में"),
        ("l'e\u0301te\u0301 vient", "l'e\u0301te\u0301"),
        ("ราคา ห้าบาทที่ นี่", "ห้าบาทที่"),
        ("we saw Rome\u200b", "Rome\u200b"),
        ("\u200bRome saw us", "\u200bRome"),
        ("\u200b\nRome saw us", "Rome"),
    ],
)
def test_accents_that_a_tokenizer_drops_are_parts_of_answers(text: str, answer: str) -> None:
    tokenizer = WordPiece.train([text] * 5, vocab_size=100, lowercase=True)
    sizes: Any = {"size": 16, "layers": 1, "heads": 2, "inner_size": 32, "max_length": 64}
    bert = Bert(tokenizer, **sizes, dropout=0.0, attention_dropout=0.0)
    gold = Answer(text.index(answer), text.index(answer) + len(answer), [answer])
    features = SpanHead.features(bert, [("q", text)], max_length=64, cut="head")
    inputs = SpanHead.inputs(bert, features)
    [[first, last]] = SpanHead.collate(bert, [gold], features)[0].tolist()
    sure = torch.full((1, inputs["mask"].shape[1], 2), -20.0)
    sure[0, first, 0] = sure[0, last, 1] = 20
    head = SpanHead(bert, outputs=2, options=options(name="span"))
    assert SpanHead.join(head.decode(sure, inputs), features, ("q", text)).label == gold


def test_words_end_behind_their_marks() -> None:
    """Without a given place, an answer is a word before it is a part of one."""
    known = [("दिनों में एक दिन", "दिन", 13), ("resume\u0301 or resume", "resume", 11), ("می\u200cخواهم می", "می", 9)]
    for text, answer, at in known:
        assert Questions().label(("row", {"question": "q", "context": text, "answers": answer})).begin == at


def test_what_needs_no_model() -> None:
    assert (
        closest_sentence("Who saw the cat?", "It was red. The dog saw a cat. A cat slept for long.")
        == "The dog saw a cat."
    )
    assert [asking(text) for text in ("In which year?", "How many", "Name it.")] == ["which", "how", "other"]
