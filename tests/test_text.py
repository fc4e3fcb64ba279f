"""Text in, documents out, whatever the file."""

from __future__ import annotations

import gzip
import itertools
import json
import lzma
import socket
from collections.abc import Iterator
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from pipeline.data import hub
from pipeline.data.documents import Source
from pipeline.data.files import find_files, root_of, splits_of
from pipeline.data.sentences import sentences
from pipeline.errors import UserError


def documents(path: Path, **options: str) -> list[list[str]]:
    return [document for document, _ in Source(files=[path], **options).documents()]


DOCUMENTS = [["One line.", "Another line."], ["A second document."]]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_every_format_gives_the_same_documents(tmp_path: Path, kind: str, suffix: str) -> None:
    blank = "\n\n".join("\n".join(document) for document in DOCUMENTS)
    rows = "\n".join(json.dumps({"text": "\n".join(document)}) for document in DOCUMENTS)
    content = (blank if kind == ".txt" else rows).encode()
    pack = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix]
    path = tmp_path / f"corpus{kind}{suffix}"
    path.write_bytes(pack(content))
    assert documents(path) == DOCUMENTS


def test_parquet_and_another_column(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["\n".join(document) for document in DOCUMENTS]}), path)
    assert documents(path, column="body") == DOCUMENTS
    with pytest.raises(UserError, match="no column 'text'"):
        documents(path)


def test_a_null_text_is_left_out(tmp_path: Path) -> None:
    texts = ["\n".join(document) for document in DOCUMENTS]
    pyarrow.parquet.write_table(pyarrow.table({"text": [texts[0], None, texts[1]]}), tmp_path / "a.parquet")
    rows = [{"text": texts[0]}, {"text": None}, {"text": texts[1]}]
    (tmp_path / "a.JSONL").write_text("\n".join(map(json.dumps, rows)))
    assert documents(tmp_path / "a.parquet") == documents(tmp_path / "a.JSONL") == DOCUMENTS
    assert [path.name for path in find_files(str(tmp_path))] == ["a.JSONL", "a.parquet"]


def test_a_hub_column_that_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.data.documents.open_hub", lambda **_: [{"text": "a", "id": 3}])
    with pytest.raises(UserError, match="The column 'id' of some/corpus holds no text"):
        list(Source(hub={"path": "some/corpus"}, column="id").documents())


def test_a_hub_at_another_port_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        for spelled in (name, name.upper()):
            monkeypatch.delenv(spelled, raising=False)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **_: f"rows of {path}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        for endpoint in (f"http://{host}", f"https://user:secret@{host}/mirror/", host):
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            assert hub.open_hub(path="some/corpus", streaming=True) == "rows of some/corpus"
    for endpoint in (f"https://user:secret@{host}", "http://127.0.0.1:port"):  # nothing listens there any more
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        with pytest.raises(UserError, match=r"The hub \(127\.0\.0\.1:\w+\) cannot be reached"):
            hub.open_hub(path="some/corpus", streaming=True)
    monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")  # which would reach it
    assert hub.open_hub(path="some/corpus", streaming=True) == "rows of some/corpus"

    def needs_socks(path: str, **_: object) -> None:
        raise ImportError("Using SOCKS proxy, but the 'socksio' package is not installed.")

    monkeypatch.setattr(datasets, "load_dataset", needs_socks)
    with pytest.raises(UserError, match=r"cannot be read from the hub .*socksio"):
        hub.open_hub(path="some/corpus", streaming=True)


class Breaking:
    """A stream whose connection breaks after some rows."""

    def __init__(self, stream: datasets.IterableDataset, after: int) -> None:
        self.stream, self.after = stream, after
        self.state_dict, self.load_state_dict = stream.state_dict, stream.load_state_dict

    def __iter__(self) -> Iterator[dict[str, str]]:
        yield from itertools.islice(self.stream, self.after)
        raise TimeoutError("read timed out")


def test_a_broken_stream_resumes_at_its_next_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PAUSE", 0)
    files, names = [str(tmp_path / f"{n}.parquet") for n in range(3)], [f"row {n}" for n in range(60)]
    for n, file in enumerate(files):
        pyarrow.parquet.write_table(pyarrow.table({"text": names[20 * n : 20 * n + 20]}), file, row_group_size=7)
    breaks = iter([5, 0, 2, 13, 1, 0, 30, 100])

    def open_stream() -> Breaking:
        stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
        return Breaking(stream, next(breaks))

    rows = itertools.islice(hub.patient_rows(open_stream, "some/corpus"), 60)
    assert [row["text"] for row in rows] == names


def test_headings_begin_documents_in_wikitext(tmp_path: Path) -> None:
    path = tmp_path / "wiki.txt"
    path.write_text(" = First = \n \n Some text . \n\n = = Part = = \n More . \n = Second = \n Text . \n")
    assert [len(document) for document in documents(path, document_start="^ = [^=].* = $")] == [4, 2]


