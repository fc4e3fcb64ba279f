"""Labeled data as people have them: one file of a common format, columns by any name, no parts, rows with problems."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.cli.task_template import add_missing, new_task
from pipeline.data import labeled
from pipeline.data.splits import drawn, stratified
from pipeline.data.tables import read_rows
from pipeline.errors import UserError
from pipeline.presets.files import named_config
from pipeline.presets.tasks import task_of
from tasks.entailment import Entailment
from tasks.regression import Regression
from tasks.sentiment import Sentiment
from tests.conftest import assert_plot, draw_all, figures, run

WORDS = ["garden", "soup", "film", "river", "city", "music", "winter", "story", "house", "dog", "tree", "road"]


def texts(count: int, words: int = 5) -> list[str]:
    rng = random.Random(0)
    return [f"{' '.join(rng.sample(WORDS, words))} {number}" for number in range(count)]


def reviews(count: int = 60) -> pd.DataFrame:
    verdicts = ["good", "bad", "bad"] * (count // 3)
    frame = pd.DataFrame({"id": range(count), "Review Text": texts(count), "Verdict": verdicts})
    frame.loc[0, "Review Text"] = 'He said "hi", then\nleft; and a|b'
    return frame


WRITERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "a.csv": lambda frame, file: frame.to_csv(file, index=False),
    "index.csv": lambda frame, file: frame.to_csv(file),
    "excel.csv": lambda frame, file: frame.to_csv(
        file, index=False, sep=";", encoding="utf-8-sig", lineterminator="\r\n"
    ),
    "quoted.csv": lambda frame, file: frame.to_csv(file, index=False, quoting=csv.QUOTE_ALL),
    "a.csv.gz": lambda frame, file: frame.to_csv(file, index=False),
    "a.csv.xz": lambda frame, file: frame.to_csv(file, index=False),
    "quoted.tsv": lambda frame, file: frame.to_csv(file, index=False, sep="\t", quoting=csv.QUOTE_ALL),
    "a.jsonl": lambda frame, file: frame.to_json(file, orient="records", lines=True),
    "lines.json": lambda frame, file: frame.to_json(file, orient="records", lines=True),
    "records.json": lambda frame, file: frame.to_json(file, orient="records"),
    "indented.json": lambda frame, file: frame.to_json(file, orient="records", indent=2),
    "columns.json": lambda frame, file: frame.to_json(file),
    "split.json": lambda frame, file: frame.to_json(file, orient="split"),
    "table.json": lambda frame, file: frame.to_json(file, orient="table"),
    "a.parquet": lambda frame, file: frame.to_parquet(file),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_pandas_writes_is_read(tmp_path: Path, name: str) -> None:
    frame = reviews()
    WRITERS[name](frame, tmp_path / name)
    rows = [row for _, row in read_rows(tmp_path / name)]
    for column in frame:
        assert [str(row[column]) for row in rows] == frame[column].astype(str).tolist()
    found = labeled.read(Sentiment(), str(tmp_path / name))
    assert found.columns == {"text": "Review Text", "label": "Verdict"}
    read = {example.text for part in found.parts.values() for example in part.examples}
    assert read == set(frame["Review Text"])


def test_other_encodings_and_formats_are_refused_with_a_way_out(tmp_path: Path) -> None:
    for encoding, said in (("cp1252", "CP1252"), ("utf-16", "UTF-16")):
        (tmp_path / "a.csv").write_bytes("text,label\ncafé,1\n".encode(encoding))
        with pytest.raises(
            UserError, match=f"a.csv is not UTF-8 text.* 'CSV UTF-8' in Excel.*iconv -f {said} -t UTF-8"
        ):
            labeled.read(Sentiment(), str(tmp_path / "a.csv"))
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"a.xlsx cannot be read as a table: .*\.csv.*in Excel: 'CSV UTF-8'"):
        labeled.read(Sentiment(), str(tmp_path / "a.xlsx"))
    (tmp_path / "a.json").write_text('{"text": {}, "label": "a"}')
    with pytest.raises(UserError, match="is not a table: it must be a list of JSON objects"):
        read_rows(tmp_path / "a.json")
    (tmp_path / "a.tsv").write_text('text\tlabel\n"two\nlines"\t1\n')
    with pytest.raises(UserError, match=r"in a .tsv quotes are plain characters, call it .csv"):
        read_rows(tmp_path / "a.tsv")


# ---------------------------------------------------------------------- columns

TABLES: list[tuple[type, list[str], list[list[Any]], dict[str, str] | None]] = [
    (Sentiment, ["text", "label"], [texts(40), [0, 1] * 20], {"text": "text", "label": "label"}),
    (Sentiment, ["idx", "Tweet", "mood"], [range(40), texts(40), ["-", "+"] * 20], {"text": "Tweet", "label": "mood"}),
    (Sentiment, ["title", "body", "topic"], [texts(40), texts(40), [0, 1] * 20], {"text": "body", "label": "topic"}),
    (Sentiment, ["what", "which"], [texts(40), ["x", "y"] * 20], {"text": "what", "label": "which"}),
    (Sentiment, ["a", "b", "which"], [texts(40), texts(40), ["x", "y"] * 20], None),
    (Sentiment, ["text", "stars", "topic"], [texts(40), [1, 2] * 20, ["x", "y"] * 20], None),
    (Sentiment, ["text", "rating"], [texts(40), [n / 7 for n in range(40)]], None),
    (Entailment, ["sentence1", "sentence2", "label"], [texts(40), texts(40), [0, 1] * 20],
     {"premise": "sentence1", "hypothesis": "sentence2", "label": "label"}),
    (Entailment, ["question", "sentence", "gold_label"], [texts(40), texts(40), [0, 1] * 20],
     {"premise": "question", "hypothesis": "sentence", "label": "gold_label"}),
    (Entailment, ["text", "label"], [texts(40), [0, 1] * 20], None),
    (Regression, ["text_a", "text_b", "similarity"], [texts(40), texts(40), [n / 7 for n in range(40)]],
     {"sentence1": "text_a", "sentence2": "text_b", "score": "similarity"}),
    (Regression, ["review", "rating"], [texts(40), [n / 7 for n in range(40)]], {"text": "review", "score": "rating"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "names", "columns", "expected"), TABLES)
def test_columns_are_guessed_or_asked_for(
    tmp_path: Path, kind: Any, names: list[str], columns: list[list[Any]], expected: dict[str, str] | None
) -> None:
    pd.DataFrame(dict(zip(names, columns, strict=True))).to_csv(tmp_path / "a.csv", index=False)
    task = kind()
    if expected is None:
        asked = (
            f"a.csv has the columns {', '.join(names)}, and it is not clear.*write `columns: .*` with the right names"
        )
        with pytest.raises(UserError, match=asked) as caught:
            labeled.read(task, str(tmp_path / "a.csv"))
        assert "\n" not in str(caught.value)
        return
    labeled.read(task, str(tmp_path / "a.csv"))
    assert task.columns == expected
    assert set(task.roles) <= set(expected)


def test_columns_that_the_task_names_are_not_guessed(tmp_path: Path) -> None:
    reviews().to_csv(tmp_path / "a.csv", index=False)
    asked = r"a\.csv has no column 'Urteil', which the task reads as its label; it has .*new-task --name NAME"
    with pytest.raises(UserError, match=asked):
        labeled.read(Sentiment(columns={"text": "Review Text", "label": "Urteil"}), str(tmp_path / "a.csv"))
    with pytest.raises(UserError, match=r"Did you mean 'Review Text'\?"):
        labeled.read(Sentiment(columns={"text": "Review_Text", "label": "Urteil"}), str(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_text("text,foo\na,1\nb,2\n")
    with pytest.raises(UserError, match="no column 'Urteil'"):  # its text is found by its role
        labeled.read(Sentiment(columns={"text": "sentence", "label": "Urteil"}), str(tmp_path / "b.csv"))
    late = [{"text": f"a {n}", "foo": "x"} for n in range(1100)] + [{"text": "b", "Urteil": "y"}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in late))
    with pytest.raises(UserError, match=r"Urteil"):
        labeled.read(Sentiment(columns={"text": "text", "label": "Urteil"}), str(tmp_path / "c.jsonl"))


def test_a_first_line_that_is_a_row_is_noticed(tmp_path: Path) -> None:
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(texts(20)))
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(UserError, match="seems to have no header: '0' is the name of a column"):
        labeled.read(Sentiment(), str(tmp_path / "a.csv"))
    with pytest.raises(UserError, match="seems to have no header"):
        new_task("mine", None, tmp_path, data=str(tmp_path / "a.csv"))


# ---------------------------------------------------------------------- parts


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3)), min_size=8, max_size=60), st.floats(0.05, 0.6))
def test_a_split_keeps_equal_texts_together_and_every_label_in_training(
    rows: list[tuple[int, int]], share: float
) -> None:
    contents, strata = zip(*rows, strict=True)
    count = round(share * len(rows))
    chosen = stratified(contents, strata, count)
    assert len(chosen) <= count
    assert chosen == stratified(contents, strata, count)
    others = set(range(len(rows))) - set(chosen)
    assert not {contents[i] for i in chosen} & {contents[i] for i in others}
    firsts = {contents.index(content): strata[contents.index(content)] for content in contents}
    assert {firsts[contents.index(contents[i])] for i in others} == set(firsts.values())


def test_a_number_of_rows_is_drawn_as_in_earlier_versions() -> None:
    assert drawn(10, 3) == [4, 6, 2]


def test_a_split_is_stratified() -> None:
    strata = ["a"] * 600 + ["b"] * 300 + ["c"] * 99 + ["d"]
    chosen = stratified(range(1000), strata, 100)
    assert len(chosen) == 100
    assert {name: round(count, -1) for name, count in Counter(strata[i] for i in chosen).items()} == {
        "a": 60,
        "b": 30,
        "c": 10,
    }


def test_parts_that_are_missing_are_split_off(tmp_path: Path) -> None:
    frame = reviews()
    frame.to_csv(tmp_path / "reviews.csv", index=False)
    for place in (tmp_path / "reviews.csv", tmp_path):
        found = labeled.read(Sentiment(), str(place))
        assert {split: len(part.rows) for split, part in found.parts.items()} == {"train": 49, "valid": 5, "test": 6}
        assert found.made["test"] == "10% of all rows, stratified by label"
    rows = list(csv.DictReader(found.table().splitlines()))
    assert len({row["place"] for row in rows}) == len(rows) == 60
    (tmp_path / "reviews.csv").rename(tmp_path / "train.csv")
    frame[:8].to_json(tmp_path / "dev.json", orient="records")
    found = labeled.read(Sentiment(valid_rows=0), str(tmp_path))
    assert {split: len(part.rows) for split, part in found.parts.items()} == {"train": 54, "valid": 8, "test": 6}
    assert list(found.made) == ["test"]
    with pytest.raises(UserError, match=r"no test part: no file at .* is named 'test'"):  # a published set has one
        labeled.read(Sentiment(hub={"path": "a/b"}), str(tmp_path))
    (tmp_path / "train.csv").rename(tmp_path / "one.csv")
    frame.to_csv(tmp_path / "two.csv", index=False)
    (tmp_path / "dev.json").unlink()
    with pytest.raises(
        UserError, match=r"Which file is the train part in .*\? There are one.csv, two.csv; name one by"
    ):
        labeled.read(Sentiment(), str(tmp_path))


def test_a_column_may_say_which_part_a_row_is_of(tmp_path: Path) -> None:
    frame = reviews().assign(split=["train"] * 40 + ["validation"] * 10 + ["test"] * 10)
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = labeled.read(Sentiment(), str(tmp_path / "a.csv"))
    tested = [example.text for example in found.parts["test"].examples]
    assert tested == frame["Review Text"][50:].tolist()
    assert [len(part.rows) for part in found.parts.values()] == [40, 10, 10]
    assert found.made["valid"] == "by the column split"
    frame.loc[[3, 45], "split"] = ["TRIAL", None]
    frame.to_csv(tmp_path / "a.csv", index=False)
    found = labeled.read(Sentiment(), str(tmp_path / "a.csv"))
    assert [len(part.rows) for part in found.parts.values()] == [39, 9, 10]
    assert found.made["valid"] == "by the column split; 2 rows of no part left out (TRIAL, nothing)"
    frame.assign(split="test").to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(UserError, match="The column split says which part a row belongs to, and no row has 'train'"):
        labeled.read(Sentiment(), str(tmp_path / "a.csv"))


@pytest.mark.parametrize("name", ["dev.csv", "test.csv", "my-reviews.csv"])
def test_of_a_single_file_all_rows_are_scored_whatever_its_name(name: str, tmp_path: Path) -> None:
    reviews().to_csv(tmp_path / name, index=False)
    labeled.read(task := Sentiment(), str(shutil.copy(tmp_path / name, tmp_path / "all.csv")))
    for part in ("test", "valid"):
        assert len(labeled.read_part(task, str(tmp_path / name), part).parts[part].rows) == 60


def test_few_rows_are_not_taken_for_wrong_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,score\n" + "".join(f"text {n},{n / 7}\n" for n in range(9)))
    with pytest.raises(UserError, match="has 9 rows, too few to set some aside for test"):
        labeled.read(Regression(), str(tmp_path / "a.csv"))


def test_labels_that_no_two_rows_share_are_no_lack_of_rows(tmp_path: Path) -> None:
    lines = [f"text {number},name {number}" for number in range(30)]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    with pytest.raises(UserError, match="Each of the 30 training rows has a label of its own"):
        labeled.read(Sentiment(), str(tmp_path / "a.csv"))


def test_a_split_of_few_texts_says_how_large_it_is(tmp_path: Path) -> None:
    rows = ["great", "poor"] * 50 + ["fine", "bad"]  # two texts hold nearly all rows
    lines = [f"{text},{number % 2}" for number, text in enumerate(rows)]
    (tmp_path / "a.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    found = labeled.read(Sentiment(), str(tmp_path / "a.csv"))
    for split in ("valid", "test"):
        assert len(found.parts[split].rows) >= 5
        share = float(found.made[split].split("%")[0])
        assert share == pytest.approx(10, abs=5)


def test_columns_of_json_are_joined_by_the_numbers_of_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"text": {"0": "a", "1": "b"}, "label": {"1": "B", "0": "A"}}')
    assert [row for _, row in read_rows(file)] == [{"text": "a", "label": "A"}, {"text": "b", "label": "B"}]
    file.write_text('{"text": "a", "label": 1}')
    assert [row for _, row in read_rows(file)] == [{"text": "a", "label": 1}]
    for content in ('{"text": {"0": "a", "2": "c"}, "label": {"0": "A", "1": "B"}}', '{"text": ["a"], "label": []}'):
        file.write_text(content)
        with pytest.raises(UserError, match="is not a table"):
            read_rows(file)


def test_training_rows_without_any_label_are_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,-\nb,-\n")
    with pytest.raises(UserError, match="No training row has a label"):
        labeled.read(Sentiment(ignore=["-"]), str(tmp_path / "a.csv"))


def test_a_test_part_of_one_label_and_labels_with_dollars(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_all(monkeypatch)
    prices = ["$5_$10", "$10_$50"]  # no formulas of matplotlib
    rows = [f"{'cheap' if number % 2 else 'dear'} thing {number},{prices[number % 2]}\n" for number in range(60)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(rows))
    (tmp_path / "test.csv").write_text("text,label\n" + "".join(rows[1:20:2]))
    (tmp_path / "prices.yaml").write_text("data: {task: {class_path: tasks.sentiment.Sentiment}}\n")
    flags = ["--model=ngram", f"--task={tmp_path}/prices.yaml", "--data", str(tmp_path), "--out", str(tmp_path / "run")]
    run("finetune", *flags)
    assert_plot(tmp_path / "run/confusion.png")
    end, shown = figures(tmp_path / "run"), capsys.readouterr()
    assert (end["test/accuracy"], end["degenerate"], end["test/matthews"]) == (1.0, False, 0.0)
    assert "learned nothing" not in shown.out + shown.err


# ---------------------------------------------------------------------- problems


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    lines = ["text,label", *(f"{text},{number % 2}" for number, text in enumerate(texts(40)))]
    lines[3:5] = [",1", "no label,"]
    lines[6] = "a,1,more"
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    unknown = "".join(f"{text},2\n" for text in texts(12))
    (tmp_path / "test.csv").write_text("text,label\n" + unknown)
    with pytest.raises(UserError) as caught:
        labeled.read(Sentiment(), str(tmp_path))
    first, *shown, last = str(caught.value).splitlines()
    assert first == "The data have 15 problems:"
    said = ["train.csv, line 7 has 3 columns, its header has 2", "train.csv, line 4 has an empty text"]
    said += [
        "train.csv, line 5 has an empty label",
        "test.csv, line 2 has the label '2'; the training part has only 0, 1",
    ]
    for sentence in said:
        assert any(sentence in line for line in shown), sentence
    assert [line.partition("line ")[2].split()[0] for line in shown if "train.csv" in line] == ["4", "5", "7"]
    assert len(shown) == 10
    assert last == "  and 5 more: 5 with an unknown label."
    (tmp_path / "one.csv").write_text("text,label\n" + "".join(f"{text},1\n" for text in texts(12)) + ",1\n")
    with pytest.raises(
        UserError, match=r"(?s)2 problems:.*All training rows have the label 1.*line 14 has an empty text"
    ):
        labeled.read(Sentiment(), str(tmp_path / "one.csv"))


# ---------------------------------------------------------------------- the commands


def frames() -> dict[str, tuple[pd.DataFrame, str]]:
    numbers = [n / 7 for n in range(40)]
    pair = {"sentence1": texts(40), "sentence2": texts(40, 4)}
    words = pd.DataFrame({"tokens": [text.split() for text in texts(40)], "ner_tags": [["O"] * 5 + ["B-N"]] * 40})
    return {
        "sentence": (reviews(), "{text: Review Text, label: Verdict}"),
        "multilabel": (
            pd.DataFrame({"text": texts(40), "labels": [["joy"], ["joy", "fear"], [], ["fear"]] * 10}),
            "{text: text, label: labels}",
        ),
        "pair": (pd.DataFrame({**pair, "label": ["yes", "no"] * 20}), "label: label}"),
        "questions": (
            pd.DataFrame({"id": range(40), "query": texts(40, 4), "passage": texts(40), "answer": texts(40)}),
            "{question: query, context: passage, answers: answer}",
        ),
        "regression": (pd.DataFrame({**pair, "score": numbers}), "score: score}"),
        "tagging": (words, "{words: tokens, tags: ner_tags}"),
    }


@pytest.mark.parametrize("kind", sorted(frames()))
def test_a_new_task_is_made_from_its_data(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame, columns = frames()[kind]
    frame.to_json("a.jsonl", orient="records", lines=True)
    run("new-task", "--name", "mine", "--data", "a.jsonl")
    assert columns in Path("configs/tasks/mine.yaml").read_text()
    assert "finetune --task mine --data a.jsonl" in capsys.readouterr().out
    file = named_config("tasks", "mine")
    assert file == Path("configs/tasks/mine.yaml")
    task: Any = task_of(file)
    assert task.kind == kind
    assert sum(len(part.rows) for part in labeled.read(task, "a.jsonl").parts.values()) == len(frame)


def test_a_new_task_is_guessed_from_the_rows_that_can_be_read(tmp_path: Path) -> None:
    """All problems are listed when it is trained on."""
    rows = [f"{text},{number % 2}" for number, text in enumerate(texts(30))]
    Path("a.csv").write_text("\n".join(["text,label", *rows, "one", ",1", "a,b,c"]) + "\n")
    run("new-task", "--name", "mine", "--data", "a.csv")
    task: Any = task_of(named_config("tasks", "mine"))
    with pytest.raises(UserError, match=r"(?s)3 problems:.*line 32 has 1 column, .*line 33 .*line 34 has 3 columns"):
        labeled.read(task, "a.csv")
    Path("b.jsonl").write_text("no\nnone\n")
    with pytest.raises(UserError, match=r"(?s)The data have 2 problems:.*b.jsonl, line 1.*b.jsonl, line 2"):
        new_task("other", None, tmp_path, data="b.jsonl")


def test_a_new_task_is_made_from_conll_columns(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Anna\tB-PER\nsaw\tO\n\nBonn\tB-LOC\n\n" * 10)
    (tmp_path / "a.conllu").write_text("1\tShe\tshe\tPRON\tPRP\t_\t0\troot\t_\t_\n\n" * 10)
    fields = {}
    for name in ("a.conll", "a.conllu"):
        [file, *_] = new_task(f"from-{name[2:]}", None, tmp_path, data=str(tmp_path / name))
        fields[name] = yaml.safe_load(file.read_text())["data"]["task"]["init_args"]
    assert (fields["a.conll"]["conll"], fields["a.conll"]["spans"]) == ({"words": 0, "tags": 1}, True)
    assert (fields["a.conllu"]["conll"], fields["a.conllu"]["spans"]) == ({"words": 1, "tags": 3}, False)


FIELDS: dict[str, tuple[str, dict[str, Any]]] = {  # what a file holds -> what is said of it
    "spaces.conll": ("Anna \t B-PER \nsaw\tO\n\n" * 10, {"conll": {"words": 0, "tags": 1}, "spans": True}),
    "tag-first.conll": ("B-PER\tAnna\nO\tsaw\n\n" * 10, {"conll": {"words": 1, "tags": 0}, "spans": True}),
    "some-wrong.jsonl": (
        '{"tokens": ["Anna", "saw"], "tags": ["B-PER", "O"]}\n' * 19 + '{"tokens": ["a"], "tags": ["O", "O"]}\n',
        {"columns": {"words": "tokens", "tags": "tags"}, "spans": True},
    ),
    "classes.csv": (
        "text,comment,label\n" + "".join(f"a text of {n},none so far,{n % 25}\n" for n in range(200)),
        {"columns": {"text": "text", "label": "label"}, "labels": {str(n): str(n) for n in range(25)}},
    ),
}


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_new_task_sees_in_its_data(name: str, tmp_path: Path) -> None:
    text, expected = FIELDS[name]
    (tmp_path / name).write_text(text)
    [file, *_] = new_task("mine", None, tmp_path, data=str(tmp_path / name))
    fields = yaml.safe_load(file.read_text())["data"]["task"]["init_args"]
    assert {key: fields.get(key) for key in expected} == expected


def as_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


REFUSED = {
    "commas.conll": ("Anna,B-PER\nsaw,O\n\n" * 9, "has one column: a line of CoNLL columns is a word, a tab or space"),
    "empty.csv": ("text,label\n", "empty.csv holds no row to guess the columns from.$"),
    "words.csv": (
        "Sentence #,Word,POS,Tag\n" + "1,Anna,NNP,B-PER\n,saw,VBD,O\n" * 9,
        "Word, and its tag under Tag:",
    ),
    "one.csv": (
        "text,label\n" + "".join(f"text {n},pos\n" for n in range(9)),
        "one.csv have the label pos",
    ),
    "classes.csv": (
        "id,text,animal,size,colour,score\n" + "".join(f"{n},some text {n},cat,big,red,{n / 7}\n" for n in range(9))
        + "9,some text,dog,small,blue,0.5\n",
        "columns id, text, animal, size, colour, score, .* text and label: .*--kind regression --data .*classes.csv`",
    ),
    "answers.jsonl": (
        as_lines({"context": text, "remark": f"{text}?", "reply": text, "replies": {"text": [text], "at": [n % 3]}}
                 for n, text in enumerate(texts(30))),
        "columns context, remark, reply, replies, and it is not clear",
    ),
    "two.jsonl": (
        as_lines({"first": text, "second": text, "label": n % 2} for n, text in enumerate(texts(30))),
        "premise and hypothesis and label: .*new-task --name mine --kind pair` writes that file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_data_of_which_no_task_is_made(name: str, tmp_path: Path) -> None:
    text, message = REFUSED[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        new_task("mine", None, tmp_path, data=str(tmp_path / name))
    assert not (tmp_path / "configs").exists()


def test_what_looks_like_several_classes_may_be_a_regression_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(REFUSED["classes.csv"][0])
    [file, *_] = new_task("mine", "regression", tmp_path, data=str(tmp_path / "a.csv"))
    assert "columns: {text: text, score: score}" in file.read_text()


def test_another_text_that_is_not_read_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_text(as_lines({"text": t, "reply": t, "label": n % 2} for n, t in enumerate(texts(30))))
    run("new-task", "--name", "mine", "--data", "a.jsonl")
    assert "Of a.jsonl, reply is not read; for pairs of texts: `" in capsys.readouterr().out


def test_a_label_that_may_stand_for_none_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.csv").write_text("text,label\n" + "a good text,1\na bad text,0\na lost text,None\n" * 9)
    run("new-task", "--name", "mine", "--data", "a.csv")
    assert "If the label None means that there is none" in capsys.readouterr().out


def test_parts_may_be_named_in_capitals(tmp_path: Path) -> None:
    for name, rows in (("Train.csv", 60), ("TEST.CSV", 20)):
        (tmp_path / name).write_text("text,label\n" + "".join(f"text {n} of {name},{n % 2}\n" for n in range(rows)))
    found = labeled.read(Sentiment(), str(tmp_path))
    assert {split: len(part.rows) for split, part in found.parts.items()} == {"train": 54, "valid": 6, "test": 20}


def test_a_name_with_more_behind_that_of_another_task_is_a_new_one(tmp_path: Path) -> None:
    reviews().to_csv("reviews.csv", index=False)
    add_missing("sentiment2", "reviews.csv")
    assert Path("configs/tasks/sentiment2.yaml").is_file()
    assert not Path("tests").exists()
    Path("story.txt").write_text(
        "It was a dark night.\n\nThe rain fell in torrents, and the wind blew hard.\nSo they say.\n"
    )
    lines = [
        f"word{n} {'B-x' if n % 3 else 'O'}" + " more" * (n % 10 == 9) + "\n" * (1 + (n % 20 == 0)) for n in range(400)
    ]
    Path("tags.txt").write_text("".join(lines))
    add_missing("tags", "tags.txt")  # one line in ten has another number of columns: training lists these
    assert "tasks.tagging.Tagging" in Path("configs/tasks/tags.yaml").read_text()
    with pytest.raises(UserError, match=r"story\.txt is no CoNLL file: .*pretrain --corpus story.txt"):
        add_missing("story", "story.txt")
    assert not Path("configs/tasks/story.yaml").exists()


def test_one_file_is_enough(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = reviews()
    frame.to_csv("reviews.csv", index=False)
    small = ["--from", str(pretrained / "encoder"), "--validations=1", "--precision=32-true", "--trainer.max_steps=1"]
    with pytest.raises(
        UserError, match=r"no task sentimnt\. Did you mean sentiment\? .*new-task --name sentimnt"
    ):  # a slip is no new task
        run("finetune", "--task", "sentimnt", "--data", "reviews.csv", *small)
    for seed in ("0", "1"):
        run("finetune", "--task", "mine", "--data", "reviews.csv", "--out", seed, "--seed", seed, *small)
    said = capsys.readouterr().out
    assert said.count("Wrote configs/tasks/mine.yaml") == 1
    assert "test 6 rows (" in said
    assert "splits.csv says which row is in which part" in said
    assert Path("0/splits.csv").read_text() == Path("1/splits.csv").read_text()
    assert figures(Path("0"))["test/rows"] == 6
    tested = {json.loads(line)["text"] for line in Path("0/predictions.jsonl").read_text().splitlines()}
    assert tested < set(frame["Review Text"])
    for name in ("reviews.csv", "reviews.parquet"):
        frame.to_parquet("reviews.parquet")
        run("predict", "--from", "0/model", "--data", name, "--out", f"{name}.csv")
    for name, why in (("reviews.csv.csv", "is there already"), ("new.xlsx", "no table of that kind")):
        with pytest.raises(UserError, match=why):
            run("predict", "--from", "0/model", "--data", "reviews.csv", "--out", name)
    answers = pd.read_csv("reviews.csv.csv")
    assert answers["Review Text"].tolist() == frame["Review Text"].tolist()
    assert set(answers["predicted_label"]) <= {"good", "bad"}
    assert answers[["probability_good", "probability_bad"]].sum(axis=1).tolist() == pytest.approx([1] * 60)
    assert Path("reviews.parquet.csv").read_text() == Path("reviews.csv.csv").read_text()
    for name in ("reviews.csv.csv", "reviews.csv.csv.csv"):  # answers of other models, beside those that are there
        run("predict", "--from", "0/model", "--data", name, "--out", f"{name}.csv")
    header = Path("reviews.csv.csv.csv.csv").read_text().partition("\n")[0].split(",")
    assert len(header) == len({*header}) == len(frame.columns) + 3 * (len(answers.columns) - len(frame.columns))
    Path("empty.csv").write_text("Review Text\n")
    with pytest.raises(UserError, match=r"empty.csv has no texts, so there is no table to write"):
        run("predict", "--from", "0/model", "--data", "empty.csv", "--out", "answers.csv")
    assert not Path("answers.csv").exists()
    capsys.readouterr()
    run("score", "--from", "0", "--data", "reviews.csv")
    trained = Path("0/splits.csv").read_text().count("train,")
    assert f"Warning: the model was trained on {trained} of these rows" in capsys.readouterr().out
    for command, more in (("zeroshot", []), ("worth", ["--of", "prompt"])):
        with pytest.raises(UserError, match=f"tasks/{command}.yaml has no prompts; .* candidates: {{bad: "):
            run(command, "--task", command, "--data", "reviews.csv", *small[:2], *more)
