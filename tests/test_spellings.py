"""One thing written in several ways in people's files: lists in cells, accents, spaces, parts, comments, numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.data import labeled
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from tasks.dataset import as_list
from tasks.multilabel import MultiLabel
from tasks.regression import Regression
from tasks.sentiment import Sentiment
from tasks.tagging import Tagging
from tests.conftest import run


def test_lists_that_pandas_wrote_into_a_table_are_lists(tmp_path: Path) -> None:
    sets, tags = [["joy", "anger"], [], ["fear"]], [["O", "B-PER"], ["O", "O"], ["B-PER", "O"]]
    words = [["met", "Ada"], ["it's", 'a "b"'], ["Ada", "met"]]
    texts = ["one text here", "two of them", "a third text"]
    pd.DataFrame({"text": texts * 9, "emotions": sets * 9}).to_csv(tmp_path / "sets.csv", index=False)
    pd.DataFrame({"words": words * 9, "tags": tags * 9}).to_csv(tmp_path / "tags.csv", index=False)
    arrays = [np.array(part) for part in tags]
    pd.DataFrame({"words": words * 9, "tags": arrays * 9}).to_csv(tmp_path / "arrays.csv", index=False)
    task = MultiLabel(columns={"text": "text", "label": "emotions"})
    assert {tuple(task.names(row)) for row in read_rows(tmp_path / "sets.csv")} == {("joy", "anger"), (), ("fear",)}
    for name in ("tags.csv", "arrays.csv"):
        rows = read_rows(tmp_path / name)
        assert [Tagging().names(row) for row in rows[:3]] == tags
        assert [Tagging().column(row, "words") for row in rows[:3]] == words
    for name, kind in (("sets.csv", "tasks.multilabel.MultiLabel"), ("tags.csv", "tasks.tagging.Tagging")):
        run("new-task", "--name", Path(name).stem, "--data", str(tmp_path / name))
        assert kind in Path("configs/tasks", name).with_suffix(".yaml").read_text()


def test_equal_texts_are_equal_whatever_their_spaces_and_accents(tmp_path: Path) -> None:
    same = ["un café  noir", "un cafe\u0301 noir", " un café noir"]
    rows = [(text, number % 2) for number in range(20) for text in (*same, f"text {number}")]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    parts = labeled.read(
        Sentiment(labels=None, columns={"text": "text", "label": "label"}), str(tmp_path / "a.csv")
    ).parts
    holding = [name for name, part in parts.items() if any("noir" in str(row.text) for row in part.examples)]
    assert len(holding) == 1


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("['The' 'cat' ',' 'sat' '.']", ["The", "cat", ",", "sat", "."]),
        ("['a', ' ', \"it's\"]", ["a", " ", "it's"]),
        ("[1, 2]", [1, 2]),
        ("[3]", [3]),
        ("[]", []),
        (r"['a\d']", [r"a\d"]),
        ("[ 12 ]", "[ 12 ]"),
        ("[see 3]", "[see 3]"),
        ("['a' 'b', 'c']", "['a' 'b', 'c']"),
        ("[None, 'a']", "[None, 'a']"),
        ("[CLS] a text [SEP]", "[CLS] a text [SEP]"),
    ],
)
def test_what_a_cell_holds_as_a_list(cell: str, expected: object) -> None:
    assert as_list(cell) == expected


def test_a_model_of_labels_with_accents_apart_goes_on_with_them(tmp_path: Path) -> None:
    apart = "e\u0301te\u0301"
    for task in (Sentiment(labels={"0": apart, "1": "b"}), Sentiment(labels=None)):
        task.take_outputs([apart, "b"])
        assert task.indices(("row", {"text": "x", "label": apart})) == [0]
        assert task.indices(("row", {"text": "x", "label": "\xe9t\xe9"})) == [0]
    assert Sentiment(ignore=["\xe9t\xe9"]).is_ignored(("row", {"text": "x", "label": apart}))


def test_ways_to_write_an_accent_are_one_label_and_cases_are_said(tmp_path: Path) -> None:
    names = ["café", "cafe\u0301", "thé", "The", "the"]
    lines = [f"text {number},{names[number % 5]}\n" for number in range(60)]
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(lines))
    task = Sentiment(labels=None, columns={"text": "text", "label": "label"})
    labeled.read(task, str(tmp_path / "a.csv"))
    assert task.label_names == ["The", "café", "the", "thé"]
    assert "(The, the differ in case alone" in task.describe_labels([])


def test_a_column_of_parts_has_two_of_them(tmp_path: Path) -> None:
    kinds = ["train", "car", "bus", "ship"]
    lines = [f"text {number},{number % 2},{kinds[number // 15]}\n" for number in range(60)]
    for name, left in (("part", 60), ("split", 15)):  # all rows, or those of "train"
        (tmp_path / "a.csv").write_text(f"text,label,{name}\n" + "".join(lines))
        task = Sentiment(labels=None, columns={"text": "text", "label": "label"})
        parts = labeled.read(task, str(tmp_path / "a.csv")).parts
        assert sum(len(part.rows) for part in parts.values()) == left
    held_out = [f"text {number},{number % 2},{'train' if number < 45 else 'heldout'}\n" for number in range(60)]
    (tmp_path / "a.csv").write_text("text,label,set\n" + "".join(held_out))
    parts = labeled.read(
        Sentiment(labels=None, columns={"text": "text", "label": "label"}), str(tmp_path / "a.csv")
    ).parts
    assert sum(len(part.rows) for part in parts.values()) == 45


def test_a_file_of_one_sentence_and_comments_without_values(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"words": ["Ada", "sees"], "tags": ["B-PER", "O"]}')
    assert [row for _, row in read_rows(tmp_path / "one.json")] == [{"words": ["Ada", "sees"], "tags": ["B-PER", "O"]}]
    columns = '{"text": ["good film", "bad one"], "label": ["good", "bad"], "tokens": [2, 2]}'
    (tmp_path / "columns.json").write_text(columns)
    assert [row["tokens"] for _, row in read_rows(tmp_path / "columns.json")] == [2, 2]
    (tmp_path / "columns.json").write_text('{"words": ["Ada sees .", "So it is"], "tags": ["B-PER O O", "O O O"]}')
    assert len(read_rows(tmp_path / "columns.json")) == 2
    (tmp_path / "a.conllu").write_text("# newdoc\n# a comment\n# text = The\n1\tThe\tDET\n\n# \n1\tA\tDET\n")
    assert [row[1] for _, row in read_rows(tmp_path / "a.conllu")] == [["The"], ["A"]]
    (tmp_path / "a.conll").write_text("# newdoc\n# newpar\nAda B-PER\n# O\n\nSo O\n")
    assert [row for _, row in read_rows(tmp_path / "a.conll")] == [
        {0: ["Ada", "#"], 1: ["B-PER", "O"]},
        {0: ["So"], 1: ["O"]},
    ]


def test_keys_that_are_there_twice_and_numbers_with_underscores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x", "label": "a", "label": "b"}\n')
    with pytest.raises(UserError, match="line 1 has the key 'label' twice"):
        read_rows(tmp_path / "a.jsonl")
    (tmp_path / "a.csv").write_text("text,score\n" + "".join(f"text {n},{n}_0\n" for n in range(60)))
    with pytest.raises(UserError, match="has the score '0_0', which is not a finite number"):
        labeled.read(Regression(columns={"text": "text", "score": "score"}), str(tmp_path / "a.csv"))