def test_a_line_longer_than_memory_allows_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.data.files.MAX_LINE", 100)
    path = tmp_path / "long.txt"
    path.write_text("é" * 1000 + "\n")
    [document] = documents(path)
    assert "".join(document) == "é" * 1000
    assert max(map(len, document)) <= 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met J. Doe at 5 p.m. yesterday.", ["Dr. Smith met J. Doe at 5 p.m. yesterday."]),
        ('He said "Go." Then he went.', ['He said "Go."', "Then he went."]),
        ("It costs 3.5 dollars. 12 were sold.", ["It costs 3.5 dollars.", "12 were sold."]),
        ("Привет, мир. Как дела? «Хорошо». Пока.", ["Привет, мир.", "Как дела?", "«Хорошо».", "Пока."]),
        ("Роман А. С. Пушкина вышел. Он хорош.", ["Роман А. С. Пушкина вышел.", "Он хорош."]),
        ("Łódź jest. Ładna.", ["Łódź jest.", "Ładna."]),
        ("今天很好。明天呢？「好！」他说。", ["今天很好。", "明天呢？", "「好！」", "他说。"]),
        ("यह अच्छा है। वह भी।", ["यह अच्छा है।", "वह भी।"]),
        ("It is small. iPhones are not.", ["It is small. iPhones are not."]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def split_of(path: Path) -> str:
    return splits_of([path])[path]


def test_folders_patterns_and_splits(tmp_path: Path) -> None:
    for name in ("train-00.jsonl.xz", "valid.jsonl.xz", "notes.md"):
        (tmp_path / name).touch()
    assert [path.name for path in find_files(str(tmp_path))] == ["train-00.jsonl.xz", "valid.jsonl.xz"]
    assert [path.name for path in find_files(f"{tmp_path}/train*")] == ["train-00.jsonl.xz"]
    (tmp_path / ".ipynb_checkpoints").mkdir()
    for name in (".ipynb_checkpoints/train-checkpoint.txt", "._train-00.txt"):  # of Jupyter and of macOS
        (tmp_path / name).touch()
    assert [path.name for path in find_files(str(tmp_path))] == ["train-00.jsonl.xz", "valid.jsonl.xz"]
    for location in (".ipynb_checkpoints", ".ipynb_checkpoints/*.txt", ".ipynb_checkpoints/train-checkpoint.txt"):
        assert [path.name for path in find_files(f"{tmp_path}/{location}")] == ["train-checkpoint.txt"]  # as named
    assert split_of(Path("valid.jsonl.xz")) == "valid"
    names = ("valley.txt", "testament.txt", "devil.txt", "Device-1.txt", "validity.txt")
    assert {split_of(Path(name)) for name in names} == {"train"}
    names = ("valid.txt", "val_1.txt", "validation.jsonl", "dev-00.jsonl", "dev1.txt", "Valid.txt", "development.txt")
    assert {split_of(Path(name)) for name in names} == {"valid"}
    assert {split_of(Path(name)) for name in ("test.txt", "test-00.jsonl.xz", "test2.txt", "testing.txt")} == {"test"}
    folders = ("train/test.txt", "dev/a.txt", "Test/b/a.txt", "other/a.txt")
    assert [split_of(Path(name)) for name in folders] == ["test", "valid", "test", "train"]
    assert split_of(Path("train-wiki/valid.txt")) == "valid"
    for name in ("train", "test"):
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "a.txt").touch()
    roots = [root_of(f"{tmp_path}/test{behind}") for behind in ("", "/*/a.txt", "/**/*.txt")]
    assert roots == [tmp_path / "test"] * 3
    assert [root_of(str(tmp_path / "test/train/a.txt")), root_of("*.txt")] == [tmp_path / "test/train", Path()]
    assert [split_of(file.relative_to(roots[1])) for file in find_files(f"{roots[1]}/*/*.txt")] == ["test", "train"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat\nsleeps\n", encoding="utf-8-sig")
    assert documents(tmp_path / "a.txt") == [["the cat", "sleeps"]]


def test_halves_of_characters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a \\ud83d\\ude00 b \\ud83d c"}\n')
    assert documents(tmp_path / "a.jsonl") == [["a \U0001f600 b \ufffd c"]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"text\0more", "binary"),
        ("a.txt", "caf\xe9".encode("latin-1"), "UTF-8"),
        ("a.jsonl", b'{"body": "x"}', "no text under the key 'text'"),
        ("a.jsonl", b"not json", "line 1 is damaged: it is not JSON"),
        ("a.txt.gz", b"not gzip", "does not decompress"),
        ("a.txt.xz", b"not xz", "does not decompress"),
        ("a.parquet", b"not parquet", "not a Parquet file"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        documents(path)
    assert str(path) in str(caught.value)
