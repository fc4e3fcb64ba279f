"""Fine-tuning by counting: Bayes' rule over a model a label."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.naive_bayes import MultinomialNB

import pipeline
from pipeline.errors import UserError
from pipeline.models.ngram import Ngram
from pipeline.tokenization.byte_bpe import ByteBpe
from tests.conftest import assert_plot, figures, run

pytestmark = pytest.mark.slow

TEXTS = {
    "en": ["the house is old", "she has seen the sea", "where are the children", "this is the end of it"],
    "de": ["das Haus ist alt", "sie hat das Meer gesehen", "wo sind die Kinder", "das ist das Ende"],
    "fi": ["talo on vanha", "hän on nähnyt meren", "missä lapset ovat", "tämä on sen loppu", "se on siinä"],
}


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of labeled texts."""
    folder = tmp_path_factory.mktemp("languages")
    rows = [json.dumps({"text": text, "label": label}) for label, texts in TEXTS.items() for text in texts]
    for part in ("train", "valid", "test"):
        (folder / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def fine_tune(data: Path, out: Path, *flags: str) -> Path:
    run("finetune", "--model", "ngram", "--task", "languages", "--data", str(data), "--out", str(out), *flags)
    return out


def test_it_is_multinomial_naive_bayes(languages: Path, tmp_path: Path) -> None:
    """Order 1 and add-k on bytes: as scikit-learn's, of the counts of bytes; the length of a text is no evidence."""
    settings = [f"--model.encoder.init_args.{name}" for name in ("order=1", "smoothing=add-k", "k=0.3")]
    model = pipeline.load(fine_tune(languages, tmp_path / "run", *settings) / "model")
    texts = [text for group in TEXTS.values() for text in group]
    labels = [label for label, group in TEXTS.items() for _ in group]

    def counts(texts: list[str]) -> np.ndarray:
        return np.stack([np.bincount(np.frombuffer(text.encode(), dtype=np.uint8), minlength=256) for text in texts])

    theirs = MultinomialNB(alpha=0.3).fit(counts(texts), labels)
    asked = ["the children", "lapset", "Haus", "zz", " ".join(["the sea"] * 9)]
    expected = theirs.predict_proba(counts(asked))
    assert theirs.classes_.tolist() == model.labels
    found = [[answer["probabilities"][label] for label in model.labels] for answer in model.predict(asked)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_a_label_without_training_rows_is_not_predicted(languages: Path, tmp_path: Path) -> None:
    """A model that has counted nothing finds all bytes alike, and would be best on those that the others lack."""
    names = ", ".join([*TEXTS, "klingon"])
    (tmp_path / "four.yaml").write_text(
        "data:\n  task:\n    class_path: tasks.sentiment.Sentiment\n    init_args:\n      labels: {"
        + ", ".join(f"{name}: {name}" for name in names.split(", "))
        + "}\n"
    )
    out = tmp_path / "run"
    where = ["--task", str(tmp_path / "four.yaml"), "--data", str(languages), "--out", str(out)]
    run("finetune", "--model", "ngram", *where)
    model = pipeline.load(out / "model")
    assert "klingon" in model.labels
    for answer in model.predict(["the children", "ééé", "\U0001f600" * 5]):
        assert answer["label"] != "klingon"
        assert answer["probabilities"]["klingon"] == 0
        assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_a_run(languages: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run folder holds what that of every fine-tune does, but curves; its model opens and predicts."""
    out = fine_tune(languages, tmp_path / "run", "--data.characters=[1]")
    end, names = figures(out), {path.name for path in out.iterdir()}
    assert {"model", "config.yaml", "lineage.json", "load_report.txt", "metrics.csv", "wandb"} <= names
    assert "curves.png" not in names
    assert not (out / "checkpoints").exists()
    assert end["test/accuracy"] == 1 > end["test/characters_1/accuracy"] > end["baseline/majority"]
    assert end["steps"] == 0
    assert "confusion.png" in names
    assert_plot(out / "characters.png")
    rows = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    model = pipeline.load(out / "model")
    for row, answer in zip(rows, model.predict([row["text"] for row in rows]), strict=True):
        assert answer["probabilities"] == pytest.approx(row["probabilities"], abs=1e-6)
    assert sum(model.predict([""])[0]["probabilities"].values()) == pytest.approx(1)
    card = (out / "model/README.md").read_text()
    assert "Bayes' rule" in card
    assert "Tokens are bytes." in card
    run("report", "--from", str(out))
    capsys.readouterr()
    fine_tune(languages, out, "--data.characters=[1]", "--resume")
    assert "nothing left to do" in capsys.readouterr().out


def test_an_encoder_gives_tokens_and_settings(toys: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = toys("ngram") / "encoder"
    out = tmp_path / "run"
    run("finetune", "--model", "ngram", "--task", "entailment", "--from", str(encoder), "--out", str(out))
    model, source = pipeline.load(out / "model"), pipeline.encoders.load(encoder)
    assert model.encoder.tokenizer.hash == source.tokenizer.hash
    assert {name: source.config[name] for name in model.encoder.config} == {
        **model.encoder.config,
        "ngrams": source.config["ngrams"],
    }
    [answer] = model.predict([("a dog runs", "it is wet")])
    [swapped] = model.predict([("it is wet", "a dog runs")])  # given the label, either text says the same
    assert answer["probabilities"] == pytest.approx(swapped["probabilities"], abs=1e-9)
    assert source.tokenizer.hash[:12] in (out / "load_report.txt").read_text()


def test_without_smoothing_too(tmp_path: Path) -> None:
    """No text is empty, so that none ends where it begins: an n-gram of probability 0 that no text has."""
    texts = {"x": ("abab", "ba", "aabb"), "y": ("bbaa", "ab", "bab")}
    rows = [json.dumps({"text": text, "label": label}) for label, own in texts.items() for text in own]
    for part in ("train", "valid", "test"):
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
    settings = [f"--model.encoder.init_args.{name}" for name in ("order=2", "smoothing=mle")]
    assert figures(fine_tune(tmp_path, tmp_path / "run", *settings))["test/accuracy"] > 0.5


def test_the_sum_of_the_models_of_the_labels(languages: Path, tmp_path: Path) -> None:
    """As models that were fitted one by one: log P(label) and log P(tokens | label), each where the text goes on."""
    model = pipeline.load(fine_tune(languages, tmp_path / "run") / "model")
    tokenizer, joint = ByteBpe.of_bytes(), []
    for texts in TEXTS.values():
        own = Ngram.from_config(model.encoder.config, tokenizer)
        ids = tokenizer.encode_batch(texts)
        own.fit(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))
        batch = own.collate(tokenizer.encode_batch(["the Meer on"]))
        ends = torch.full_like(batch["input_ids"], tokenizer.id("eos"))
        nats = own.log_probs(batch) - (1 - own.log_probs(batch, ends).exp()).log()
        joint.append(float(nats[0, 1:-1].sum()) + np.log(len(texts) / 13))
    [answer] = model.predict(["the Meer on"])
    expected = np.exp(joint) / np.exp(joint).sum()
    found = [answer["probabilities"][label] for label in TEXTS]
    assert found == pytest.approx(expected.tolist(), abs=1e-9)


def test_a_comparison_leaves_out_what_cannot_be_done(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "grid.yaml"
    arms = "{full: {seeds: 1, choose: {model.optimization.learning_rate: [1.0e-3, 3.0e-3]}}, scratch: {seeds: 1}}"
    grid.write_text(
        f"models: [ngram]\ntasks: [sentiment, tagging]\narms: {arms}\nencoders: {toys('ngram') / 'encoder'}\n"
    )
    run("compare", "--name", str(grid), "--out", str(tmp_path / "out"), "--data.epochs=1")
    shown = capsys.readouterr().out
    assert "Left out: ngram counts the texts of each label, and tagging does not have one label for each text." in shown
    assert "it has the arm 'full' only" in shown
    assert [path.name for path in (tmp_path / "out/runs").iterdir() if path.is_dir()] == ["ngram-sentiment-full-0"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--arm", "scratch"], "nothing that --arm scratch could leave out"),
        (["--seeds", "2"], "the arm 'scratch', which ngram does not have"),
        (["--epochs", "2"], "data.epochs has no effect: ngram counts"),
        (["--task", "tagging"], "not have one label for each text"),
        (["--model.encoder.init_args.order=8"], "order is 8; it must be 1 to 7"),
    ],
)
def test_what_means_nothing_is_refused(flags: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        run("finetune", "--model", "ngram", "--out", str(tmp_path / "run"), *flags)
    assert not (tmp_path / "run").exists()
