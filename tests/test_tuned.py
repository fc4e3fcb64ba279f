"""Fine-tuned models: prediction from files, long texts, folders that open in transformers, craft of training."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

import pipeline
from pipeline.errors import UserError
from pipeline.finetuning.features import cut_texts, shorten
from pipeline.finetuning.model import FineTunedModel
from pipeline.finetuning.options import HeadOptions
from pipeline.finetuning.predict_files import form_of, predict
from pipeline.finetuning.words import place_words
from pipeline.models.base import Encoder
from pipeline.models.bert import Bert
from pipeline.models.elmo import Elmo
from pipeline.models.gpt import Gpt
from pipeline.models.llama import Llama
from pipeline.models.losses import classification_loss
from pipeline.objectives.batch import Batch, Target
from pipeline.presets.files import REPOSITORY
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.training import schedules
from pipeline.training.finetuning import FineTuning, balanced
from pipeline.training.fresh_layers import refresh
from pipeline.training.task_data import TaskData
from tasks.base import Example
from tasks.sentiment import Sentiment
from tests.conftest import command, figures, run

TINY = ["--validations=2", "--precision=32-true", "--data.max_length=24", "--data.train_rows=48"]


def options(**changes: object) -> HeadOptions:
    base: dict = {"name": "sentence", "pairs": False, "columns": {"text": "text", "label": "label"}}
    base |= {"mix": False, "mix_dropout": 0.0, "lstm": 0, "dropout": 0.0, "words": "first", "crf": False}
    return HeadOptions(**{**base, "max_length": 32, "cut": "head", **changes})


@pytest.fixture(scope="module")
def gpt() -> Gpt:
    texts = ["a small text for a small tokenizer", "words and words"] * 20
    tokenizer = ByteBpe.train(texts, vocab_size=300)
    torch.manual_seed(0)
    return Gpt(
        tokenizer, size=16, layers=2, heads=2, inner_size=64, max_length=32, dropout=0.0, attention_dropout=0.0
    ).eval()


@pytest.fixture(scope="module")
def bert(pretrained: Path) -> Bert:
    found = pipeline.encoders.load(pretrained / "encoder")
    assert isinstance(found, Bert)
    return found


@pytest.mark.parametrize("family", ["bert", "gpt"])
@pytest.mark.parametrize("changes", [{}, {"lstm": 4}, {"mix": True}])
def test_a_head_of_one_vector_has_the_top_layer_computed_there_alone(
    family: str, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    model = FineTunedModel(request.getfixturevalue(family), labels=["no", "yes"], options=options(**changes)).eval()
    texts = model.encoder.tokenize(["a small text", "words and words and a text"])
    batch = model.encoder.collate(texts)
    (some, encoded), (whole, all_of_it) = model(batch, whole=False), model(batch)
    torch.testing.assert_close(some, whole, rtol=0, atol=1e-6)
    assert bool(encoded.layers[-1].isnan().any()) == (not changes)
    assert not all_of_it.layers[-1].isnan().any()


@pytest.fixture(scope="module")
def llama(gpt: Gpt) -> Llama:
    sizes: dict[str, Any] = {"size": 16, "layers": 2, "heads": 2, "inner_size": 48, "max_length": 32}
    torch.manual_seed(0)
    return Llama(gpt.tokenizer, **sizes, tied=False, dropout=0.0, attention_dropout=0.0).eval()


@pytest.mark.parametrize("by_word", [False, True])
@pytest.mark.parametrize("family", ["bert", "gpt", "llama"])
def test_a_tuned_model_opens_in_transformers(
    family: str, by_word: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    encoder: Encoder = request.getfixturevalue(family)
    columns = {"words": "words", "tags": "tags"} if by_word else {"text": "text", "label": "label"}
    model = FineTunedModel(
        encoder, labels=["no", "yes", "?"], options=options(name="token" if by_word else "sentence", columns=columns)
    ).eval()
    torch.nn.init.normal_(model.head.classifier.weight)
    model.save(tmp_path / "model", card="")
    kind = "TokenClassification" if by_word else "SequenceClassification"
    theirs, loading = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    assert theirs.config.id2label == {0: "no", 1: "yes", 2: "?"}
    words = ["some", "few", "words"]
    [item] = model.features([words if by_word else "some few words"])
    batch = encoder.collate([item.ids])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    pair = encoder.collate([(item.ids, item.ids)])["input_ids"]
    assert tokenizer("some few words", "some few words")["input_ids"] == pair[0].tolist()
    with torch.no_grad():
        expected = theirs.eval()(**tokenizer("some few words", return_tensors="pt")).logits[0]
        if by_word:
            batch["word_ids"] = torch.tensor([[-1, *item.window.word_ids, -1]])
            places = [1 + item.window.word_ids.index(word) for word in range(3)]
            expected = expected[places]
        ours = model(batch)[0][0]
    assert (ours - expected).abs().max() < 1e-4
    assert tokenizer.model_max_length == model.options.max_length
    again = pipeline.load(tmp_path / "model")
    assert again.encoder.tokenizer.hash == encoder.tokenizer.hash
    assert again.predict([words if by_word else "some few words"]) == model.predict(
        [words if by_word else "some few words"]
    )


@pytest.mark.parametrize("cut", ["head", "tail"])
def test_transformers_cuts_long_texts_as_it_is_done_here(gpt: Gpt, cut: str, tmp_path: Path) -> None:
    model = FineTunedModel(gpt, labels=["no", "yes"], options=options(max_length=12, cut=cut)).eval()
    torch.nn.init.normal_(model.head.classifier.weight)
    model.save(tmp_path, card="")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    text = "a small text, then words and words and a small tokenizer at its end"
    with torch.no_grad():
        scores = theirs(**tokenizer(text, truncation=True, return_tensors="pt")).logits[0].softmax(-1)
    [answer] = model.predict([text])
    assert answer["cut"]
    assert list(answer["probabilities"].values()) == pytest.approx(scores.tolist(), abs=1e-5)


def test_cut_of_long_texts() -> None:
    ids = list(range(100))
    joined: Any = SimpleNamespace(special=Bert.special, joint_pairs=True)
    one_by_one: Any = SimpleNamespace(special=Elmo.special, joint_pairs=False)
    assert shorten(ids, joined, 22, "head") == ids[:20]
    assert shorten(ids, joined, 22, "tail") == ids[80:]
    assert shorten(ids, joined, 22, "both") == ids[:5] + ids[85:]
    assert shorten(ids[:20], joined, 22, "tail") == ids[:20]
    first, second = shorten((ids, ids[:6]), joined, 23, "tail")
    assert (first, second) == (ids[86:], ids[:6])  # the longer text is cut
    assert [len(side) for side in shorten((ids, ids), joined, 23, "head")] == [10, 10]
    assert [len(side) for side in shorten((ids, ids), one_by_one, 23, "head")] == [21, 21]


def test_long_words_and_long_lines(bert: Bert) -> None:
    long = "very " * 20_000
    [item] = cut_texts(bert, [long], max_length=32, cut="both")
    assert (len(item), item.was_cut) == (30, True)
    model = FineTunedModel(bert, labels=["O", "B-x"], options=options(name="token", spans=True, columns={"words": "w"}))
    text = "x" * 100_000 + " 🙂 שלום e\u200d " + "word " * 100
    [found] = model.predict([text])
    assert len(found["tags"]) == len(found["words"]) == len(found["probabilities"]) > 100
    for word, (begin, end) in zip(*place_words(text), strict=True):
        assert text[begin:end] == word
    assert found["spans"]
    for span in found["spans"]:
        assert text[span["begin"] : span["end"]] == span["text"]
    marked = "हिन्दी and Nai\u0308ve, don't"
    assert place_words(marked)[0] == ["हिन्दी", "and", "Nai\u0308ve", ",", "don't"]
    joined = ["می\u200cخواهم", "क्\u200dष", "co\u00adop", "👨\u200d👩\u200d👧", "a"]  # no word ends at what has no width
    assert place_words(" ".join(joined))[0] == joined
    apart = ["a\u200d", ",", "പാല്\u200d", ".", "see", ".\u200e", "Then", "(\u200f", "שלום", ")", "x", ",\u00ad", "y"]
    assert place_words("a\u200d, പാല്\u200d. see.\u200eThen (\u200fשלום) x,\u00ady")[0] == apart
    assert place_words("\ufeffHello")[0] == ["\ufeffHello"]
    assert model.predict([[], "  ", ["", " "]])[0]["tags"] == []
    assert len(model.predict([["", " "]])[0]["tags"]) == 2


def test_predict_reads_lines_tables_and_json(bert: Bert, capsys: pytest.CaptureFixture[str]) -> None:
    model = FineTunedModel(bert, labels=["no", "yes"], options=options())

    def answers(text: str, form: str, model: FineTunedModel = model) -> list[dict]:
        target = io.StringIO()
        count = predict(model, io.StringIO(text), "input", form=form, target=target, batch_size=2)
        rows = [json.loads(line) for line in target.getvalue().splitlines()]
        assert len(rows) == count
        return rows

    texts = ["a", 'say "b"', "", "d\u2028e", "f"]
    by_lines = answers("\n".join(texts) + "\n", "lines")
    assert [row["text"] for row in by_lines] == texts
    assert by_lines == answers("id\ttext\n" + "".join(f"1\t{text}\n" for text in texts), "tsv")
    assert by_lines == answers("".join(json.dumps({"text": text}) + "\n" for text in texts), "jsonl")
    assert by_lines == answers("id,text\n" + "".join(f"1,{text}\n" for text in texts), "csv")
    assert by_lines == answers("text\n" + "".join(f"{text}\n" for text in texts), "tsv")  # a blank line is a text
    with pytest.raises(UserError, match="--batch-size is 0; it must be at least 1"):
        predict(model, io.StringIO("a"), "input", form="lines", target=io.StringIO(), batch_size=0)
    assert [row["label"] for row in by_lines] == [row["label"] for row in model.predict(texts)]
    assert [row["text"] for row in answers('id;text\n1;"a; ""b"""\n', "csv")] == ['a; "b"']
    for form in ("tsv", "csv"):  # whose only line is no header
        with pytest.raises(UserError, match="input has no text under 'text', which this model reads"):
            answers("a great film\n", form)
    assert "1 of 5 texts are empty (the first is text 3)" in capsys.readouterr().err
    assert [row.get("cut") for row in answers("a\n" + "word " * 99 + "\n", "lines")] == [None, True]
    assert "1 of 2 texts were cut to fit into 32 tokens" in capsys.readouterr().err
    with pytest.raises(UserError, match="line 2 has no text under 'text', which this model reads"):
        answers('{"text": "a"}\n{"other": "b"}\n', "jsonl")
    columns = {"premise": "p", "hypothesis": "h", "label": "l"}
    pairs = FineTunedModel(bert, labels=["no", "yes"], options=options(pairs=True, columns=columns))
    assert answers("a\tb\n", "lines", pairs) == answers("p\th\na\tb\n", "tsv", pairs)
    with pytest.raises(UserError, match="line 1 needs two texts with a tab"):
        answers("a\n", "lines", pairs)
    with pytest.raises(UserError, match="reads pairs"):
        pairs.predict(["a"])
    with pytest.raises(UserError, match="reads single texts"):
        model.predict([["a", "list"]])
    with pytest.raises(UserError, match="reads single texts"):
        model.predict([("a", "b")])
    with pytest.raises(UserError, match="batch_size is 0; it must be a whole number"):
        model.predict(["a"], batch_size=0)
    with pytest.raises(UserError, match="Texts come in a list"):
        pairs.predict([("a", None)])  # type: ignore[list-item]
    with pytest.raises(UserError, match="batch_size is 0; it must be a whole number"):
        bert.encode(["a"], batch_size=0)
    assert model.predict(iter(["a", "b"])) == model.predict(np.array(["a", "b"]))  # type: ignore[arg-type]
    mixed = bert.encode(["a text", ["two", "words"]])
    assert mixed.words is not None
    assert mixed.words.tolist() == [[-1] * mixed.words.shape[1], bert.encode([["two", "words"]]).words[0].tolist()]
    for wrong in (None, "a text", [3], [("a",)], [("a", "b", "c")]):
        with pytest.raises(UserError, match="Texts come in a list"):
            model.predict(wrong)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="Texts come in a list"):
            bert.encode(wrong)  # type: ignore[arg-type]
    capsys.readouterr()
    assert predict(model, io.StringIO(""), "input", form="lines", target=io.StringIO(), batch_size=1) == 0
    assert capsys.readouterr().err == "input has no texts.\n"
    three = [answers(f'{{"text": {text}}}\n', "jsonl")[0]["probabilities"] for text in ("3", '"3"')]
    assert three[0] == three[1]  # as training reads numbers
    with pytest.raises(UserError, match=r"line 1 has \[3, \[4\]\] under 'text', which is not text"):
        answers('{"text": [3, [4]]}\n', "jsonl")
    joined = FineTunedModel(bert, labels=["no", "yes"], options=options(columns={"title": "title", "body": "body"}))
    assert len(answers("a b\n", "lines", joined)) == 1
    with pytest.raises(UserError, match="joins title and body in its own way"):
        answers('{"title": "a", "body": "b"}\n', "jsonl", joined)
    tagger = FineTunedModel(bert, labels=["O", "B-X", "I-X"], options=options(name="token", columns={"words": "words"}))
    assert answers('{"words": ["In", 1999]}\n', "jsonl", tagger)[0]["words"] == ["In", "1999"]
    named = FineTunedModel(bert, labels=["O"], options=options(name="token", columns={"words": "text"}))
    assert answers('{"text": "the U.S."}\n', "jsonl", named)[0]["words"] == ["the", "U.S."]  # its column of words
    for row, words in (('{"words": "U.S. -based"}', ["U.S.", "-based"]), ('{"text": "U.S."}', ["U", ".", "S", "."])):
        assert answers(row + "\n", "jsonl", tagger)[0]["words"] == words  # words as the task reads them; any text
    assert [form_of(name, None) for name in ("a.tsv", "a.txt", "-", "A.CSV")] == ["tsv", "lines", "lines", "csv"]
    for unknown in ("a.conll", "a.ndjson"):
        with pytest.raises(UserError, match="predict does not read"):
            form_of(unknown, None)
    assert form_of("a.conll", "lines") == "lines"
    with pytest.raises(UserError, match="which is not text"):
        answers('{"words": ["In", null]}\n', "jsonl", tagger)


