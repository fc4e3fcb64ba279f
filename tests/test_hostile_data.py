"""What others do to corpora, tables, token stores and prompts (see test_hostile.py): tables of cases.

Each ends in one plain sentence and exit status 2, with nothing lost, or works rightly. No case sets more of the
environment than a user would.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import random
import signal
import string
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from pipeline.data import documents, files, seen_lines
from pipeline.data import store_builder as store
from pipeline.data.documents import Source
from pipeline.data.files import find_files
from pipeline.data.row_sources import rows_of
from pipeline.data.seen_lines import shared_lines
from pipeline.data.tables import read_rows
from pipeline.data.token_store import TokenStore
from pipeline.data.tokenizer_builder import interruptible
from pipeline.errors import UserError
from pipeline.storage import checksums
from pipeline.storage.checksums import file_hash
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.overlong_words import OVERLONG
from pipeline.tokenization.registry import SCHEMES, train
from pipeline.tokenization.spelled_words import LONGEST_WORD
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.training import task_data as labeled_data
from pipeline.training.task_report import task_report
from tasks.entailment import Entailment
from tasks.prompts import Prompt
from tasks.sentiment import Sentiment
from tests.conftest import SMALL, run


def damaged(content: bytes) -> bytes:
    """An archive with another byte in its middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


def parquet(path: Path, columns: list[tuple[str, pyarrow.Array]]) -> None:
    names, arrays = [name for name, _ in columns], [array for _, array in columns]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, names=names), path)


BAD_UTF8 = pyarrow.array([b"\xff\xfe", b"good"]).view(pyarrow.string())
TEXT = "".join(f"Line {n} of a text: {random.Random(n).randbytes(9).hex()}.\n" for n in range(500)).encode()
TABLES: list[tuple[str, str | bytes, str]] = [
    ("a.csv", 'text,label\n"open,1\nb,2\n', "line 2 is not a row of a table .* a quote is opened and never closed"),
    ("a.csv", 'text,label\n"a" b,1\n', "line 2 is not a row of a table with quotes"),
    ("a.csv", "text,label\na,b,1\n", "line 2 has 3 columns, its header has 2"),
    ("a.csv", "text,label,text\na,b,1\n", "line 1: two columns of the header are named 'text'"),
    ("a.tsv", "text\tlabel\ttext\na\tb\t1\n", "line 1: two columns of the header are named 'text'"),
    ("a.tsv", "text\t\tlabel\na\tb\t1\n", "line 1: column 2 of the header has no name"),
    ("a.csv", "text;label;;\na;b;;\n", "line 1: column 3 of the header has no name"),
    ("a.tsv", "\n\n", "has no header"),
    ("a.json", '{"columns": 5, "data": [["a", "b"]]}', "is not a table"),
    ("a.json", '{"columns": [["x", "text"], ["x", "label"]], "data": [["a", "b"]]}', "is not a table"),
    ("a.json", '{"columns": ["text", "text"], "data": [["a", "b"]]}', "has two columns named 'text'"),
    ("a.jsonl", '{"n": ' + "9" * 5000 + "}", "line 1 has a number of too many digits"),
    ("a.jsonl.gz", damaged(gzip.compress(TEXT)), "a.jsonl.gz"),
]


