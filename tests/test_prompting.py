"""Scores of texts equal those of transformers; prompts are filled, checked and reported."""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertForPreTraining, GPT2LMHeadModel

import pipeline
from pipeline.errors import UserError
from pipeline.inspection.show import token_scores
from pipeline.models import generation
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.models.layers.spelled_words import collate_words
from pipeline.prompting import Request, causal, log_likelihoods, score
from pipeline.prompting import evaluate as evaluating
from pipeline.prompting.evaluate import answer, check, evaluate
from pipeline.prompting.few_shot import BETWEEN, with_examples
from pipeline.prompting.metrics import metrics_of
from pipeline.prompting.report import metrics_of_run, not_better_than_guessing, tables
from pipeline.prompting.requests import beginning
from pipeline.prompting.run import read
from pipeline.prompting.scoring import scorer_of
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.spelled_words import SpelledWords
from pipeline.tokenization.whole_words import WholeWords
from tasks.multilabel import MultiLabel
from tasks.prompted import Prompted
from tasks.prompts import Prompt, Question, fill
from tasks.sentiment import Sentiment
from tests.conftest import REPOSITORY, assert_plot, command, figures, run

TEXTS = ["a small text for a small tokenizer , and words", "the dog saw a cat . the cat saw a dog .", "was it good"] * 9
PAIRS = [
    ("the dog saw", " a cat"),
    ("the dog saw", " a small text ."),
    ("the dog saw", " it"),
    ("", "the dog saw a cat"),
    ("", "the cat"),
    ("a small text ", "for a dog"),  # the space belongs to what follows
    ("words and words and words and words and", " a"),
    ("words and words and words and words and", " the small dog"),
    ("the cat saw " * 20, " a dog"),  # longer than the encoder
    ("it", " zqxj" * 12),  # which follows is alone longer than that
]


@pytest.fixture(scope="module")
def gpt() -> Gpt:
    torch.manual_seed(0)
    sizes = {"size": 16, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 24}
    return Gpt(ByteBpe.train(TEXTS, vocab_size=290), **sizes, dropout=0.0, attention_dropout=0.0).eval()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def elmo() -> Elmo:
    torch.manual_seed(0)
    tokenizer = SpelledWords.train(TEXTS, vocab_size=20, lowercase=False)
    sizes: dict[str, Any] = {"character_size": 4, "filters": [[1, 8], [2, 8]], "highways": 1, "projection": 6}
    return Elmo(tokenizer, **sizes, cell=8, layers=2, max_length=40, dropout=0.0, cutoffs=[8]).eval()