def test_a_table_of_answers_has_every_column_of_the_input(bert: Bert) -> None:
    model, target = FineTunedModel(bert, labels=["no", "yes"], options=options()), io.StringIO()
    lines = io.StringIO('{"text": "a", "id": 1}\n{"text": "b"}\n{"text": "c", "from": "d"}\n')
    with pytest.raises(UserError, match="A row has 'from', which the first one has not: a table has the same columns"):
        predict(model, lines, "input", form="jsonl", target=target, batch_size=1, delimiter=",")
    assert target.getvalue().startswith("text,id,predicted_label,")


def test_a_text_is_read_as_in_training_without_space_around_it(gpt: Gpt) -> None:
    model = FineTunedModel(gpt, labels=["no", "yes"], options=options())
    plain, *others = model.predict(["words", " words", "words \n"])
    assert all(other == plain for other in others)
    assert model.predict(["words and"]) != [plain]


def test_predict_as_a_command(pretrained: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run("finetune", "--task", "tagging", "--from", str(pretrained / "encoder"), "--out", str(out), *TINY)
    (tmp_path / "in.txt").write_text("Anna saw Bonn.\n")
    given = ["predict", "--from", str(out / "model"), "--data", str(tmp_path / "in.txt")]
    fresh = [sys.executable, "-X", "importtime", "-m", "pipeline", *given]
    done = subprocess.run(fresh, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch" in imported
    assert not imported & {"lightning", "wandb", "matplotlib", "torchmetrics"}  # which take seconds
    [row] = [json.loads(line) for line in done.stdout.splitlines()]
    assert row["words"] == ["Anna", "saw", "Bonn", "."]
    said, place = tmp_path / "new/said.jsonl", tmp_path / "rows.jsonl"
    where = ["--model", str(out / "model"), "--data", str(place)]
    place.write_text('{"text": "Anna saw Bonn."}\n')
    run("predict", *where, "--out", str(said))
    assert said.read_text() == done.stdout
    for wrong, message in (
        (place, "is the input"),
        (out / "model/model.safetensors", "the folder of an encoder or model"),
        (out / "model/new/said.jsonl", "the folder of an encoder or model"),
        (Path("/proc/x/said.jsonl"), "cannot be written"),
    ):
        with pytest.raises(UserError, match=message):
            run("predict", *where, "--out", str(wrong))
    (tmp_path / "rows.jsonl").write_text('{"text": "Anna"}\n{"other": "Anna"}\n')
    with pytest.raises(UserError, match="line 2 has no text"):
        run("predict", *where, "--out", str(said.with_name("other.jsonl")))  # whole or not at all
    with pytest.raises(UserError, match="is there already"):
        run("predict", *where, "--out", str(said))
    assert said.read_text() == done.stdout
    assert [path.name for path in said.parent.iterdir()] == ["said.jsonl"]
    headless = command("predict", "--from", str(pretrained / "encoder"), "--data", str(tmp_path / "in.txt"))
    assert headless.returncode == 2
    assert "without a head" in headless.stderr
    end = figures(out)
    assert {"test/span_f1", "test/token_accuracy", "baseline/training_spans", "degenerate"} <= set(end)
    lines = (out / "predictions.jsonl").read_text().splitlines()
    assert all(len(row["words"]) == len(row["tags"]) for row in map(json.loads, lines))


def test_weights_of_rare_classes_are_larger() -> None:
    """As scikit-learn balances them."""
    from sklearn.utils.class_weight import compute_class_weight

    labels = [0] * 6 + [1] * 3 + [2]
    data = TaskData(task=Sentiment(labels={"a": "a", "b": "b", "c": "c"}), **DATA)
    data.examples["train"] = [Example("x", label) for label in labels]
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert balanced(data).tolist() == pytest.approx(expected.tolist())
    data.task.label_names.append("a class that the training part lacks")
    assert balanced(data).tolist() == pytest.approx([*expected, 0.0])


def test_weights_and_smoothing_are_of_training_alone() -> None:
    torch.manual_seed(0)
    logits, labels, weight = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0.5, 1.0, 2.0])
    batch = Batch({"mask": torch.ones(6, 1)}, {"task": Target(labels, torch.tensor(6))}, torch.arange(6))
    head = SimpleNamespace(loss=classification_loss)
    model = Mock(side_effect=lambda inputs, whole: (logits, None), head=head)
    for training, options in ((True, {"weight": weight, "label_smoothing": 0.1}), (False, {})):
        recipe = SimpleNamespace(lm_weight=0, label_smoothing=0.1)
        module: Any = SimpleNamespace(model=model, recipe=recipe, class_weights=weight, training=training)
        loss, outputs, _ = FineTuning.loss(module, batch)
        assert outputs is logits
        torch.testing.assert_close(loss.sum, cross_entropy(logits, labels, reduction="sum", **options))


