"""CBOW: what it computes, the file of its vectors, and vectors of others."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline
from pipeline.errors import UserError
from pipeline.interop import word2vec
from pipeline.models.cbow import Cbow, neighbors
from pipeline.tokenization.wordpiece import WordPiece
from tests.conftest import run

TEXTS = ["the dog saw a cat . the cat saw a dog .", "a small dog was good , the cat was small"] * 20
GLOVE = "the 0.5 -1 2\ncafé 1 1 1\nnew york 3 0 1\nrock-n-roll 0 1 0\nthe 9 9 9\n"


@pytest.fixture
def cbow() -> Cbow:
    torch.manual_seed(0)
    tokenizer = WordPiece.train(TEXTS, vocab_size=60, lowercase=True)
    return Cbow(tokenizer, embedding_size=6, window=3, max_length=16, dropout=0.0).eval()


def test_it_is_the_mean_of_the_vectors_around(cbow: Cbow) -> None:
    """Against plain loops, with the average of word2vec's random windows."""
    mask_id = cbow.tokenizer.id("mask")
    batch = cbow.collate(cbow.tokenize(["the dog saw a cat", "a small dog was good , the cat"]))
    batch["input_ids"][1, 3] = mask_id
    encoded = cbow(batch)
    vectors = cbow.embedding.weight.detach().numpy()
    for row, ids in enumerate(batch["input_ids"].tolist()):
        for place, token in enumerate(ids):
            total, weight = np.zeros(6), 0.0
            for window in (1, 2, 3):
                for other in range(max(0, place - window), min(len(ids), place + window + 1)):
                    if other != place and ids[other] not in cbow.tokenizer.special_ids:
                        total, weight = total + vectors[ids[other]], weight + 1
            wanted = np.concatenate([vectors[token], total / weight if weight else total])
            if batch["mask"][row, place]:
                np.testing.assert_allclose(encoded.layers[-1][row, place].detach(), wanted, atol=1e-6)
    logits = cbow.logits(encoded.layers[-1])
    around = encoded.layers[-1][..., 6:]
    assert cbow.output.weight is not None
    torch.testing.assert_close(logits, around @ cbow.output.weight.T + cbow.output.bias)


def test_a_prediction_does_not_see_its_own_token(cbow: Cbow) -> None:
    batch = cbow.collate(cbow.tokenize(["the dog saw a cat"]))
    changed = {**batch, "input_ids": batch["input_ids"].clone()}
    changed["input_ids"][0, 2] = cbow.tokenizer.id("mask")
    before, after = (cbow.logits(cbow(inputs).layers[-1])[0] for inputs in (batch, changed))
    torch.testing.assert_close(after[2], before[2])
    assert (after[3] - before[3]).abs().max() > 1e-4


def test_nothing_around_is_no_information(cbow: Cbow) -> None:
    logits = cbow.encode(["dog"], logits=True).logits
    assert logits is not None
    torch.testing.assert_close(logits[0, 1], cbow.output.bias.detach())  # type: ignore[union-attr]
    assert neighbors(torch.tensor([[False, True, False]]), 5)[0].tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_other_tokenizers_and_windows_are_refused(cbow: Cbow) -> None:
    with pytest.raises(UserError, match="window is 0"):
        Cbow(cbow.tokenizer, embedding_size=6, window=0, max_length=16, dropout=0.0)


# ---------------------------------------------------------------------- files of vectors


def test_vectors_of_an_encoder_are_a_file_of_word2vec(toys: Callable[[str], Path], tmp_path: Path) -> None:
    out = tmp_path / "vectors.txt"
    for model in ("cbow", "bert", "gpt"):
        folder = toys(model) / "encoder"
        run("vectors", "--model", model, "--from", str(folder), "--out", str(out))
        encoder = pipeline.encoders.load(folder)
        words, vectors = word2vec.read(out, most=1_000)
        assert encoder.token_embedding is not None
        assert out.read_text().splitlines()[0] == f"{len(words)} {vectors.shape[1]}"
        ids = [encoder.tokenizer.backend.token_to_id(("Ġ" if model == "gpt" else "") + word) for word in words]
        if model == "gpt":  # words, which begin with a space there
            assert {"the", "was"} <= {*words}
            assert len(words) < len(encoder.tokenizer.ordinary_ids)
        else:
            assert ids == encoder.tokenizer.ordinary_ids.tolist()
        torch.testing.assert_close(vectors, encoder.token_embedding.weight.detach()[ids], rtol=1e-5, atol=1e-6)
        out.unlink()
    with pytest.raises(UserError, match="has no table"):
        run("vectors", "--model", "elmo", "--from", str(toys("elmo") / "encoder"), "--out", str(out))