def test_gpt_equals_transformers_under_the_rules_of_lm_eval(gpt: Gpt, tmp_path: Path) -> None:
    gpt.save(tmp_path / "gpt")
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt").eval()
    expected = []
    for context, continuation in PAIRS:
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole, before = gpt.tokenizer.encode_batch([context + continuation, context])
        target = whole[len(before) :]
        ids = [*(before or [gpt.tokenizer.id("eos")]), *target][-(gpt.max_length + 1) :]
        with torch.no_grad():
            logits = theirs(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
        scored = target[-gpt.max_length :]
        expected.append(float(logits[-len(scored) :].gather(-1, torch.tensor(scored)[:, None]).sum()))
    assert log_likelihoods(gpt, PAIRS) == pytest.approx(expected, abs=1e-4)
    alone = [log_likelihoods(gpt, [pair])[0] for pair in PAIRS]
    assert alone == pytest.approx(expected, abs=1e-4)
    shared = [("the dog saw a cat . " + context, continuation) for context, continuation in PAIRS[:3]]
    assert log_likelihoods(gpt, shared) == pytest.approx([log_likelihoods(gpt, [p])[0] for p in shared], abs=1e-4)
    found = score(gpt, [Request(*pair) for pair in PAIRS])
    assert [one.cut > 0 for one in found] == [False] * 8 + [True] * 2
    assert found[-1].tokens == gpt.max_length
    assert found[0].tokens == len(gpt.tokenizer.encode_batch([" a cat"])[0])


def test_greedy_is_what_the_model_would_say(gpt: Gpt) -> None:
    prompts, said = ("the dog", "the cat", "it was", "a small", "words"), []
    for prompt, ids in zip(prompts, gpt.tokenizer.encode_batch(prompts), strict=True):
        tokens = gpt.generate(ids, tokens=2, temperature=0, top_k=0, top_p=1.0, seed=0)
        text = gpt.tokenizer.decode(tokens)
        if gpt.tokenizer.encode_batch([prompt + text])[0] == [*ids, *tokens]:  # the text is read as it was said
            said.append(Request(prompt, text))
    assert said
    assert all(found.greedy for found in score(gpt, said))
    assert not score(gpt, [Request("the dog", " a small text for it")])[0].greedy


@pytest.mark.parametrize("within_word", [True, False])
def test_bert_is_pseudo_log_likelihood(pretrained: Path, within_word: bool) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    assert isinstance(bert, Bert)
    theirs = BertForPreTraining.from_pretrained(pretrained / "encoder").eval()
    requests = [
        Request("", "Unbelievably good soup."),
        Request("The soup was", " unbelievable"),
        Request("We ", "detested", " the soup."),
    ]
    tokenizer, mask = bert.tokenizer, bert.tokenizer.id("mask")
    for request, found in zip(requests, score(bert, requests, within_word=within_word), strict=True):
        left, whole = tokenizer.encode_batch([request.left, request.left + request.target + request.right])
        right = tokenizer.encode_batch([request.right])[0]
        first, last = len(left), len(whole) - len(right)
        pieces = [tokenizer.backend.id_to_token(token) for token in whole]
        total = 0.0
        for place in range(first, last):
            hidden = list(whole)
            hidden[place] = mask
            later = place + 1
            while within_word and later < last and pieces[later].startswith("##"):
                hidden[later] = mask
                later += 1
            ids = torch.tensor([[tokenizer.id("cls"), *hidden, tokenizer.id("sep")]])
            with torch.no_grad():
                total += float(theirs(ids).prediction_logits[0, place + 1].log_softmax(-1)[whole[place]])
        assert found.total == pytest.approx(total, abs=1e-3)
        assert found.tokens == last - first
        assert any(piece.startswith("##") for piece in pieces[first:last])


def test_elmo_sums_both_directions_of_whole_texts(elmo: Elmo) -> None:
    text = b"the dog saw a unicorn".split()
    batch = collate_words([[b"\x00<S>", *text, b"\x00</S>"]], elmo.tokenizer.outputs, max_characters=50)
    with torch.no_grad():
        scores = elmo.log_probs(batch)[0]
    [whole, after] = score(elmo, [Request("", "the dog saw a unicorn"), Request("the dog saw", " a unicorn")])
    assert whole.total == pytest.approx(float(scores[1:, 0].sum() + scores[:-1, 1].sum()), abs=1e-4)
    assert after.total == pytest.approx(float(scores[4:6, 0].sum()), abs=1e-4)
    assert after.unknown == ("unicorn",)


def test_an_elmo_says_the_likeliest_word(elmo: Elmo) -> None:
    batch = collate_words(
        [[b"\x00<S>", *b"the dog saw".split(), b"\x00</S>"]], elmo.tokenizer.outputs, max_characters=50
    )
    with torch.no_grad():
        best = int(elmo.logits(elmo(batch).layers[-1])[0, 3, 0].argmax())
    words = [word.decode() for word, number in elmo.tokenizer.outputs.items() if number > 2]
    found = score(elmo, [Request("the dog saw", f" {word}") for word in [*words, "unicorn"]])
    numbers = [elmo.tokenizer.outputs[word.encode()] for word in words]
    assert [one.greedy for one in found] == [*[number == best for number in numbers], False]


def test_an_unknown_word_is_never_the_right_one() -> None:
    """Of a causal model of whole words; one of pieces knows all."""
    texts = ["the cat saw one", "the cat saw two"] * 9
    words = WholeWords.train(texts, vocab_size=8, lowercase=False, min_frequency=10)
    sizes = {"size": 16, "layers": 1, "heads": 2, "inner_size": 32, "max_length": 16}
    model = Gpt(words, **sizes, dropout=0.0, attention_dropout=0.0).eval()  # type: ignore[arg-type]
    asked = [Request("the cat", " saw", ""), Request("the cat saw", " twelve", "")]
    known, unknown = score(model, asked)
    assert (known.unknown, unknown.unknown) == ((), ("[UNK]",))
    assert not unknown.greedy
    with pytest.raises(UserError, match="'' cannot be scored: it has no tokens"):
        log_likelihoods(model, [("the cat", "")])
    for wrong in (("a",), ("a", "b", "c"), "ab"):
        with pytest.raises(UserError, match="Pairs come in a list"):
            log_likelihoods(model, [wrong])  # type: ignore[list-item]
    prompt = Prompt("choice", "{text}", {"no": " unicorn", "yes": " cat"})
    question = fill(prompt, {"text": "a"}, ["no", "yes"], "no")
    with pytest.raises(UserError, match="does not predict all of 'unicorn', of label no"):
        check(scorer_of(model), prompt, 1, [question], ["no", "yes"])


def test_rules(gpt: Gpt) -> None:
    prompt = Prompt("choice", "{text} was it", {"no": " small", "yes": " a dog"})
    questions = [fill(prompt, {"text": text}, ["no", "yes"], "yes") for text in ("the cat", "words")]
    answers = answer(scorer_of(gpt), prompt, questions, [])
    sums = [log_likelihoods(gpt, [(f"{t} was it", " small"), (f"{t} was it", " a dog")]) for t in ("the cat", "words")]
    domain = log_likelihoods(gpt, [("was it", " small"), ("was it", " a dog")])
    free = []
    for text in ("N/A was it", "was it", "[MASK] was it"):
        p = [math.exp(nats) for nats in log_likelihoods(gpt, [(text, " small"), (text, " a dog")])]
        free.append([share / sum(p) for share in p])
    mean = [sum(column) / 3 for column in zip(*free, strict=True)]
    tokens = [len(ids) for ids in gpt.tokenizer.encode_batch([" small", " a dog"])]
    for one, totals in zip(answers, sums, strict=True):
        p = [math.exp(nats) for nats in totals]
        expected = {
            "sum": totals,
            "per_token": [totals[0] / tokens[0], totals[1] / tokens[1]],
            "per_character": [totals[0] / 5, totals[1] / 5],
            "per_byte": [totals[0] / 5, totals[1] / 5],
            "pmi": [totals[0] - domain[0], totals[1] - domain[1]],
            "calibrated": [math.log(p[k] / sum(p) / mean[k]) for k in range(2)],
        }
        for rule, values in expected.items():
            assert one.scores[rule] == pytest.approx(values, abs=1e-4), rule
    result = metrics_of(answers, placed=True)
    assert (result["chance"], result["majority"]) == (0.5, 1.0)
    assert result["chosen_0"] + result["chosen_1"] == pytest.approx(1)


def test_the_prior_of_pmi_has_the_words_of_the_prompt(gpt: Gpt) -> None:
    """`because` and `therefore` are no field of the row (Holtzman et al. 2021, COPA)."""
    words = {"question": {"cause": " was", "effect": " saw"}}
    prompt = Prompt("choice", "{text}{question}", [" {one}", " {two}"], gold="label", values=words)
    rows = [{"text": "the cat", "one": "small", "two": "it", "label": 0, "question": q} for q in ("cause", "effect")]
    answers = answer(scorer_of(gpt), prompt, [fill(prompt, row, [], None) for row in rows], [])
    for one, before in zip(answers, ("was", "saw"), strict=True):
        prior = log_likelihoods(gpt, [(before, " small"), (before, " it")])
        expected = [a - b for a, b in zip(one.scores["sum"], prior, strict=True)]
        assert one.scores["pmi"] == pytest.approx(expected, abs=1e-4)


def test_a_score_is_divided_by_the_length_of_what_was_scored(gpt: Gpt, elmo: Elmo, pretrained: Path) -> None:
    """GPT and ELMo score what is behind the candidate too, BERT the candidate alone."""
    bert = pipeline.encoders.load(pretrained / "encoder")
    prompt = Prompt("cloze", "{text} was [MASK] , the dog saw", {"no": "a", "yes": "the"})
    question = fill(prompt, {"text": "it"}, ["no", "yes"], "yes")
    for encoder, behind in ((gpt, " , the dog saw"), (elmo, " , the dog saw"), (bert, "")):
        [one] = answer(scorer_of(encoder), prompt, [question], [])
        expected = [one.scores["sum"][i] / len(word + behind) for i, word in enumerate(("a", "the"))]
        assert one.scores["per_character"] == one.scores["per_byte"] == pytest.approx(expected)


def test_all_candidates_of_a_question_see_the_same_examples(gpt: Gpt) -> None:
    """Room is for the candidate with the most tokens, which may have fewer letters."""
    few, many = " small", " zqxj"
    assert len(few) > len(many)
    assert [len(tokens) for tokens in gpt.tokenizer.encode_batch([few, many])] == [1, 5]
    prompt = Prompt("choice", "{text}", {"no": few, "yes": many})
    ask = [fill(prompt, {"text": "it"}, ["no", "yes"], "yes")]
    for size in range(1, 14):
        shown = [fill(prompt, {"text": "a" + " cat" * size}, ["no", "yes"], "no")]
        [question] = with_examples(scorer_of(gpt), ask, shown)
        scored = score(gpt, [Request(question.left, candidate) for candidate in question.candidates])
        assert [one.cut for one in scored] == [0, 0]


def test_candidates_that_differ_by_row_are_not_calibrated(gpt: Gpt) -> None:
    prompt = Prompt("choice", "it was", {"no": " {x}", "yes": " good"})
    rows = [fill(prompt, {"x": word}, ["no", "yes"], "yes") for word in ("a cat", "the dog")]
    assert all("calibrated" not in one.scores for one in answer(scorer_of(gpt), prompt, rows, []))
    assert "calibrated" in answer(scorer_of(gpt), prompt, rows[:1], [])[0].scores


def test_what_is_right_of_an_overlong_candidate_is_not_scored(pretrained: Path) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    long = "the " * 39 + "garden"
    [one] = score(bert, [Request("", long, " ." * 20)])
    assert one.cut > 0
    assert one.tokens == len(bert.tokenizer.encode_batch([long])[0]) - one.cut
    with pytest.raises(UserError, match="cannot be scored: the 80 tokens behind it fill a row"):
        score(bert, [Request("", "garden", " ." * 80)])


def test_what_answers_are_measured_by_has_the_same_words_and_examples(pretrained: Path) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    prompt = Prompt("cloze", "{text} we were [MASK].", {"no": "angry", "yes": "happy"})
    questions = [fill(prompt, {"text": "The soup was good."}, ["no", "yes"], "yes")]
    shown = [fill(prompt, {"text": "It rained."}, ["no", "yes"], "no")]
    for examples, before in (([], ""), (shown, "It rained. we were angry." + BETWEEN)):
        asked = with_examples(scorer_of(bert), questions, examples)
        [found] = answer(scorer_of(bert), prompt, asked, examples)
        empty, said = (
            [score(bert, [Request(before + text, word, ".")])[0].total for word in ("angry", "happy")]
            for text in ("we were ", "N/A we were ")
        )
        sums = found.scores["sum"]
        assert found.scores["pmi"] == pytest.approx([a - b for a, b in zip(sums, empty, strict=True)], abs=1e-4)
        shares = [[math.exp(nats) / sum(map(math.exp, row)) for nats in row] for row in (said, empty)]
        mean = [sum(column) / 2 for column in zip(*shares, strict=True)]
        expected = [math.exp(a) / sum(map(math.exp, sums)) / p for a, p in zip(sums, mean, strict=True)]
        assert [math.exp(value) for value in found.scores["calibrated"]] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("shots", "said"), [(0, "with 0 shots 0.4000"), (1, "with 1 shot 0.4000")])