@pytest.mark.parametrize(("name", "content", "message"), TABLES)
def test_tables_that_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        read_rows(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_the_index_of_pandas_needs_no_name_and_a_field_can_be_long(tmp_path: Path) -> None:
    long = "word " * 100_000  # above the csv module's own limit
    (tmp_path / "a.csv").write_text(f",text,label\n0,{long},1\n")
    [(_, row)] = read_rows(tmp_path / "a.csv")
    assert (row["text"], row["label"]) == (long, "1")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("text", BAD_UTF8)], "UTF-8"),
        ([("text", pyarrow.array(["a"])), ("text", pyarrow.array(["b"]))], "2 columns named 'text'|two columns named"),
    ],
)
def test_parquet_that_is_refused(tmp_path: Path, columns: list[tuple[str, pyarrow.Array]], message: str) -> None:
    parquet(tmp_path / "a.parquet", columns)
    for read in (read_rows, lambda path: list(Source(files=[path]).documents())):
        with pytest.raises(UserError, match=message):
            read(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.txt.xz", "a.jsonl.xz", "a.txt.gz"])
def test_a_damaged_archive_is_called_so(tmp_path: Path, name: str) -> None:
    pack = lzma.compress if name.endswith("xz") else gzip.compress
    rows = b"".join(json.dumps({"text": line}).encode() + b"\n" for line in TEXT.decode().splitlines())
    (tmp_path / name).write_bytes(damaged(pack(rows if "jsonl" in name else TEXT)))
    with pytest.raises(UserError, match="is damaged: it does not decompress"):
        list(Source(files=[tmp_path / name]).documents())


def test_a_number_of_thousands_of_digits(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ' + "9" * 5000 + "}\n")
    with pytest.raises(UserError, match="line 1 has a number of too many digits"):
        list(Source(files=[tmp_path / "a.jsonl"]).documents())


def test_pipes_and_devices_are_no_corpus(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    for place in (tmp_path / "pipe.txt", f"{tmp_path}/*.txt", "/dev/null"):
        with pytest.raises(UserError, match="is a pipe or a device"):
            find_files(str(place))
    (tmp_path / "a.txt").write_text("text")
    assert find_files(str(tmp_path)) == [tmp_path / "a.txt"]  # beside others it is passed over
    os.mkfifo(tmp_path / "train.tsv")
    with pytest.raises(UserError, match="is a pipe or a device"):
        rows_of(Sentiment(), str(tmp_path), "train")


LONG = {
    "letters": "a" * 50_000,
    "dna": "".join(random.Random(0).choices("ACGT", k=50_000)),
    "dashes": "-" * 50_000,
    "accents": "é" * 20_000,
    "Hangul": "한" * 20_000,
    "Chinese": "中文" * 10_000,
    "spaces": " " * 50_000,
    "marks": "-_" * 25_000,
}


@pytest.mark.parametrize("scheme", ["wordpiece", "bpe", "words"])
@pytest.mark.parametrize("name", LONG)
def test_an_endless_word_is_cut_and_nothing_of_it_is_lost(scheme: str, name: str) -> None:
    word, plain = LONG[name], [f"This is sentence {n}, of words." for n in range(50)]
    made = train(scheme, [*plain, *set(word), word], vocab_size=400, lowercase=False)
    text = f"This is {word} of words."
    [ids] = made.encode_batch([text])
    said = made.decode(ids) if scheme == "bpe" else made.decode(ids).replace(" ", "").replace("##", "")
    if scheme == "words":
        said = bytes(index & 255 for index in ids).decode()
        begins = np.flatnonzero(np.asarray(ids) < 256)
        assert np.diff(begins, append=len(ids)).max() <= LONGEST_WORD
    assert said == (text if scheme == "bpe" else text.replace(" ", ""))
    assert made.encode_batch(plain) == [made.encode_batch([line])[0] for line in plain]


def test_only_endless_words_are_cut() -> None:
    prose = "今天很好,明天呢？" * 2000 + "x" * OVERLONG + " " + "word " * 5000
    for kind in SCHEMES.values():
        assert kind.parts_of(prose) == [prose]
        assert kind.overlong_words("a" * 5000 + " b " + "-" * 5000) == 2
    code = "-_" * 3000 + " " * 5000 + "a_" * 3000  # words of byte-level BPE, which takes _ for a mark, are two of them
    assert [SCHEMES[scheme].overlong_words(code) for scheme in ("bpe", "words")] == [2, 1]
    assert "".join(ByteBpe.parts_of(code)) == code


def test_words_just_shorter_than_endless_take_no_longer() -> None:
    begin = time.perf_counter()
    assert ByteBpe.overlong_words(("-" * 3999 + " ") * 100 + ("a" * 3999 + " ") * 100) == 0
    assert time.perf_counter() - begin < 5  # 40 s, searched from each character on


def test_endless_words_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(f"A short document {n}.\nIt has two lines.\n\n" for n in range(50)) + LONG["dna"] + "\n"
    (tmp_path / "dna.txt").write_text(text)
    flags = [flag for flag in SMALL if "sample_documents" not in flag and flag.startswith("--data")]
    run("data", "--model", "gpt", "--corpus", "dna.txt", *flags)
    assert "1 words over 4,000 characters are cut into pieces of at most 1,000" in capsys.readouterr().out


def test_an_interrupt_is_heard_while_a_tokenizer_is_trained() -> None:
    def endless() -> Iterator[str]:
        while True:
            time.sleep(0.01)
            yield "text"

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell ignores it for what is in the background
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(list, endless())  # type: ignore[arg-type]
    signal.signal(signal.SIGINT, before)


def test_an_error_in_a_text_is_raised_where_its_tokenizer_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    texts = (line for document, _ in Source(files=[tmp_path / "a.txt"]).documents() for line in document)
    with pytest.raises(UserError, match="is not UTF-8 text"):
        interruptible(partial(train, "bpe", vocab_size=300, lowercase=False), texts)


def test_halves_of_characters_are_read() -> None:
    for scheme in ("wordpiece", "bpe", "words"):
        made = train(scheme, ["some words of a text \ufffd"] * 3, vocab_size=300, lowercase=False)
        assert made.encode_batch(["a \udcff"]) == made.encode_batch(["a \ufffd"])
        assert made.encode_words(["a", "\udcff"]) == made.encode_words(["a", "\ufffd"])


def spoiled_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


SPOILED: dict[str, Callable[[Path], object]] = {
    "meta without a key": lambda folder: (folder / "meta.json").write_text('{"tokens": 3}'),
    "meta of another type": lambda folder: (folder / "meta.json").write_text("[]"),
    "meta no JSON": lambda folder: (folder / "meta.json").write_text("}"),
    "meta no text": lambda folder: (folder / "meta.json").write_bytes(b"\xff\xfe"),
    "meta gone": lambda folder: (folder / "meta.json").unlink(),
    "meta of another dtype": lambda folder: spoiled_json(folder / "meta.json", dtype="float64"),
    "meta of more documents": lambda folder: spoiled_json(folder / "meta.json", documents=999),
    "tokens empty": lambda folder: (folder / "tokens.bin").write_bytes(b""),
    "tokens gone": lambda folder: (folder / "tokens.bin").unlink(),
    "tokens a byte short": lambda folder: os.truncate(
        folder / "tokens.bin", (folder / "tokens.bin").stat().st_size - 1
    ),
    "meta of other counts": lambda folder: spoiled_json(folder / "meta.json", raw_bytes=None),
    "lines gone": lambda folder: (folder / "lines.bin").unlink(),
    "documents one more": lambda folder: (folder / "documents.bin").open("ab").write(bytes(8)),
    "sentences rotten": lambda folder: (folder / "sentences.bin").write_bytes(
        bytes(len((folder / "sentences.bin").read_bytes()))
    ),
}


@pytest.mark.parametrize("sums", [True, False], ids=["checksums", "no checksums"])
@pytest.mark.parametrize("kind", SPOILED)
def test_a_spoiled_token_store_is_built_anew(
    tmp_path: Path, kind: str, sums: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    source = Source(files=[tmp_path / "a.txt"])
    made = ByteBpe.train(TEXT.decode().splitlines()[:50], vocab_size=300)
    built = store.build(source, made, tmp_path / "stores")
    folder, tokens = tmp_path / "stores" / built.meta["key"], built.tokens.copy()
    SPOILED[kind](folder)
    with pytest.raises(UserError):
        TokenStore.open(folder)
    if not sums:
        (folder / "SHA256SUMS").unlink()
    assert (store.build(source, made, tmp_path / "stores").tokens == tokens).all()
    assert "rebuilt" in capsys.readouterr().out
    assert (TokenStore.open(folder).tokens == tokens).all()


def changed_in_place(file: Path, place: int) -> None:
    """Another byte, with the size and the time of change as they were."""
    before = file.stat()
    with open(file, "r+b") as content:
        content.seek(place)
        content.write(b"#")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_changes_of_equal_size_and_time_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    for size in (1000, 3 << 20):
        file = tmp_path / f"{size}.txt"
        file.write_bytes(b"x" * size)
        for place in (0, size - 1, 0):
            before = file_hash(file)
            assert file_hash(file) == before
            file.write_bytes(b"x" * size)
            changed_in_place(file, place)
            assert file_hash(file) == file_hash(file, verify=True)
    hidden = file_hash(file)
    changed_in_place(file, 100_000)  # between two of the samples
    assert file_hash(file) == hidden
    assert file_hash(file, verify=True) != hidden
    assert file_hash(file) != hidden  # and remembered from then on
    [memory] = [path for path in (tmp_path / "cache/hashes").iterdir() if path.read_text().startswith(file_hash(file))]
    memory.write_text(hidden)  # as 0.12 remembered it
    assert file_hash(file) != hidden


@pytest.mark.parametrize(("size", "block"), [(500_000, 499_000), (20_000_000, 5_000_000), (20_000_000, 19_999_999)])
def test_few_blocks_of_a_remembered_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, block: int
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "a.txt"
    file.touch()
    os.truncate(file, size)
    before = file_hash(file)
    changed_in_place(file, 100_000)  # between two blocks
    with monkeypatch.context() as patch:
        patch.setattr(checksums, "sha256", pytest.fail)  # reads it whole
        assert file_hash(file) == before
    changed_in_place(file, block)
    assert file_hash(file) == file_hash(file, verify=True) != before


def test_a_corpus_is_walked_and_read_for_its_hash_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "valid.txt", "notes.md"):
        (folder / name).write_text(f"A short document of {name}.\n\n" * 30)
    walk, hash_of = Mock(wraps=files._named_files), Mock(wraps=documents.file_hash)
    monkeypatch.setattr(files, "_named_files", walk)
    monkeypatch.setattr(documents, "file_hash", hash_of)
    flags = [flag for flag in SMALL if "sample_documents" not in flag and flag.startswith("--data")]
    run("data", "--model", "gpt", "--corpus", str(folder), *flags)
    hashed = sorted(call.args[0].name for call in hash_of.call_args_list)
    assert (hashed, walk.call_count) == (["a.txt", "b.txt", "valid.txt"], 1)


def test_another_tokenizer_in_the_cache_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    flags = [flag for flag in SMALL if flag.startswith("--data")]
    run("data", *flags)
    report = capsys.readouterr().out
    [file] = (tmp_path / "cache/tokenizers").glob("*.json")
    whole = file.read_text()
    other = WordPiece.train(["entirely other text"], vocab_size=50, lowercase=True).backend.to_str()
    for content in (other, whole[:-100], ""):
        file.write_text(content)
        run("data", *flags)
        said = capsys.readouterr().out
        assert said.startswith("Warning: ")
        assert said.endswith(f"The tokenizer is trained again.\n{report}")
        assert file.read_text() == whole
    file.with_suffix(".sha256").unlink()  # as 0.12 left it
    run("data", *flags)
    assert capsys.readouterr().out == report
    assert file.with_suffix(".sha256").exists()


def test_validation_text_that_is_trained_on_and_files_that_are_not_read_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    lines = [f"{line}\n\n" for line in TEXT.decode().splitlines()]
    flags = [flag for flag in SMALL if flag.startswith("--data") and "sample_documents" not in flag]
    new = [f"new {line}" for line in lines[:100]]
    for valid, said, warned in ((lines[:100], "100.0%", True), (new, "0.0%", False)):
        (folder / "train.txt").write_text("".join(lines))
        (folder / "valid.txt").write_text("".join(valid))
        (folder / "notes.md").write_text("notes")
        run("data", "--corpus", str(folder), *flags)
        report = capsys.readouterr().out
        assert f"about {said} of its distinct lines are in the training part too" in report
        assert ("Warning: validation says little" in report) == warned
        assert "left out    notes.md: not .txt, .jsonl, .parquet" in report


def test_sketches_of_lines_estimate_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_lines.SeenLines, "KEPT", 500)
    one, other = seen_lines.SeenLines(), seen_lines.SeenLines()
    for number in range(8000):
        one.add(f"line {number}")
        other.add(f"line {number + 6000}")
    empty = np.zeros(1)
    stores = [TokenStore(empty, empty, empty, {}, lines=seen.smallest) for seen in (one, other)]
    assert shared_lines(*stores) == pytest.approx(0.25, abs=0.06)
    assert shared_lines(TokenStore(empty, empty, empty, {}), stores[0]) is None
    few = TokenStore(empty, empty, empty, {}, lines=stores[0].lines[:50])  # of a small text; a large one's sketch ends
    assert shared_lines(few, stores[1]) is None
    assert shared_lines(few, few) == 1


def labeled(folder: Path, **parts: list[str]) -> labeled_data.TaskData:
    for name, texts in parts.items():
        rows = "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(texts))
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    options: dict = {"batch_size": 2, "max_length": None, "cut": "head", "epochs": 1, "workers": 0}
    return labeled_data.TaskData(task=Sentiment(valid_rows=100), files=str(folder), **options)


def test_what_is_odd_about_a_task_is_reported(tmp_path: Path) -> None:
    texts = [f"text number {number}" for number in range(20)]
    data = labeled(tmp_path, train=texts, test_old=[f" {text} " for text in texts])
    data.examples = data.read()
    data.features = {split: [] for split in data.examples}
    report = task_report(data)
    assert "valid 4 rows (4 of 20 training rows set aside: valid_rows 100 is capped at a fifth)" in report
    assert "test 20 rows (16 of the same text as a training row)" in report
    assert "Warning: 16 of 20 test texts are training texts too" in report
    assert "Warning: the test part is read from test_old.tsv, whose name only begins as 'test'" in report
    (tmp_path / "test_old.tsv").unlink()
    data = labeled(tmp_path, train=texts, test=["new"])
    data.examples = data.read()
    data.features = {split: [] for split in data.examples}
    assert "Warning" not in task_report(data)


def test_pairs_whose_label_is_the_one_that_training_lacks_are_reported(tmp_path: Path) -> None:
    def report(test: list[tuple[str, str, str]]) -> str:
        pairs = [(f"text {n}", f"other {n} {label}", label) for n in range(20) for label in "ab"]
        pairs += [("elsewhere", "other", "c")]
        for name, rows in (("train", pairs), ("valid", pairs[:2]), ("test", test)):
            lines = ["premise\thypothesis\tlabel", *("\t".join(row) for row in rows)]
            (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        task = Entailment(labels={"a": "a", "b": "b", "c": "c"})
        data = labeled_data.TaskData(
            task=task, files=str(tmp_path), batch_size=2, max_length=None, cut="head", epochs=1, workers=0
        )
        data.examples = data.read()
        data.features = {split: [] for split in data.examples}
        return task_report(data)

    third = [(f"text {number}", "new", "c") for number in range(20)]
    assert "Warning: for 22 of 30 test pairs the training part has the first text with all labels but one, and 20" in (
        report([*third, ("text 1", "old", "a"), ("text 2", "old", "b"), *[("new", "new", "c")] * 8])
    )
    chance = [(f"text {number}", "new", "abc"[number % 3]) for number in range(20)]
    assert "all labels but one" not in report(chance)
    assert "all labels but one" not in report(third[:5] + [("new", "new", "c")] * 25)


def test_swapped_columns_are_told_in_a_short_line(tmp_path: Path) -> None:
    letters = string.ascii_letters
    rows = [f"1\t{letter * 5000}" for letter in letters]
    for name, part in (("train", rows[:40]), ("valid", rows[40:]), ("test", rows[40:])):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(part) + "\n")
    with pytest.raises(UserError, match=r"has the label 'O+\.\.\.'; .* and 28 more") as caught:
        labeled(tmp_path).read()
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "{text:>999999999} It"}, "has the field text; a field is the name of a column"),
        ({"text": "{text:{width}}"}, "has the field text; "),
        ({"text": "{text.__class__}"}, "has the field text.__class__; "),
        ({"text": "{text[0]}"}, r"has the field text\[0\]; "),
        ({"text": "{text!r}"}, "has the field text; "),
        ({"text": "{0[x]}"}, r"has the field 0\[x\]; "),
        ({"text": "{} It"}, "a field without a name"),
        ({"text": "It was"}, "names no column"),
        ({"text": "{text}", "candidates": ["{a.b}", "b"]}, "has the field a.b; "),
        ({"text": "{text}", "shape": "last_word"}, "leave out its candidates"),
        ({"text": "{text}", "candidates": []}, "has no candidates"),
    ],
)
def test_prompts_that_are_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Prompt(**{"shape": "choice", "candidates": {"no": " a", "yes": " b"}, **options})


def test_answers_do_not_go_into_the_folder_of_the_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lies in the folder of the model"):
        run("predict", "--from", str(tmp_path), "--out", str(tmp_path / "model.safetensors"))