@pytest.mark.parametrize("header", ["", "5 3\n", " 5\t3 \n", "\ufeff5 3\n", "\ufeff"])
def test_vectors_of_others_become_an_encoder(header: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "glove.txt.gz", tmp_path / "glove"
    with gzip.open(file, "wt") as text:
        text.write(header + GLOVE)
    run("import-vectors", "--vectors", str(file), "--out", str(tmp_path / "one"), "--words", "1")
    assert ": 1 words, 3 numbers each" in capsys.readouterr().out
    run("import-vectors", "--vectors", str(file), "--out", str(out))
    encoder = pipeline.encoders.load(out)
    found = encoder.encode([["The", "café", "opened"]])
    [row] = found.input_ids.tolist()
    assert [encoder.tokenizer.backend.id_to_token(index) for index in row[1:4]] == ["the", "café", "[UNK]"]
    expected = [[0.5, -1, 2], [1, 1, 1], [4.5 / 4, 1 / 4, 1]]
    torch.testing.assert_close(found.layers[0][0, 1:4, :3], torch.tensor(expected))
    assert word2vec.readable(pipeline.encoders.load(out), ["the", "café", "new york", "rock-n-roll"]) == 2
    with pytest.raises(UserError, match="no probabilities"):
        encoder.check_lm()
    capital = word2vec.encoder_of([*(f"word{n}" for n in range(200)), "the", "UNK"], torch.randn(202, 3))
    assert capital.tokenizer.encode_batch(["The word7"])[0] == capital.tokenizer.encode_batch(["the word7"])[0]
    assert "Text is read in lower case." in capsys.readouterr().out
    lines = list(word2vec.as_text(encoder))
    assert not any(line.startswith("new york") for line in lines)  # other readers split at spaces
    assert lines[0] == f"{len(lines) - 1} 3\n"
    assert {len(line.split(" ")) for line in lines[1:]} == {4}
    (tmp_path / "odd.txt").write_text("b\u00a0c 1 2 3\nthe\t4\t5\t6\n\n")
    words, vectors = word2vec.read(tmp_path / "odd.txt", most=9)
    assert (words, vectors.shape) == (["b\u00a0c", "the"], (2, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no word vectors"),
        (b"2 3\n", "no word vectors"),
        (b"word\n", "no word vectors"),
        (b"3 2\nthe 1 2\na 1 2\n", "is not whole: it has 2 of the 3 words of its first line"),
        (b"2 3\nthe 1 2 3\na 1 2\n", "Line 3 of .* is not a word and 3 numbers"),
        (b"the 1 2 3\na 1 x 3\n", "Line 2 of"),
        (b"the 1 nan 3\n", "Line 1 of"),
        (b"2 2\nthe 0.1 0.2 0.5\nof 0.3 0.4 0.6\n", "says 2 numbers, and its first word has 3"),
        (b"\xff\xfe\x00", "no text in UTF-8"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        run("import-vectors", "--vectors", str(file), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_imported_vectors_are_fine_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "vectors.txt"
    words = ["the", "a", "was", "good", "bad", "soup", "garden", "awful", "lovely", "."]
    random = np.random.default_rng(0).normal(size=(len(words), 8))
    file.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, random, strict=True)))
    run("import-vectors", "--vectors", str(file), "--out", str(tmp_path / "encoder"))
    rows = "".join(f"{text},{label}\n" for text, label in (("the soup was good", 1), ("the garden was awful", 0)) * 20)
    (tmp_path / "reviews.csv").write_text("text,label\n" + rows)
    run("finetune", "--model", "cbow", "--from", "encoder", "--task", "reviews", "--data", "reviews.csv")
    model = pipeline.load(tmp_path / "runs/finetune/cbow-reviews/model")
    [answer] = model.predict(["A lovely garden."])
    assert answer["label"] in ("0", "1")