DATA: dict[str, Any] = {"batch_size": 4, "max_length": None, "cut": "head", "epochs": 1, "workers": 0}
MUON = ["--model.recipe.unfreeze_share=0.5", "--model.optimization.layer_decay=0.8"]
MUON += ["--model.optimization.optimizer=muon"]
CRAFT = [
    ("tagging", "full", ["--model.recipe.crf=true", "--model.recipe.words=mean"]),
    ("tagging", "frozen", ["--model.recipe.lstm=8", "--trainer.accumulate_grad_batches=4"]),
    ("entailment", "frozen", ["--model.recipe.lstm=8", "--model.recipe.mix_dropout=0.2"]),
    ("sentiment", "full", ["--model.recipe.class_weights=balanced", "--model.recipe.label_smoothing=0.1", *MUON]),
    ("sentiment", "random", ["--patience=1", "--data.cut=both"]),
    ("entailment", "full", ["--model.recipe.pair=attended", "--model.optimization.encoder_rate=0.1"]),
    ("sentiment", "full", ["--model.recipe.layers=mix", "--model.recipe.mix_dropout=0.2"]),
    ("tagging", "frozen", ["--model.recipe.layers=top"]),
]


@pytest.mark.parametrize(("task", "arm", "flags"), CRAFT, ids=lambda value: value if isinstance(value, str) else "")
def test_craft(pretrained: Path, tmp_path: Path, task: str, arm: str, flags: list[str]) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    run("finetune", "--task", task, "--arm", arm, *where, *TINY, *flags)
    model = pipeline.load(tmp_path / "run/model")
    row = json.loads((tmp_path / "run/predictions.jsonl").read_text().splitlines()[0])
    text = row.get("words") or (tuple(row["text"]) if isinstance(row["text"], list) else row["text"])
    [answer] = model.predict([text])
    key = "tags" if task == "tagging" else "label"
    assert answer[key] == row[key]
    [*logged] = csv.DictReader((tmp_path / "run/metrics.csv").open())
    argmax = "--model.recipe.crf=true" not in flags  # with a CRF, the tags are another search's
    assert ("train/task_accuracy" in logged[0]) == argmax
    mixes = arm != "full" or not {"--model.recipe.pair=attended", "--model.recipe.layers=mix"}.isdisjoint(flags)
    mixes = mixes and "--model.recipe.layers=top" not in flags
    assert (model.head.mix is not None) == mixes == (tmp_path / "run/mix.png").exists()
    assert mixes == ("sees a learned mix" in (tmp_path / "run/load_report.txt").read_text())
    card = (tmp_path / "run/model/README.md").read_text()
    assert ("the encoder's share of the rate" in card) == any("encoder_rate" in flag for flag in flags)