def test_a_warning_names_the_shots(shots: int, said: str) -> None:
    parts: Any = [SimpleNamespace(shots=shots, metrics={"accuracy": 0.4, "chance": 0.5, "majority": 0.3})]
    assert not_better_than_guessing(parts) == f"Warning: {said} is not better than the baseline chance (0.5000)."


def test_zeroshot_as_a_command(pretrained: Path, tmp_path: Path) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), "--limit", "20"]
    run("zeroshot", *where, "--shots", "0,2")
    end = figures(tmp_path / "run")
    assert "--shots 0,2 --limit 20" in (tmp_path / "run/command.txt").read_text()
    assert end["zeroshot/rows"] == 20
    names = {"accuracy", "accuracy_pmi", "accuracy_calibrated", "standard_error", "chance", "majority", "accuracy_min"}
    assert {f"zeroshot/{name}" for name in names} <= set(end)
    assert {"zeroshot/template_3/accuracy", "zeroshot/shots_2/accuracy"} <= set(end)
    rows = [json.loads(line) for line in (tmp_path / "run/predictions.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 3 * 20
    first = [row for row in rows if row["shots"] == 0][:20]
    assert sum(row["right"] for row in first) / 20 == end["zeroshot/template_1/accuracy"]
    assert all(row["choice"] == row["log_likelihoods"].index(max(row["log_likelihoods"])) for row in rows)
    shown = next(row for row in rows if row["shots"] == 2)
    assert shown["context"].count("\n\n") <= 2
    assert_plot(tmp_path / "run/shots.png")
    with pytest.raises(UserError, match="holds a finished run; set --overwrite"):  # there is nothing to resume
        run("zeroshot", *where)
    for wrong, message in (
        (["--shots", "0,5000"], "--shots 5000 needs as many"),
        (["--unigram", "nowhere.txt"], "no corpus at nowhere.txt"),
        (["--data", "nowhere"], "no task data at nowhere"),
    ):
        with pytest.raises(UserError, match=message):
            run("zeroshot", *where, "--overwrite", *wrong)
    assert figures(tmp_path / "run") == end


def test_elmo_reads_a_prompt_of_fields_alone_forward(elmo: Elmo) -> None:
    """Its prior too, where nothing stands before the candidate."""
    prompt = Prompt("choice", "{goal}", ["{a}", "{b}"], gold=0)
    row = {"goal": "the dog saw", "a": " a cat", "b": " a small text ."}
    [[found]] = evaluate(elmo, Prompted(prompts=[prompt]), [("row 1", row)]).values()
    scores = found.answers[0].scores
    alone = [one.total for one in score(elmo, [Request("", row[name]) for name in "ab"], both_ways=False)]
    assert scores["pmi"] == pytest.approx([total - prior for total, prior in zip(scores["sum"], alone, strict=True)])


def test_the_groups_are_of_the_fewest_shots(elmo: Elmo) -> None:
    prompts = [Prompt("choice", f"the {{animal}} {verb}", {"no": " dog", "yes": " cat"}) for verb in ("saw", "was")]
    task = Prompted(prompts=prompts, labels={"0": "no", "1": "yes"}, groups=["animal"])
    rows = [(f"row {n}", {"animal": name, "label": n % 2}) for n, name in enumerate(["dog", "cat", "text", "word"])]
    typed, sorted_ = (evaluate(elmo, task, rows, shown) for shown in ({2: rows[:2], 0: []}, {0: [], 2: rows[:2]}))
    text, metrics = tables(task, rows, typed), metrics_of_run(task, rows, typed)
    assert text == tables(task, rows, sorted_)
    for name in ("dog", "cat", "text", "word"):
        assert f"  {name:<45} {metrics[f'zeroshot/animal/{name}']:.3f}" in text
    groups = [value for key, value in metrics.items() if key.startswith("zeroshot/animal/")]
    assert sum(groups) / len(groups) == pytest.approx(metrics["zeroshot/accuracy"])  # of all templates, as the whole


def test_what_holds_of_one_template_is_said_of_that_one(gpt: Gpt) -> None:
    """Rules, cut texts and baselines of all templates are shown, not those of the first alone."""
    long = "the dog saw a cat . " * 10
    rows = [(f"row {n}", {"good": " a cat", "bad": " it was", "before": long, "right": n % 2}) for n in range(4)]
    two = ["{good}", "{bad}"]
    prompts = [Prompt("pair", candidates=two), Prompt("choice", "{before}the dog saw", two, gold=0)]
    task = Prompted(prompts=prompts)
    text = tables(task, rows, found := evaluate(gpt, task, rows))
    pair, choice = (part.metrics for part in found[0])
    assert "accuracy_pmi" not in pair
    assert f"{choice['accuracy_pmi']:.3f}" in text
    assert "pmi" in text
    assert "\n(4 texts were cut on their left in template 2)\n" in text
    assert "majority" not in text  # the right candidate is always the first one: its place means nothing
    assert "majority" not in pair.keys() | choice.keys()
    by_column = Prompted(prompts=[Prompt("choice", "the dog saw", two, gold="right")])
    assert evaluate(gpt, by_column, rows)[0][0].metrics["majority"] == 0.5


def test_groups_of_a_folder(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        pair = {"sentence_good": "The soup was good.", "sentence_bad": "Soup the was.", "UID": name, "field": "syntax"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**pair, "linguistics_term": "order", "pairID": "0"}) + "\n")
    where = ["--from", str(pretrained / "encoder"), "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("The soup was good.\n")
    run("zeroshot", "--task", "blimp", *where, "--unigram", str(tmp_path / "texts"))
    end = figures(tmp_path / "run")
    assert end["baseline/unigram"] == 0.0  # both have the same words but one, and the shorter is likelier
    assert {"zeroshot/UID/one", "zeroshot/UID/two", "zeroshot/linguistics_term/order"} <= set(end)
    assert "pseudo-log-likelihood" in capsys.readouterr().out


def test_what_cannot_be_asked(pretrained: Path, tmp_path: Path, elmo: Elmo) -> None:
    yaml = "data:\n  task:\n    class_path: tasks.sentiment.Sentiment\n    init_args:\n      sample: sentiment\n"
    cases = {
        "": "has no prompts",
        "{shape: choice, text: '{txt} We', candidates: {negative: ' a', positive: ' b'}}": "field 'txt'.*only text, ",
        "{shape: choice, text: '{text}', candidates: {negative: ' a', positive: ' A'}}": "have the same tokens",
        "{shape: choice, text: '{text}', candidates: {negative: ' ', positive: ' b'}}": "empty candidate",
        "{shape: choice, text: '{text.body}', candidates: {negative: ' a', positive: ' b'}}": "has the field text.body",
        "{shape: choice, text: '{0} It', candidates: {negative: ' a', positive: ' b'}}": "a field without a name",
    }
    for number, (prompt, message) in enumerate(cases.items()):
        file = tmp_path / f"task{number}.yaml"
        file.write_text(yaml + (f"      prompts: [{prompt}]\n" if prompt else ""))
        where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / f"run{number}")]
        with pytest.raises(UserError, match=message):
            run("zeroshot", "--task", str(file), *where)
    asked = Prompted(prompts=[Prompt("choice", "{text}", {"no": " a", "yes": " b"})])
    with pytest.raises(UserError, match="a candidate for each label, but this task has no labels"):
        evaluate(elmo, asked, [("row 1", {"text": "a"})])
    asked = Prompted(prompts=[Prompt("choice", "{text}", [" a", " b"], gold="label")])
    with pytest.raises(UserError, match="row 1 cannot be filled into the prompt"):
        evaluate(elmo, asked, [("row 1", {"text": "a", "label": None})])
    prompts = [Prompt("choice", "{text}", {"no": " cat", "yes": " dog"})]
    asked = Prompted(labels={"0": "no", "1": "yes"}, prompts=prompts)
    with pytest.raises(UserError, match=r"row 1 cannot be .*: the label '2' is none of the task's labels\."):
        evaluate(elmo, asked, [("row 1", {"text": "a", "label": 2})])  # of which no candidate is right
    several = MultiLabel(labels={"no": "no", "yes": "yes"}, prompts=prompts)
    for label in ("", "no,yes"):
        with pytest.raises(UserError, match=r"row 1 has [02] labels, and a prompt .* asks for one"):
            evaluate(elmo, several, [("row 1", {"text": "a", "label": label})])
    (tmp_path / "unlabeled").mkdir()
    (tmp_path / "unlabeled/test.tsv").write_text("text\tlabel\nfine\t-1\n")
    task = Sentiment(splits={"test": "test"}, labels={"0": "bad", "1": "good"}, ignore=["-1"])
    with pytest.raises(UserError, match="No row of the task's test part has a label"):
        read(task, str(tmp_path / "unlabeled"), limit=0, with_examples=False)
    prompt = Prompt("choice", "{text}", {"no": " unicorn", "yes": " dog"})
    question = fill(prompt, {"text": "a"}, ["no", "yes"], "no")
    with pytest.raises(UserError, match="does not predict all of 'unicorn', of label no"):
        check(scorer_of(elmo), prompt, 1, [question], ["no", "yes"])
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    for flags, message in (
        (["--shots", "many"], "must be numbers"),
        (["--shots", "1000"], "has 300"),
        (["--task", "copa", "--data", str(tmp_path / "nowhere")], "no task data"),
    ):
        with pytest.raises(UserError, match=message):
            run("zeroshot", *where, *flags)
    (tmp_path / "copa").mkdir()
    (tmp_path / "copa/train.jsonl").write_text("{}\n")
    tuned = command("finetune", "--task", "copa", "--data", str(tmp_path / "copa"), *where)
    assert tuned.returncode == 2
    assert "zeroshot" in tuned.stderr


