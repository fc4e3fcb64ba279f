"""Labeled data: which files are read, what their columns and labels become, what is left out."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import datasets
import pytest

from pipeline.data import hub
from pipeline.data.row_sources import rows_of, source_hash
from pipeline.data.tables import read_rows
from pipeline.data.task_files import files_of
from pipeline.errors import UserError
from pipeline.training import task_data as labeled
from pipeline.training.task_report import task_report
from tasks.prompted import Prompted
from tasks.sentiment import Sentiment
from tasks.tagging import Tagging


def written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("text\tlabel\n" + f"of {name}\t1\n")


def test_files_of_a_part(tmp_path: Path) -> None:
    task = Sentiment()
    written(tmp_path, "train.tsv", "training-notes.tsv", "test-00000-of-00002.tsv", "test-00001-of-00002.tsv")
    assert [path.name for path in files_of(task, str(tmp_path), "train")] == ["train.tsv"]
    rows = rows_of(task, str(tmp_path), "test") or []
    assert [row["text"] for _, row in rows] == ["of test-00000-of-00002.tsv", "of test-00001-of-00002.tsv"]
    assert rows_of(task, str(tmp_path), "valid") is None
    (tmp_path / "test-00001-of-00002.tsv").unlink()
    with pytest.raises(UserError, match="has 1 of 2 shards"):
        rows_of(task, str(tmp_path), "test")
    written(tmp_path, "test.jsonl.gz", "test_old.tsv", "test.old.tsv")
    assert [path.name for path in files_of(task, str(tmp_path), "test")] == ["test.jsonl.gz"]
    (tmp_path / "test.jsonl.gz").unlink()
    assert [path.name for path in files_of(task, str(tmp_path), "test")] == ["test.old.tsv"]
    written(tmp_path, "train.csv")
    with pytest.raises(UserError, match=r"Which file is the train part .* train.csv, train.tsv"):
        rows_of(task, str(tmp_path), "train")


def test_a_hidden_file_is_no_part(tmp_path: Path) -> None:
    written(tmp_path, "reviews.tsv", "._reviews.tsv")
    assert [path.name for path in files_of(Sentiment(), str(tmp_path), "train")] == ["reviews.tsv"]
    hidden = tmp_path / "._reviews.tsv"
    assert files_of(Sentiment(), str(hidden), "train") == [hidden]  # as it was named


def test_another_text_is_another_content(tmp_path: Path) -> None:
    written(tmp_path, "train.tsv", "test.tsv")
    before = source_hash(Sentiment(), str(tmp_path))
    assert before == source_hash(Sentiment(), str(tmp_path))
    (tmp_path / "test.tsv").write_text("text\tlabel\nother\t1\n")
    assert source_hash(Sentiment(), str(tmp_path)) != before
    assert source_hash(Sentiment(), None) is None
    (tmp_path / "parts").mkdir()
    written(tmp_path / "parts", "train.tsv", "dev.tsv")
    before = source_hash(Sentiment(), str(tmp_path / "parts"))
    (tmp_path / "parts/dev.tsv").rename(tmp_path / "parts/test.tsv")
    assert source_hash(Sentiment(), str(tmp_path / "parts")) != before  # the same files are other parts
    before = source_hash(Sentiment(), str(tmp_path / "parts"))
    (tmp_path / "parts/train.tsv").rename(tmp_path / "parts/train.csv")
    assert source_hash(Sentiment(), str(tmp_path / "parts")) != before  # the same bytes are other rows


def test_words_and_tags_in_a_table() -> None:
    row = ("row", {"words": "Anna saw Bonn", "tags": "B-PER O B-LOC"})
    task = Tagging()
    task.learn_labels([row])
    example = task.example(row)
    assert example.text == ["Anna", "saw", "Bonn"]
    assert [task.label_names[label] for label in example.label] == ["B-PER", "O", "B-LOC"]
    with pytest.raises(ValueError, match="no labels of rows to ignore"):
        Tagging(ignore=["-"])


def test_ignored_rows_have_no_label() -> None:
    task = Sentiment(ignore=["-"])
    rows = [("row", {"text": "x", "label": label}) for label in ("b", "-", "a")]
    task.learn_labels(rows)
    assert task.label_names == ["a", "b"]
    missing = [("row", {"text": "x", "label": label}) for label in ("", None, math.nan)]  # of CSV, and of JSON
    assert [Sentiment(ignore=[""]).is_ignored(row) for row in (*missing, rows[0])] == [True, True, True, False]
    with pytest.raises(UserError, match="row has an empty label"):
        task.example(missing[1])
    with pytest.raises(UserError, match="row has no 'label'"):
        Sentiment(columns={"text": "text"}).names(("row", {"text": "x"}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": "x", "stars": " "}, "row has an empty label"),
        ({"words": "x", "stars": [3, 7]}, "has \\[3, 7\\] as its label, which is not text"),
        ({"words": ["x", "y"], "stars": 1}, "has \\['x', 'y'\\] as its text"),
        ({"words": "x", "stars": None, "label": "other"}, "row has an empty label"),
        ({"words": "x", "stars": math.nan}, "row has an empty label"),
    ],
)
def test_what_is_no_text_is_not_learned(row: dict, message: str) -> None:
    task = Sentiment(columns={"text": "words", "label": "stars"}, labels={"1": "bad", "2": "good"})
    with pytest.raises(UserError, match=message):
        task.examples([("row", row)])


def test_columns_read_by_their_role_are_reported(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    task = Sentiment(columns={"text": "sentence", "label": "label"})
    options: dict = {"batch_size": 2, "max_length": None, "cut": "head", "epochs": 1, "workers": 0}
    data = labeled.TaskData(task=task, files=str(tmp_path), **options)
    data.read()
    assert task_report(data).splitlines()[0].endswith("read from the column text (there is no sentence)")


def test_parts_that_there_are_not(tmp_path: Path) -> None:
    """A misnamed one had been passed over, and rows of the training part taken instead."""
    splits = {"train": "train", "validation": "dev", "test": "test"}
    wrong: list[dict] = [{"splits": splits}, {"hub_splits": {"dev": "dev"}}, {"splits": None}]
    for options in wrong:
        with pytest.raises(UserError, match="names parts of the data, train, valid, test, and has"):
            Sentiment(**options)
    with pytest.raises(UserError, match="hub has a split: name the parts"):
        Sentiment(hub={"path": "a/b", "split": "train"})
    settings: dict = {"batch_size": 2, "max_length": None, "cut": "head", "workers": 0}
    for epochs in (math.nan, math.inf):
        with pytest.raises(UserError, match=f"data.epochs is {epochs}; it must be above 0"):
            labeled.TaskData(task=Sentiment(), files=str(tmp_path), epochs=epochs, **settings)


def test_a_task_of_three_texts_says_how_they_are_joined() -> None:
    task = Sentiment(labels={"a": "a", "b": "b"})
    task.roles = ("one", "two", "three")  # type: ignore[misc]
    with pytest.raises(UserError, match="a method `example` that says how"):
        task.examples([("row", {"one": "x", "two": "y", "three": "z", "label": "a"})])


def test_labels_of_the_hub_have_names_but_right_answers_stay_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    label = datasets.ClassLabel(names=["no", "yes"])
    columns = {"text": ["a", "b"], "label": [1, 0], "tags": [[0], [1, 1]]}
    features = {"text": datasets.Value("string"), "label": label, "tags": datasets.Sequence(label)}
    found = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    monkeypatch.setattr(hub, "open_hub", lambda **_: found)
    [(place, first), (_, second)] = rows_of(Sentiment(hub={"path": "a/b"}), None, "train") or []
    assert (place, first["label"], second["tags"]) == ("a/b (train), row 1", "yes", ["yes", "yes"])
    [(_, first), _] = rows_of(Prompted(hub={"path": "a/b"}), None, "train") or []
    assert first["label"] == 1


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_the_cache_of_the_hub_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError  # without a text

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"The hub \(127.0.0.1:1\) cannot be reached"):
        hub.configurations(path="a/b", name="*")
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda *_, **__: ["one", "two"])
    assert [found["name"] for found in hub.configurations(path="a/b", name="*")] == ["one", "two"]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: fail())
    with pytest.raises(UserError, match=r"'a/b' cannot be read from the hub \(OSError\)"):
        hub.open_hub(path="a/b")


def test_what_cannot_be_read(tmp_path: Path) -> None:
    whole = gzip.compress(json.dumps({"text": "x" * 5000}).encode())
    for name, content in (("short.jsonl.gz", whole[:-9]), ("damaged.jsonl.gz", whole[:30] + b"??" + whole[32:])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            read_rows(tmp_path / name)


@pytest.mark.parametrize("text", ["  Paris B-place\n  is O\n", " Paris B-place\nis  O \n", "Paris B-place\nis\tO\n"])
def test_any_blanks_are_between_columns(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(text)
    assert [row for _, row in read_rows(tmp_path / "a.conll")] == [{0: ["Paris", "is"], 1: ["B-place", "O"]}]


def test_a_no_break_space_belongs_to_its_word(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("10\u00a0000 O\nParis B-place \n\ncats O\n")
    assert [row for _, row in read_rows(tmp_path / "a.conll")] == [
        {0: ["10\u00a0000", "Paris"], 1: ["O", "B-place"]},
        {0: ["cats"], 1: ["O"]},
    ]


def test_what_is_no_row(tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "a.parquet.gz").write_bytes(b"")
    for name, message in (("deep.jsonl", "line 1 is nested too deeply|it is not JSON"), ("a.parquet.gz", "twice")):
        with pytest.raises(UserError, match=message):
            read_rows(tmp_path / name)


def test_a_part_is_set_aside_only_where_it_was_asked_for(tmp_path: Path) -> None:
    written(tmp_path, "train.tsv", "test.tsv")
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "a\t0\nb\t1\n" * 4)
    settings: dict = {"batch_size": 2, "max_length": None, "cut": "head", "epochs": 1, "workers": 0}
    with pytest.raises(UserError, match="no validation part"):
        labeled.TaskData(task=Sentiment(valid_rows=0), files=str(tmp_path), **settings).read()
    for wanted, count in ((3, 1), (1, 1), (0.25, 2)):  # a fifth at most, unless it is a share
        data = labeled.TaskData(task=Sentiment(valid_rows=wanted), files=str(tmp_path), **settings)
        assert len(data.read()["valid"]) == count
    for wrong in (-1, 2.5, math.nan, math.inf):
        with pytest.raises(UserError, match="number of rows, or a share"):
            Sentiment(valid_rows=wrong)
    hashes = set()
    notes = {
        1: "set aside from training",
        0.5: "50% of the training rows, stratified by label",
        3: "1 of 8 training rows",
    }
    for wanted, note in notes.items():
        data = labeled.TaskData(task=Sentiment(valid_rows=wanted), files=str(tmp_path), **settings)
        data.examples = data.read()
        assert data.found.made["valid"].startswith(note)
        hashes.add(data.stage("sentiment")["sha256"])
    assert len(hashes) == 2  # a run is not resumed with other rows set aside
    parts = [labeled.TaskData(task=Sentiment(valid_rows=3), files=str(tmp_path), seed=s, **settings) for s in (0, 1)]
    assert parts[0].read() == parts[1].read()
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "a\t0\n" * 8)
    task = Sentiment(valid_rows=3, labels={"0": "no", "1": "yes"})
    with pytest.raises(UserError, match="one label only"):
        labeled.TaskData(task=task, files=str(tmp_path), **settings).read()


TEXTS = ["plain", 'say "b"', '"Great"', "one, two; three|four", "two\nlines", "a\ttab", '"', '""', " spaces ", "'"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_what_the_csv_module_writes_is_read(tmp_path: Path, delimiter: str, quoting: int, encoding: str) -> None:
    rows = [{"text": text, "label": "1"} for text in TEXTS]
    for name in ("a.csv", "named.csv", "a.tsv")[: 3 if delimiter == "\t" and quoting == csv.QUOTE_ALL else 2]:
        with open(tmp_path / name, "w", encoding=encoding, newline="") as file:
            file.write(f"sep={delimiter}\r\n" if name == "named.csv" else "")
            writer = csv.DictWriter(file, ["text", "label"], delimiter=delimiter, quoting=quoting)  # type: ignore[arg-type]
            writer.writeheader()
            writer.writerows(rows)
        assert [row for _, row in read_rows(tmp_path / name)] == rows


def test_rows_of_a_table_are_named_by_the_line_where_they_begin(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"two\nlines",1\nlast,2\n')
    assert [place.rpartition(" ")[2] for place, _ in read_rows(tmp_path / "a.csv")] == ["2", "4"]


def test_quotes_of_a_tsv_are_plain_characters_unless_the_csv_module_wrote_the_field(tmp_path: Path) -> None:
    texts = ['say "b"', '"unbalanced', '"Great"', 'to "hold"', '""', '"" and ""', 'an """odd""" one', '"a" and "b"']
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    assert [row["text"] for _, row in read_rows(tmp_path / "a.tsv")] == texts
    (tmp_path / "b.tsv").write_text('text\tlabel\n"say ""b"""\t1\n')
    assert [row["text"] for _, row in read_rows(tmp_path / "b.tsv")] == ['say "b"']


def test_marks_and_halves_of_characters(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\nAnna B-PER\n", encoding="utf-8-sig")
    assert [row for _, row in read_rows(tmp_path / "a.conll")] == [{0: ["Anna"], 1: ["B-PER"]}]
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t1\n", encoding="utf-8-sig")
    assert [row for _, row in read_rows(tmp_path / "a.tsv")] == [{"text": "a", "label": "1"}]
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d b", "words": ["\\ud83d\\ude00"], "label": 1}\n')
    assert [row for _, row in read_rows(tmp_path / "a.jsonl")] == [{"text": "a \ufffd b", "words": ["😀"], "label": 1}]
