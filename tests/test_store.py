"""The token store and the windows that cut it into rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.cli.config import pretraining
from pipeline.data import store_builder as store
from pipeline.data import tokenizer_builder
from pipeline.data.documents import Source
from pipeline.data.rows import SentenceWindows, shuffled
from pipeline.data.token_store import TokenStore
from pipeline.errors import UserError
from pipeline.objectives.bidirectional_lm import BidirectionalLM
from pipeline.objectives.causal_lm import CausalLM
from pipeline.objectives.masked_lm import MaskedLM
from pipeline.objectives.sampling import StepBatches
from pipeline.tokenization.base import Tokenizer
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.tokenization.spelled_words import SpelledWords
from pipeline.tokenization.wordpiece import WordPiece
from pipeline.training import corpus_data as corpus
from pipeline.training.corpus_report import corpus_report
from pipeline.training.requests import CorpusRequest
from tests.conftest import SMALL

TEXT = "\n\n".join(
    "\n".join(f"Sentence number {i} of document {d} is here, and it goes on." for i in range(d + 1)) for d in range(40)
)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT)
    return Source(files=[path])


@pytest.fixture
def tokenizer() -> Tokenizer:
    return WordPiece.train(TEXT.splitlines(), vocab_size=300, lowercase=True)


@pytest.fixture
def built(source: Source, tokenizer: Tokenizer, tmp_path: Path) -> TokenStore:
    return store.build(source, tokenizer, tmp_path / "stores")


def test_store_holds_the_text(built: TokenStore, tokenizer: Tokenizer) -> None:
    assert built.tokens.dtype == np.uint16
    assert len(built.documents) - 1 == built.meta["documents"] == 40
    assert len(built.sentences) - 1 == built.meta["sentences"] == sum(range(1, 41))
    assert built.meta["words"] == 12 * built.meta["sentences"]
    sentence = built.tokens[built.sentences[1] : built.sentences[2]]
    assert tokenizer.decode(sentence) == "sentence number 0 of document 1 is here, and it goes on."
    assert built.meta["duplicate_lines"] == 0


def test_special_tokens_in_a_text_are_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    gpt = ByteBpe.train(TEXT.splitlines(), vocab_size=300)
    (tmp_path / "web.txt").write_text("This [MASK] is here [SEP] and it goes<|endoftext|>on.")
    for one, roles in ((tokenizer, ("mask", "sep")), (gpt, ("eos",))):
        made = store.build(Source(files=[tmp_path / "web.txt"]), one, tmp_path / "stores")
        assert not {one.id(role) for role in roles} & set(made.tokens.tolist())
    assert tokenizer.encode_batch(["[MASK]"]) == [[tokenizer.id("mask")]]  # of a prompt it stays a mask


def test_a_script_of_many_characters_is_learned() -> None:
    """1 / rank, as characters of Chinese are used, in 3,000 of them: the 1,000 most frequent are 86 % of a text."""
    rng, ranks = np.random.default_rng(0), np.arange(1, 3001)
    drawn = rng.choice(3000, size=200_000, p=1 / ranks / (1 / ranks).sum())
    text = "".join(chr(0x4E00 + int(rank)) for rank in drawn)
    made = WordPiece.train([text], vocab_size=8192, lowercase=True)
    [ids] = made.encode_batch([text[:20_000]])
    assert ids.count(made.id("unk")) < 0.002 * len(ids)


def test_the_same_text_makes_the_same_pieces() -> None:
    """Words of random letters, where many merges are ties."""
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, size))) for size in rng.integers(2, 8, 400)]
    made = [WordPiece.train([" ".join(words)], vocab_size=300, lowercase=True) for _ in range(4)]
    assert len({one.hash for one in made}) == 1
    assert set(made[0].special_ids) == set(range(5))
    [ids] = made[0].encode_batch([" ".join(words)])
    assert made[0].id("unk") not in ids
    assert made[0].encode_batch(["##a"]) != [[made[0].backend.token_to_id("##a")]]  # text, not a piece


def test_duplicates_and_long_sentences_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "other.txt"
    path.write_text("The same line.\nThe same line.\n\nThe same line.\n" + "word " * 1000)
    meta = store.build(Source(files=[path]), tokenizer, tmp_path / "stores").meta
    assert (meta["duplicate_lines"], meta["long_sentences"]) == (2, 1)


def test_spaces_and_blank_lines_of_rows_are_not_predicted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    rows = ["One. Two. ", "Three.\n\n", "Four."]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    made = store.build(Source(files=[tmp_path / "rows.jsonl"]), tokenizer, tmp_path / "stores")
    assert made.unpredicted_bytes == sum(len(row) - len(row.strip()) for row in rows) == 3


@pytest.mark.parametrize(
    ("name", "content", "document_start", "documents", "raw"),
    [
        ("plain.txt", "One.  Two.\nThree.\n\nFour.\n", None, 2, None),
        ("blank.txt", "\n\n  One. \n\n \n\nTwo – zwölf.\n\n\n", None, 2, None),
        ("windows.txt", "One.\r\nTwo.\r\n\r\nThree.", None, 2, None),
        ("packed.txt.gz", "One.\n\nTwo.  Three.\n\n", None, 2, None),
        ("titles.txt", "= One =\nText.\n\n= Two =\n\nMore.\n", "^= ", 2, None),
        ("rows.jsonl", '{"text": "One.\\n\\nzwölf. "}\n{"text": "Two."}\n', None, 2, 18),
        ("rows.jsonl", '{"text": "= One =\\n\\nText."}\n{"text": "= Two ="}\n', "^= ", 2, 21),
    ],
)
def test_the_bytes_of_the_raw_text_are_counted(
    tmp_path: Path, tokenizer: Tokenizer, name: str, content: str, document_start: str | None, documents: int, raw: int
) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    source = Source(files=[file], document_start=document_start)
    made = store.build(source, tokenizer, tmp_path / "stores")
    assert (made.meta["documents"], made.raw_bytes) == (documents, raw or len(content.encode()))
    parts = [
        store.build(source, tokenizer, tmp_path / "stores", keep=lambda n, own=own: n == own, name=f"{own}").raw_bytes
        for own in range(documents)
    ]
    assert sum(parts) == made.raw_bytes
    assert min(parts) > 3


def test_sections_share_what_no_line_has(tmp_path: Path) -> None:
    """The last one is often the validation part: it must not have the indentation and the ends of lines of all."""
    (tmp_path / "a.txt").write_bytes(b"    a line of text\r\n" * 400)
    [(document, _)] = Source(files=[tmp_path / "a.txt"]).documents()
    parts = list(document.sections(20))
    assert {part.raw_bytes for part in parts} == {20 * 20}
    assert sum(part.raw_bytes for part in parts) == document.raw_bytes == (tmp_path / "a.txt").stat().st_size


def test_no_space_is_learned_where_there_is_none(tmp_path: Path) -> None:
    text = "今天天气很好。我们去公园散步。 他说：“你好！”然后走了。"
    (tmp_path / "a.txt").write_text(f"{text}\nA line. Another one.\n")
    gpt, bert = ByteBpe.train([text], vocab_size=300), WordPiece.train([text], vocab_size=300, lowercase=True)
    made = store.build(Source(files=[tmp_path / "a.txt"]), gpt, tmp_path / "stores")
    assert gpt.decode(made.tokens) == f"{text} A line. Another one."
    assert made.meta["sentences"] == 6
    for tokenizer in (gpt, bert):  # the end of the last line alone
        assert store.build(Source(files=[tmp_path / "a.txt"]), tokenizer, tmp_path / "stores").unpredicted_bytes == 1


def test_files_that_a_format_of_the_hub_names_are_a_part_of_the_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    for address in (
        {"path": "json", "data_files": str(file)},
        {"path": "json", "data_files": {"train": ["*.jsonl"]}, "data_dir": str(tmp_path)},
        {"path": str(tmp_path)},
    ):
        hashes = []
        for text in ("one", "two"):
            file.write_text(json.dumps({"text": text}) + "\n")
            hashes.append(Source(hub={**address, "split": "train"}).fingerprint)
        assert hashes[0] != hashes[1]
    repository = Source(hub={"path": "owner/name", "data_files": str(file), "split": "train"})
    assert repository.fingerprint == Source(hub=dict(repository.hub)).fingerprint


def test_bits_per_byte_are_of_the_raw_text(tmp_path: Path) -> None:
    gpt, words = (
        ByteBpe.train(TEXT.splitlines(), vocab_size=300),
        SpelledWords.train([TEXT], vocab_size=99, lowercase=False),
    )
    masked = WordPiece.train(TEXT.splitlines(), vocab_size=300, lowercase=True)
    (tmp_path / "spaced.txt").write_text(TEXT.replace("\n", "  \n\n") + "\n")
    size, predictions = (tmp_path / "spaced.txt").stat().st_size, []
    for maker, tokenizer in (
        (CausalLM("concat"), gpt),
        (BidirectionalLM(stateful=False), words),
        (MaskedLM(0.15, False, "off"), masked),
    ):
        made = store.build(Source(files=[tmp_path / "spaced.txt"]), tokenizer, tmp_path / "stores")
        predictions.append(maker.rows(made, tokenizer, length=16, phase=0, seed=0).predictions_per_byte * size)
        between = made.meta["sentences"] - made.meta["documents"]
        assert made.unpredicted_bytes == size - len(TEXT.replace("\n", "")) - between > 0
    sentences, tokens = made.meta["sentences"], made.meta["tokens"]
    assert predictions[1:] == pytest.approx([(14 + 2) * sentences, tokens])  # words and marks
    assert predictions[0] > tokens  # one of the end of each document too


def test_reused_when_unchanged_rebuilt_when_changed(source: Source, tokenizer: Tokenizer, tmp_path: Path) -> None:
    root = tmp_path / "stores"
    first = store.build(source, tokenizer, root)
    stamp = (root / first.meta["key"] / "tokens.bin").stat().st_mtime_ns
    assert store.build(source, tokenizer, root).meta["key"] == first.meta["key"]
    assert (root / first.meta["key"] / "tokens.bin").stat().st_mtime_ns == stamp
    source.files[0].write_text(TEXT + "\nOne more line.")
    again = Source(files=source.files)  # of the next start: a fingerprint is taken once
    assert store.build(again, tokenizer, root).meta["key"] != first.meta["key"]
    other = WordPiece.train(["entirely other text"], vocab_size=50, lowercase=True)
    assert store.build(source, other, root).meta["key"] != first.meta["key"]


def test_the_same_bytes_in_another_format_are_another_corpus(tokenizer: Tokenizer, tmp_path: Path) -> None:
    as_text, as_rows = tmp_path / "a.txt", tmp_path / "a.jsonl"
    as_text.write_text('{"text": "some words here"}\n')
    as_rows.write_bytes(as_text.read_bytes())
    stores = [store.build(Source(files=[path]), tokenizer, tmp_path / "stores") for path in (as_text, as_rows)]
    assert stores[0].meta["words"] == 4
    assert stores[1].meta["words"] == 3
    moved = Source(files=[as_text.rename(tmp_path / "b.txt")])
    assert moved.fingerprint == stores[0].meta["corpus"]  # a name alone is no content


def test_the_validation_part_of_a_stream_is_from_its_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: list[int] = []

    def stream(**_: object) -> Iterator[dict[str, str]]:
        for number in range(20):
            read.append(number)
            yield {"text": f"This is document {number}.\nIt goes on."}

    monkeypatch.setattr("pipeline.data.documents.open_hub", stream)
    monkeypatch.setattr(corpus, "HELD_OUT", 2)
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    hub = ["--data.sample_documents=null", "--data.hub={path: someone/texts}", "--data.validation_every=5"]
    data = pretraining(CorpusRequest(overrides=(*SMALL, *hub))).data
    data.prepare()
    assert (data.train.meta["documents"], data.valid.meta["documents"]) == (16, 4)  # without 1, 3, 4 and 9
    assert read == [*range(20), *range(20), *range(10)]  # the tokenizer, the training part, the begin


def test_a_failed_build_leaves_nothing(source: Source, tokenizer: Tokenizer, tmp_path: Path) -> None:
    source.files[0].write_bytes(b"good line\n\n" + b"bad \xff line")
    with pytest.raises(UserError, match="UTF-8"):
        store.build(source, tokenizer, tmp_path / "stores")
    assert [path for path in (tmp_path / "stores").iterdir() if path.is_dir()] == []


def test_a_damaged_store_is_noticed(built: TokenStore, tmp_path: Path) -> None:
    folder = tmp_path / "stores" / built.meta["key"]
    (folder / "tokens.bin").write_bytes((folder / "tokens.bin").read_bytes()[:-10])
    with pytest.raises(UserError, match="damaged"):
        TokenStore.open(folder)


def test_meta_is_plain_json(built: TokenStore, tmp_path: Path) -> None:
    meta = json.loads((tmp_path / "stores" / built.meta["key"] / "meta.json").read_text())
    assert {"corpus", "tokenizer", "tokens", "bytes", "unknown"} <= set(meta)


@pytest.mark.parametrize(("length", "phase"), [(64, 0), (64, 33), (10_000, 5)])
def test_windows_begin_with_a_sentence(built: TokenStore, length: int, phase: int) -> None:
    """Where a row has room for the longest one; that windows hold every token once, test_properties.py says."""
    windows = SentenceWindows(built, length, phase)
    assert np.isin(windows.bounds(np.arange(len(windows)))[1], built.sentences).all()


def test_a_whole_epoch_has_every_row_once(built: TokenStore, tokenizer: Tokenizer) -> None:
    maker = MaskedLM(mask_rate=0.15, whole_word=False, next_sentence="nsp")
    steps = StepBatches(maker, built, tokenizer, length=32, batch_size=7, seed=0)
    steps(3 * steps.steps)  # wherever it was before
    rows = np.concatenate([batch.rows.numpy() for batch in steps.first_epoch()])
    assert sorted(rows) == list(range(len(steps.rows)))
    assert len(steps.rows) % 7


@pytest.mark.parametrize("size", [1000, 4097])
def test_each_epoch_is_shuffled_in_its_own_way(size: int) -> None:
    order = shuffled(np.arange(size), size, seed=3)
    assert (order != shuffled(np.arange(size), size, seed=4)).mean() > 0.9
    assert abs(np.corrcoef(np.arange(size), order)[0, 1]) < 0.1


def corpus_of(folder: Path, *more: str) -> corpus.CorpusData:
    flags = [*(flag for flag in SMALL if "sample_documents" not in flag), *more]
    return pretraining(CorpusRequest(model="gpt", corpus=str(folder), overrides=tuple(flags))).data


def test_few_long_documents_are_set_aside_in_parts(tmp_path: Path) -> None:
    """As the files of two languages, of which one would be left for validation alone."""
    (folder := tmp_path / "two").mkdir()
    texts = {name: [f"{name} is in line {line}, and more." for line in range(700)] for name in ("one", "two")}
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    data = corpus_of(folder)
    data.prepare()
    assert 0.04 < len(data.valid.tokens) / len(data.train.tokens) < 0.1
    for part in (data.train, data.valid):
        text = data.tokenizer.decode(part.tokens)
        assert "one is in line" in text
        assert "two is in line" in text
    assert data.train.raw_bytes + data.valid.raw_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert data.train.meta["sentences"] + data.valid.meta["sentences"] == 1400
    assert "they are cut into sections of about 10 lines" in corpus_report(data)


@pytest.mark.parametrize(("documents", "lines", "most"), [(1, 80, 0.35), (1, 500, 0.15), (4, 25, 0.4), (39, 100, 0.1)])
def test_a_small_part_of_few_documents_is_set_aside(documents: int, lines: int, most: float, tmp_path: Path) -> None:
    texts = ("\n".join(f"A line {line} of {document}." for line in range(lines)) for document in range(documents))
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    data = corpus_of(tmp_path / "a.txt")
    data.prepare()
    assert len(data.valid.tokens) / len(data.train.tokens) < most


@pytest.mark.parametrize("every", ["5", "1000"])
def test_many_documents_are_whole(every: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(f"Line {n}." for n in range(30)) for _ in range(40)))
    data = corpus_of(tmp_path / "a.txt", f"--data.validation_every={every}")
    data.prepare()
    assert data.section is None
    assert data.train.meta["documents"] + data.valid.meta["documents"] == 40


def test_where_documents_cannot_be_cut_too_large_a_validation_part_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(f"A word of {number}.\nAnother one." for number in range(4)))
    data = corpus_of(tmp_path / "a.txt")
    data.prepare()
    assert "Warning: validation has 50% of the text, since the documents are few" in corpus_report(data)


def test_a_tokenizer_reads_all_of_long_documents(tmp_path: Path) -> None:
    paths = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in paths:
        path.write_text("".join(f"{path.stem} {line:04}\n" for line in range(5000)))
    lines = list(tokenizer_builder._spread(Source(files=paths), 10_000))
    for path in paths:
        found = [line for line in lines if line.startswith(path.stem)]
        assert len(found) == pytest.approx(len(lines) / 2, rel=0.1)
        assert int(found[-1].split()[1]) > 4500


def test_marks_of_no_width_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffOne.\n\u200b\n\ufeffTwo.\nThree. \ufeff\n")
    assert [list(document) for document, _ in Source(files=[tmp_path / "a.txt"]).documents()] == [
        ["One."],
        ["Two.", "Three."],
    ]
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "a\r\nb\r\n\r\nc"}) + "\n")
    assert [list(document) for document, _ in Source(files=[tmp_path / "b.jsonl"]).documents()] == [["a", "b", "c"]]