def test_layers_join_from_the_top() -> None:
    begins = [schedules.unfreezes_at(depth, 4, 100, 0.5) for depth in range(4)]
    assert begins == [13, 25, 38, 50]
    assert [schedules.unfreezes_at(depth, 4, 100, 0.0) for depth in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize(("share", "expected"), [(3, [False, False, False]), (1, [False, True, True])])
def test_frozen_layers_do_not_move(pretrained: Path, tmp_path: Path, share: int, expected: list[bool]) -> None:
    """Of four steps; a layer joins after a third of the share, the top one first."""
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run")]
    run("finetune", *where, *TINY, f"--model.recipe.unfreeze_share={share}", "--data.epochs=2")
    before = pipeline.encoders.load(pretrained / "encoder").layer_groups()
    encoder = pipeline.load(tmp_path / "run/model").encoder
    last = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    own = "model.encoder."
    encoder.load_state_dict({name[len(own) :]: value for name, value in last.items() if name.startswith(own)})
    after = encoder.layer_groups()
    moved = [any(not torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in zip(before, after, strict=True)]
    assert moved == expected
    assert figures(tmp_path / "run")["steps"] == 4


def test_the_auxiliary_lm_loss_has_all_positions(
    toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = toys("gpt") / "encoder"  # whose pretraining is not counted
    positions: list[int] = []
    expected: list[tuple[int, int]] = []
    token_loss, weighted = Gpt.token_loss, FineTuning.weighted

    def counted(encoder: Any, hidden: torch.Tensor, labels: torch.Tensor) -> Any:
        positions.append(len(labels))
        return token_loss(encoder, hidden, labels)

    def noted(module: Any, losses: Any, batch: Any) -> Any:
        expected.append((int(batch.inputs["mask"][:, 1:].sum()), int(batch.targets["lm"].count)))
        return weighted(module, losses, batch)

    monkeypatch.setattr(Gpt, "token_loss", counted)
    monkeypatch.setattr(FineTuning, "weighted", noted)
    flags = ["--data.epochs=1", "--model.recipe.lm_weight=0.5", "--trainer.log_every_n_steps=1"]
    run("finetune", "--model", "gpt", "--from", str(encoder), "--out", str(tmp_path), *TINY, *flags)
    rows = [row for row in csv.DictReader((tmp_path / "metrics.csv").open()) if row["train/lm_loss"]]
    assert len(rows) == 2
    for row in rows:
        total, task, lm = (float(row[f"train/{name}loss"]) for name in ("", "task_", "lm_"))
        assert 0 < lm < 7
        assert total == pytest.approx(task + 0.5 * lm, rel=1e-4)
    assert expected == [(count, count) for count in positions]
    assert len(positions) == 2


def test_what_does_not_go_together(pretrained: Path, tmp_path: Path) -> None:
    where = ["--from", str(pretrained / "encoder"), "--out", str(tmp_path / "run"), *TINY]
    for flags, message in (
        (["--model.recipe.crf=true"], "crf and words are for tagging"),
        (["--model.recipe.lm_weight=0.5"], "needs an encoder that predicts from left to right, as GPT; bert does not"),
        (
            ["--task", "tagging", "--model.recipe.crf=true", "--model.recipe.label_smoothing=0.1"],
            "neither class weights",
        ),
        (["--data.max_length=4"], "at least 8 positions"),
    ):
        with pytest.raises(UserError, match=message):
            run("finetune", *where, *flags)


def test_a_pair_is_read_in_the_order_of_its_task(pretrained: Path, tmp_path: Path) -> None:
    """Whatever the order in the YAML file, and with columns that go by their roles."""
    yaml = "data:\n  task:\n    class_path: tasks.entailment.Entailment\n    init_args:\n      sample: entailment\n"
    answers = []
    for number, columns in enumerate(("{premise: premise, hypothesis: hypothesis, label: label}", "{label: label}")):
        file = tmp_path / f"pairs{number}.yaml"
        file.write_text(yaml + f"      columns: {columns}\n  epochs: 1\n")
        out = tmp_path / f"run{number}"
        where = ["--task", str(file), "--from", str(pretrained / "encoder"), "--out", str(out)]
        run("finetune", *where, *TINY, "--trainer.max_steps=1")
        (tmp_path / "in.jsonl").write_text('{"hypothesis": "a dog", "premise": "Anna saw the soup"}\n')
        said = tmp_path / f"said{number}.jsonl"
        run("predict", "--from", str(out / "model"), "--data", str(tmp_path / "in.jsonl"), "--out", str(said))
        answers.append(json.loads(said.read_text()))
    assert answers[0] == answers[1]
    assert answers[0]["text"] == ["Anna saw the soup", "a dog"]


def test_top_layers_begin_with_fresh_weights(bert: Bert, pretrained: Path) -> None:
    before = {name: value.clone() for name, value in bert.state_dict().items()}
    assert refresh(bert, 1) == ["blocks.1", "pooler"]
    for name, value in bert.state_dict().items():
        fresh = name.startswith(("blocks.1.", "pooler.")) and value.ndim == 2  # biases begin at 0, as they still may be
        assert fresh != torch.equal(value, before[name]) or value.ndim == 1, name
    bert.load_state_dict(before)  # other tests have the same encoder
    with pytest.raises(UserError, match="reinit_layers is 3, but this bert has 2 above its embeddings"):
        refresh(bert, 3)
    where = ["--from", str(pretrained / "encoder"), *TINY, "--model.recipe.reinit_layers=1"]
    with pytest.raises(UserError, match="the arm 'scratch' has none"):
        run("finetune", *where, "--arm", "scratch")
    run("finetune", *where, "--out", "run", "--trainer.max_steps=1")
    assert "fresh weights in the top 1 of its layers: blocks.1, pooler" in Path("run/load_report.txt").read_text()


@pytest.mark.parametrize("model", ["gpt", "elmo", "recurrent", "bart", "fflm"])
def test_the_top_of_each_model_is_what_its_head_reads(model: str, toys: Callable[[str], Path]) -> None:
    encoder = pipeline.encoders.load(toys(model) / "encoder")
    text, count = ["The soup was good."], len(encoder.layer_groups()[1 : encoder.num_layers])
    whole = encoder.encode(text).layers
    assert refresh(encoder, 1)
    changed = [not torch.equal(a, b) for a, b in zip(whole, encoder.encode(text).layers, strict=True)]
    assert changed == [False] * count + [True]