@pytest.mark.parametrize("family", ["gpt", "elmo", "bert"])
def test_try_shows_what_each_token_costs(family: str, request: pytest.FixtureRequest, pretrained: Path) -> None:
    encoder = pipeline.encoders.load(pretrained / "encoder") if family == "bert" else request.getfixturevalue(family)
    text = "the dog saw a cat"
    lines = token_scores(encoder, text).splitlines()
    total = -float(lines[-1].split()[1])
    if family == "gpt":
        assert total == pytest.approx(log_likelihoods(encoder, [("", text)])[0], abs=0.01)
    elif family == "bert":
        assert total == pytest.approx(score(encoder, [Request("", text)], within_word=False)[0].total, abs=0.01)
    else:
        assert [line.split()[0] for line in lines[1:-1]] == text.split()
        assert total == pytest.approx(score(encoder, [Request("", text)], both_ways=False)[0].total, abs=0.01)


@pytest.mark.parametrize("family", ["gpt", "elmo", "bert"])
def test_what_does_not_fit_leaves_the_candidate(
    family: str, request: pytest.FixtureRequest, pretrained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text behind the candidates is cut at its end, as much for one as for the other."""
    encoder = pipeline.encoders.load(pretrained / "encoder") if family == "bert" else request.getfixturevalue(family)
    prompt = Prompt("cloze", "it was [MASK] . {text}", {"no": "a", "yes": "the"})
    task = Sentiment(labels={"no": "no", "yes": "yes"}, prompts=[prompt])
    rows = [(f"row {n}", {"text": "the dog saw a cat . " * 40, "label": "no"}) for n in range(2)]
    [result] = evaluate(encoder, task, rows)[0]
    assert (result.shortened, result.metrics["ties"], result.metrics["cut"]) == (2, 0, 0)
    assert len(result.answers[0].question.right) > 20
    [short] = evaluate(encoder, task, [("row", {"text": "the dog .", "label": "no"})])[0]
    assert short.shortened == 0


def test_a_text_that_is_longer_than_the_encoder(gpt: Gpt, elmo: Elmo, pretrained: Path) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    for encoder, room in ((gpt, gpt.max_length), (elmo, elmo.max_length - 2), (bert, bert.max_length - 2)):
        [whole] = encoder.tokenize(["the dog saw a cat . " * 60])
        [found] = score(encoder, [Request("", "the dog saw a cat . " * 60)], both_ways=False)
        assert found.tokens == room
        assert found.tokens + found.cut == len(whole)
        part = beginning(encoder, "the dog saw a cat . " * 60, room)
        assert room - 3 < len(encoder.tokenize([part])[0]) <= room
    assert beginning(gpt, "unfathomable", 1) == "unfathomable"  # a word at least


def test_a_candidate_within_a_word_is_refused(elmo: Elmo, pretrained: Path) -> None:
    bert = pipeline.encoders.load(pretrained / "encoder")
    word = next(w for w in bert.tokenizer.backend.get_vocab() if len(w) > 4 and w.isalpha())
    for encoder, request in ((elmo, Request("the do", "g")), (bert, Request(f"it was {word[:2]}", f"{word[2:]} ."))):
        with pytest.raises(UserError, match="needs a space in front"):
            score(encoder, [request])
    with pytest.raises(UserError, match="needs a space after it"):  # its last piece holds what is behind, too
        score(bert, [Request("it was ", word[:2], f"{word[2:]} .")])


def test_equal_candidates_share_a_point(pretrained: Path) -> None:
    """Texts that differ in unknown characters only are the same to an encoder."""
    bert = pipeline.encoders.load(pretrained / "encoder")
    asked = [Question("", texts, "", 0) for texts in (["the ☃ saw", "the ♞ saw"], ["the dog saw", "a cat"])]
    tie, other = answer(scorer_of(bert), Prompt("pair", candidates=["{a}", "{b}"]), asked, [])
    assert (tie.is_tie(), tie.credit("sum")) == (True, 0.5)
    assert (other.is_tie(), other.credit("sum")) == (False, float(other.choice("sum") == 0))


@pytest.mark.parametrize("family", ["gpt", "elmo", "bert"])
def test_each_text_is_tokenized_once(
    family: str, request: pytest.FixtureRequest, pretrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = pipeline.encoders.load(pretrained / "encoder") if family == "bert" else request.getfixturevalue(family)
    prompt = Prompt("cloze", "{text} was [MASK] , the dog saw", {"no": "a", "yes": "the"})
    task = Sentiment(labels={"no": "no", "yes": "yes"}, prompts=[prompt])
    rows = [(f"row {n}", {"text": text, "label": "no"}) for n, text in enumerate(["the dog", "a cat", "it"])]
    tokenized: list[str] = []
    tokenize = type(encoder).tokenize

    def counted(self: Any, texts: list[str]) -> list[Any]:
        tokenized.extend(texts)
        return tokenize(self, texts)

    monkeypatch.setattr(type(encoder), "tokenize", counted)
    evaluate(encoder, task, rows, {0: [], 2: rows[:2]})
    assert len(tokenized) == len(set(tokenized)) > 3


def test_tokens_of_shots_are_forgotten(gpt: Gpt, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept does not grow with the numbers of shots."""
    scorers = []
    monkeypatch.setattr(evaluating, "scorer_of", lambda encoder, **_: scorers.append(scorer_of(encoder)) or scorers[-1])
    prompt = Prompt("choice", "{text} was it", {"no": " a", "yes": " the dog"})
    task = Sentiment(labels={"no": "no", "yes": "yes"}, prompts=[prompt])
    rows = [(f"row {n}", {"text": text, "label": "no"}) for n, text in enumerate(["the dog", "a cat", "it"])]
    for shots in ({0: []}, {1: rows[:1]}, {2: rows[:2], 1: rows[:1], 0: []}):
        assert list(evaluating.evaluate(gpt, task, rows, shots)) == list(shots)
    none, one, all_of_them = (len(scorer.tokens) for scorer in scorers)
    assert one < none + 2  # the example, and the questions without it
    assert all_of_them < none + 3


def test_generation_for_lm_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as by the harness's own models where a task says nothing; an empty stop string stops nothing."""
    parts: dict[str, dict[str, Any]] = {
        "lm_eval": {"simple_evaluate": None},
        "lm_eval.api": {},
        "lm_eval.api.instance": {"Instance": None},
        "lm_eval.api.model": {"LM": object},
        "lm_eval.tasks": {"TaskManager": None},
        "lm_eval.utils": {"get_rolling_token_windows": None, "make_disjoint_window": None},
    }
    for name, content in parts.items():  # the package is an extra
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**content))
    lm_eval, asked = runpy.run_path(str(REPOSITORY / "pipeline/interop/lm_eval.py")), []  # no other test gets this one

    class Model:
        max_length, tokenizer = 1024, SimpleNamespace(decode=lambda ids: "so be it.\nQ: no")

        def tokenize(self, texts: list[str]) -> list[list[int]]:
            return [[1, 2, 3] for _ in texts]

        def generate(self, ids: list[int], *, tokens: int, **how: Any) -> list[int]:
            asked.append(tokens)
            return [4]

    harness = lm_eval["PipelineLM"].__new__(lm_eval["PipelineLM"])
    harness.encoder = Model()
    options: list[dict[str, Any]] = [{}, {"until": ""}, {"until": ["", "\n"], "max_gen_toks": 8}]
    texts = harness.generate_until([SimpleNamespace(args=("why", each)) for each in options])
    assert texts == ["so be it.\nQ: no", "so be it.\nQ: no", "so be it."]
    assert asked == [256, 256, 8]


def test_copies_of_a_state_stay_on_the_device_of_the_model(gpt: Gpt, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def copies(state: Any, count: int, device: torch.device) -> Any:
        devices.append(device)
        return generation.copies(state, count, device)

    monkeypatch.setattr(causal, "copies", copies)
    score(gpt, [Request("the dog saw", word) for word in (" a cat", " it")], both_ways=False)
    assert set(devices) == {gpt.device}
