"""Two languages in one encoder: rows with a text and its translation, what is learned of them, and retrieval."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertForMaskedLM

from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.inspection import retrieval
from pipeline.models.bert import Bert
from pipeline.models.losses import Loss
from pipeline.objectives import ppmi_init
from pipeline.objectives.distillation import Distillation, Teacher
from pipeline.objectives.sampling import StepBatches
from pipeline.objectives.translation_lm import TranslationLM, positions_in_texts
from pipeline.presets.files import REPOSITORY
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.training.loss_sums import LossSums
from tests.conftest import assert_plot, figures, run
from tests.test_translation import WORDS, write_pairs

LANGUAGES = ({word: word for word in WORDS}, WORDS, {word: word[::-1] for word in WORDS})
SIZES = "size=64 layers=2 heads=2 inner_size=128 max_length=48"
TOY = ["--model", "xlm", *(f"--model.encoder.init_args.{size}" for size in SIZES.split()), "--precision=32-true"]
TOY += [
    "--data.tokenizer.vocab_size=200",
    "--data.length=48",
    "--data.batch_size=32",
    "--model.optimization.warmup_steps=2",
]


def parallel_store(folder: Path, languages: int) -> tuple[TokenStore, WordPiece]:
    """Texts of three words each, and their translations."""
    rng = np.random.default_rng(0)
    texts = [rng.permutation(sorted(WORDS))[:3] for _ in range(200)]
    lines = [[" ".join(words[word] for word in text) for words in LANGUAGES[:languages]] for text in texts]
    (folder / "texts.txt").write_text("".join("\n".join(document) + "\n\n" for document in lines))
    tokenizer = WordPiece.train([line for document in lines for line in document], vocab_size=200, lowercase=True)
    return store.build(Source(files=[folder / "texts.txt"], parallel=True), tokenizer, folder / "stores"), tokenizer


@pytest.mark.parametrize("languages", [2, 3])
def test_rows_hold_a_text_and_its_translation(tmp_path: Path, languages: int) -> None:
    built, tokenizer = parallel_store(tmp_path, languages)
    objective = TranslationLM(translation_share=0.25)
    objective.check_corpus(built, "training")
    rows = objective.rows(built, tokenizer, length=32, phase=0, seed=0)
    assert len(rows) == 200
    drawn = rows.draw(np.arange(200), np.random.default_rng(1))
    meanings = [{word: meaning for meaning, word in words.items()} for words in LANGUAGES[:languages]]
    orders = set()
    apart = []
    for pair in drawn:
        texts = [tokenizer.decode(ids.tolist()).split() for ids in (pair.a, pair.b) if len(ids)]
        spoken = [next(i for i, known in enumerate(meanings) if set(text) <= known.keys()) for text in texts]
        understood = [[meanings[i][word] for word in text] for i, text in zip(spoken, texts, strict=True)]
        if len(texts) == 2:
            assert understood[0] == understood[1]
            orders.add(tuple(spoken))
        else:
            apart.append((pair.documents[0], spoken[0]))
    assert orders == {(i, j) for i in range(languages) for j in range(languages) if i != j}
    assert len(drawn) - len(apart) == 50
    assert [a[0] for a in apart[::2]] == [b[0] for b in apart[1::2]]
    assert all(a[1] != b[1] for a, b in zip(apart[::2], apart[1::2], strict=True))
    assert len({document for document, _ in apart}) == 150


def test_long_texts_lose_their_ends(tmp_path: Path) -> None:
    built, tokenizer = parallel_store(tmp_path, 2)
    rows = TranslationLM(translation_share=0.5).rows(built, tokenizer, length=8, phase=0, seed=0)
    for pair in rows.draw(np.arange(100), np.random.default_rng(0)):
        whole = [
            built.tokens[built.sentences[i] :][: len(pair.a)]
            for i in range(2 * pair.documents[0], 2 * pair.documents[0] + 2)
        ]
        assert len(pair.a) + len(pair.b) <= 5
        assert any(np.array_equal(pair.a, begin) for begin in whole)


def test_positions_begin_again_in_the_second_text() -> None:
    segments = torch.tensor([[0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]])
    assert positions_in_texts(segments).tolist() == [[0, 1, 2, 0, 1, 5], [0, 1, 2, 3, 4, 5]]


def test_batches_depend_on_the_step_alone_and_pass_the_audit(tmp_path: Path) -> None:
    built, tokenizer = parallel_store(tmp_path, 2)
    steps, again = (
        StepBatches(TranslationLM(), built, tokenizer, length=32, batch_size=40, seed=1, total=10) for _ in range(2)
    )
    batches = [steps(step) for step in range(7)]
    for name, value in again(6).inputs.items():
        assert torch.equal(batches[6].inputs[name], value), name
    checks = list(steps.objective.checks(tiny_bert(tokenizer), steps, batches))
    assert [check.name for check in checks if not check.passed] == []
    assert "second texts begin at position 0" in [check.name for check in checks]
    alone = StepBatches(TranslationLM(translation_share=0), built, tokenizer, length=32, batch_size=40, seed=1)
    assert set(alone(0).targets) == set(alone.objective(tiny_bert(tokenizer), alone(0))) == {"mlm"}
    assert len(alone(0)) == 80
    assert all(check.passed for check in alone.objective.checks(tiny_bert(tokenizer), alone, [alone(0)]))
    batches[0].inputs["positions"] += 1
    assert not all(check.passed for check in steps.objective.checks(tiny_bert(tokenizer), steps, batches))


def tiny_bert(tokenizer: WordPiece) -> Bert:
    sizes = {"size": 32, "layers": 2, "heads": 2, "inner_size": 64, "max_length": 32}
    return Bert(tokenizer, **sizes, dropout=0.0, attention_dropout=0.0, next_sentence=False).eval()  # type: ignore[arg-type]


def test_losses_are_those_of_transformers(tmp_path: Path) -> None:
    """With every top position computed, too, and however a step is split."""
    built, tokenizer = parallel_store(tmp_path, 2)
    objective = TranslationLM(mask_rate=0.3)
    steps = StepBatches(objective, built, tokenizer, length=32, batch_size=40, seed=1)
    batch = steps(0)
    bert = tiny_bert(tokenizer)
    bert.save(tmp_path / "encoder")
    theirs = BertForMaskedLM.from_pretrained(tmp_path / "encoder").eval()
    inputs = batch.inputs
    with torch.no_grad():
        logits = theirs(
            inputs["input_ids"],
            attention_mask=inputs["mask"].long(),
            token_type_ids=inputs["token_type_ids"],
            position_ids=inputs["positions"],
        ).logits.flatten(0, 1)
        ours = objective(bert, batch)
        parts = [objective(bert, steps.part(batch, index, 3)) for index in range(3)]
    together = inputs["token_type_ids"].any(1)
    assert 15 <= int(together.sum()) <= 25
    for name in ("mlm", "tlm"):
        target, places = batch.targets[name], batch.targets[name].predicted
        assert (together[places // batch.mask.shape[1]] == (name == "tlm")).all()
        expected = F.cross_entropy(logits[places], target.labels, reduction="sum").item()
        assert ours[name].sum.item() == pytest.approx(expected, rel=1e-4)
        assert sum(part[name].sum.item() for part in parts) == pytest.approx(expected, rel=1e-4)
        assert int(target.count) == len(target.labels) > 0


def test_a_teacher_is_asked_about_both_kinds_of_row(tmp_path: Path) -> None:
    built, tokenizer = parallel_store(tmp_path, 2)
    objective = TranslationLM()
    student, teacher = tiny_bert(tokenizer), tiny_bert(tokenizer)
    teacher.save(tmp_path / "teacher")
    batch = StepBatches(objective, built, tokenizer, length=32, batch_size=40, seed=1)(0)
    masked = sum(len(batch.targets[name].labels) for name in ("mlm", "tlm"))
    options = Distillation(teacher=str(tmp_path / "teacher"))
    losses = Teacher(options, student, objective, length=32).losses(objective, student, batch)
    assert int(losses["teacher"].count) == int(losses["hidden"].count) == masked
    assert int(batch.targets["teacher"].count) == masked


def test_a_loss_of_no_token_is_not_0() -> None:
    """Where no row of a part of the texts has its translation behind it, and the other way round."""
    sums = LossSums()
    sums.add("val", {"mlm": Loss(torch.tensor(6.0), 3), "tlm": Loss(torch.tensor(0.0), 0)})
    assert sums.take("val", torch.clone) == {"val/mlm": (6.0, {"loss": 2.0}), "val/tlm": (0.0, {})}


def test_all_tokens_of_a_document_are_contexts() -> None:
    tokens = np.random.default_rng(0).integers(3, 20, 400)
    starts = np.array([0, 12, 13, 40, 400])
    both, alone = (ppmi_init.count(tokens.astype(np.uint16), vocab_size=20, starts=given) for given in (starts, None))
    expected = np.zeros((20, 20))
    for begin, end in pairwise(starts):
        for i in range(begin, end):
            for j in range(begin, end):
                expected[tokens[i], tokens[j]] += 1
    by_frequency = np.argsort(-np.bincount(tokens, minlength=20), kind="stable")
    np.testing.assert_allclose(both - alone, expected[:, by_frequency], rtol=1e-5)


def test_the_margin_is_that_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 9, 5))
    cosine = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in y] for a in x])
    expected = np.zeros((9, 9))
    for i in range(9):
        for j in range(9):
            around = sum(sorted(cosine[i])[-4:]) / 8 + sum(sorted(cosine[:, j])[-4:]) / 8
            expected[i, j] = cosine[i, j] / max(around, 1e-6)
    found = retrieval.margins(torch.from_numpy(x), torch.from_numpy(y))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, {"train": 800, "val": 32, "test_2016_flickr": 48})
    return folder


@pytest.mark.slow
def test_translations_are_learned_and_found(tmp_path: Path, pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The order of words is random here, so that a masked word can only be known from the other language."""
    corpus = ["--corpus", "task:multi30k", "--data", str(pairs)]
    out = tmp_path / "run"
    run("pretrain", *TOY, *corpus, "--out", str(out), "--steps", "300", "--learning-rate", "6e-3")
    found = figures(out)
    assert found["val/tlm_loss"] < 0.8 * found["val/mlm_loss"]
    shown = capsys.readouterr().out
    assert "tlm_accuracy" in shown
    assert "retrieval --model xlm --task multi30k" in shown
    _, report = BertForMaskedLM.from_pretrained(out / "encoder", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.mark.slow
def test_counted_translations_are_found(tmp_path: Path, pairs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Embeddings begin with them, and a few small steps change little. Some texts have the same words here."""
    corpus = ["--corpus", "task:multi30k", "--data", str(pairs)]
    encoder, found_in = tmp_path / "run/encoder", tmp_path / "found.json"
    run("pretrain", *TOY, *corpus, "--out", str(tmp_path / "run"), "--steps", "10", "--learning-rate", "1e-4")
    capsys.readouterr()
    run("retrieval", "--from", str(encoder), "--task", "multi30k", "--data", str(pairs), "--out", str(found_in))
    shown, found = capsys.readouterr().out, json.loads(found_in.read_text())
    assert found["texts"] == 48
    few = ["--task", "multi30k", "--data", str(pairs), "--out", str(tmp_path / "few.json"), "--texts", "8"]
    run("retrieval", "--from", str(encoder), *few)
    assert json.loads((tmp_path / "few.json").read_text())["texts"] == 8
    assert found["languages"] == ["en", "de"]
    assert found["best"] == found["layers"][found["chosen"]]
    assert f"layer {found['chosen']} (best in validation) | {found['best']['there']:.1%}" in shown
    assert found["best"]["there"] > 0.5 > 5 * found["tokens"]["there"]
    assert found["counted"]["there"] > 0.5
    assert_plot(found_in.with_suffix(".png"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["--data.task=null", "--data.sample_documents=300", "--model.embeddings=random"],
            "needs a text and its translations",
        ),
        (["--corpus", "task:sentiment"], "has no translations"),
        (["--corpus", "task:ours", "--data", "a.tsv"], "new-task --name ours --kind translation --data a.tsv` writes"),
        (["--model.objective.init_args.translation_share=1"], "must be at least 0 and below 1"),
        (
            ["--model", "bert", "--data.sample_documents=300", "--model.embeddings=translations"],
            "needs an objective that reads them",
        ),
    ],
)
def test_what_cannot_be_pretrained_is_said(tmp_path: Path, given: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run("pretrain", *TOY, "--out", str(tmp_path / "run"), *given)


@pytest.mark.parametrize("sizes", [[60], [2] * 29 + [3]])  # no blank lines, or a document with a line too many
def test_documents_without_a_translation_each_are_refused(tmp_path: Path, sizes: list[int]) -> None:
    (tmp_path / "texts").mkdir()
    text = "\n".join("".join(f"a line of words {number}\n" for number in range(size)) for size in sizes)
    for part in ("train", "valid"):
        (tmp_path / f"texts/{part}.txt").write_text(text)
    flags = ["--corpus", str(tmp_path / "texts"), "--model.embeddings=random", "--out", str(tmp_path / "run")]
    with pytest.raises(UserError, match="needs a text and its translations in each document"):
        run("pretrain", *TOY, *flags)


def test_retrieval_needs_translations_and_vectors(tmp_path: Path, toys: object) -> None:
    with pytest.raises(UserError, match="sentiment has no translations"):
        run("retrieval", "--task", "sentiment")
    with pytest.raises(UserError, match="a ngram has none"):
        run("retrieval", "--model", "ngram", "--from", str(toys("ngram")))  # type: ignore[operator]


def test_the_table_of_the_guide_is_that_of_the_results() -> None:
    page = (REPOSITORY / "docs/guides/cross-lingual.md").read_text()
    found = {
        name: json.loads((REPOSITORY / f"results/retrieval/multi30k-{name}.json").read_text())
        for name in ("xlm", "mlm")
    }
    rows = {"tokens in common": found["xlm"]["tokens"], "counted, no network": found["xlm"]["counted"]}
    rows |= {"MLM alone": found["mlm"]["best"], "MLM and TLM": found["xlm"]["best"]}
    for name, shares in rows.items():
        [row] = [line.replace("*", "") for line in page.splitlines() if re.match(rf"\| {name}.* \*{{0,2}}\d.*%", line)]
        assert row.endswith("| {there:.1%} | {back:.1%} |".format(**shares).replace("%", " %"))


def test_the_table_of_transfer_is_that_of_the_results() -> None:
    page = (REPOSITORY / "docs/guides/cross-lingual.md").read_text().replace("*", "")
    for row, name in (("MLM and TLM", "xlm"), ("MLM alone, the same texts", "mlm")):
        files = sorted((REPOSITORY / "results/transfer").glob(f"sentiment-{name}-*.json"))
        scores = [json.loads(file.read_text())["accuracy"] for file in files]
        assert len(scores) == 3
        assert re.search(rf"^\| {row} \| [^|]+ \| {mean(scores):.3f} ± {stdev(scores):.3f} \|", page, flags=re.M)
