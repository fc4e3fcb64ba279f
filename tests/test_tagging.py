"""Tagging: columns of files, schemes of tags, windows, the CRF, and what a word's label is read from."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline
from pipeline.data.rows import word_windows
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from pipeline.finetuning.heads.crf import Crf
from pipeline.finetuning.heads.token import TokenHead
from pipeline.metrics import span_scores
from tasks.bio import spans, to_bio
from tasks.tagging import Tagging
from tests.test_tuned import options


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_conll_columns(tmp_path: Path) -> None:
    conllu = """\
# sent_id = 1
# text = a b c d e f g h
1\tShe\tshe\tPRON\tPRP\t_\t0\troot\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVB\t_\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t0\troot\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# sent_id = 2
1\t#\t#\tSYM\t#\t_\t0\troot\t_\t_
"""
    rows = read_rows(written(tmp_path, "a.conllu", conllu))
    assert [row[1] for _, row in rows] == [["She", "do", "n't"], ["#"]]
    assert [row[3] for _, row in rows] == [["PRON", "AUX", "PART"], ["SYM"]]
    assert rows[0][0].endswith("a.conllu, line 3")

    news = "-DOCSTART- -X- O\n\nEU NNP I-ORG\n# # B-NP\n\u200b NN O\n\n\nBonn NNP I-LOC\n"
    rows = read_rows(written(tmp_path, "b.txt", news))
    assert [row[0] for _, row in rows] == [["EU", "#", "\u200b"], ["Bonn"]]

    tweets = "#tag\tO\n\n:)\tO\n"
    assert [row[0] for _, row in read_rows(written(tmp_path, "c.conll", tweets))] == [["#tag"], [":)"]]

    tweets = "#MondayMood O\nin O\nBonn B-LOC\n\n# O\n"
    found = [row[0] for _, row in read_rows(written(tmp_path, "c.txt", tweets))]
    assert found == [["#MondayMood", "in", "Bonn"], ["#"]]
    for space in (" ", "\t"):  # a comment with as many columns, or with the other separator
        said = f"# id 5239d808-f300{space}domain=train\n"
        text = f"{said}Anna _ _ B-PER\nLee _ _ I-PER\n\n{said}# _ _ O\n"
        assert [row[0] for _, row in read_rows(written(tmp_path, "m.conll", text))] == [["Anna", "Lee"], ["#"]]

    with pytest.raises(UserError, match=r"d\.txt, line 2 has 1 columns, the lines before it have 2"):
        read_rows(written(tmp_path, "d.txt", "a O\nb\n"))
    [row] = read_rows(written(tmp_path, "e.txt", "a O\n"))
    with pytest.raises(UserError, match=r"e\.txt, line 1 has only 2 columns; the tags should be in column 3"):
        Tagging(conll={"words": 0, "tags": 3}).examples([row])


def test_tags_of_any_scheme_become_bio() -> None:
    bio = ["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "O"]
    assert to_bio(["I-PER", "I-PER", "O", "I-LOC", "B-LOC", "O"]) == bio  # IOB1
    assert to_bio(["B-PER", "E-PER", "O", "S-LOC", "S-LOC", "O"]) == bio  # IOBES
    assert to_bio(bio) == bio
    task = Tagging()
    rows = [("one", {"words": ["Anna", "in", "Bonn"], "tags": ["I-PER", "O", "I-LOC"]})]
    task.learn_labels(rows)
    assert task.label_names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    [example] = task.examples(rows)
    assert [task.label_names[tag] for tag in example.label] == ["B-PER", "O", "B-LOC"]
    for broken, message in (
        ({"words": ["a", "b"], "tags": ["O"]}, "two has 2 words but 1 tags"),
        ({"words": ["a"], "tags": ["B-ORG"]}, "two has the label 'B-ORG'; the training part has only O, B-LOC"),
        ({"words": ["a"], "tags": ["NOUN"]}, "not a BIO or IOBES tag; set spans: false"),
        ({"words": ["a"], "tags": ["U-PER"]}, "'U-PER', which is not a BIO or IOBES tag"),
        ({"words": ["a"]}, "two has no 'tags'"),
        ({"words": ["a"], "tags": 3}, "two has 3 as its tags, which is not a list"),
        ({"words": ["a", None], "tags": ["O", "O"]}, "None.* as its words"),
        ({"words": ["a"], "tags": [""]}, "two has an empty label"),
    ):
        with pytest.raises(UserError, match=message):
            task.examples([("two", broken)])


def test_every_word_is_asked_for_once() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        room = rng.randint(4, 40)
        counts = [rng.randint(1, rng.choice([2, room])) for _ in range(rng.randint(1, 80))]
        windows = word_windows(counts, room)
        assert [i for _, asked in windows for i in asked] == list(range(len(counts)))
        for window, asked in windows:
            assert sum(counts[i] for i in window) <= room
            assert set(asked) <= set(window)
    inner = word_windows([1] * 100, 20)[1]
    assert inner[1].start - inner[0].start >= 2
    assert inner[0].stop - inner[1].stop >= 2


def test_crf_equals_all_sequences() -> None:
    torch.manual_seed(0)
    crf, lengths = Crf(3), [4, 1, 3]
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    emissions = torch.randn(3, 4, 3)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    tags = torch.randint(3, (3, 4)).masked_fill(~mask, -1)
    crf.requires_grad_(False)
    likelihood, decoded = crf.log_likelihood(emissions, tags, mask), crf.decode(emissions, mask)
    marginals = crf.marginals(emissions, mask)
    for row, n in enumerate(lengths):
        scores: dict[tuple[int, ...], float] = {}
        for sequence in itertools.product(range(3), repeat=n):
            score = crf.start[sequence[0]] + crf.end[sequence[-1]]
            score = score + sum(emissions[row, i, tag] for i, tag in enumerate(sequence))
            scores[sequence] = float(score + sum(crf.transitions[a, b] for a, b in itertools.pairwise(sequence)))
        total = np.logaddexp.reduce(list(scores.values()))
        assert float(likelihood[row]) == pytest.approx(scores[tuple(tags[row, :n].tolist())] - total, abs=1e-5)
        assert tuple(decoded[row, :n].tolist()) == max(scores, key=scores.__getitem__)
        for i in range(n):
            for tag in range(3):
                share = sum(np.exp(s - total) for sequence, s in scores.items() if sequence[i] == tag)
                assert float(marginals[row, i, tag]) == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("words", ["first", "mean"])
def test_a_word_is_read_from_its_pieces(pretrained: Path, words: str) -> None:
    encoder = pipeline.encoders.load(pretrained / "encoder")
    head = TokenHead(encoder, outputs=4, options=options(name="token", words=words))
    texts = [["unbelievably", "\u200b", "good"], ["yes"]]
    batch = head.inputs(encoder, head.features(encoder, texts, max_length=40, cut="head"))
    with torch.no_grad():
        logits = head(encoder, batch, encoder(batch))
        top = encoder(batch).layers[-1]
        at = 1
        for number, pieces in enumerate(encoder.word_pieces(texts[0])):
            vectors = top[0, at : at + len(pieces)]
            expected = head.classifier(vectors[0] if words == "first" else vectors.mean(0))
            assert (logits[0, number] - expected).abs().max() < 1e-5
            at += len(pieces)
    assert len(encoder.word_pieces(texts[0])[0]) > 1


def test_the_worst_sentences_come_first() -> None:
    words, gold = ["a", "b", "c"], ["O", "O", "O"]
    rows = [{"words": words, "gold": gold, "tags": tags.split()} for tags in ("O O O", "X O O", "X O X")]
    assert Tagging().worst(rows)[1] == [["a b c", "O O O", "X O X"], ["a b c", "O O O", "X O O"]]


def test_known_spans_are_counted_as_conlleval_does() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG"]]
    found = [["B-PER", "O", "O", "I-LOC"], ["O", "B-ORG"]]  # an I without a B begins a span
    scores = span_scores(gold, found)
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert spans(["I-A", "I-B", "B-B"]) == [("A", 0, 0), ("B", 1, 1), ("B", 2, 2)]
