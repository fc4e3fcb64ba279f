"""Properties that hold for any input: rows, permutations, tags, cutting, offsets, tables, checksums, losses."""

from __future__ import annotations

import csv
import io
import itertools
import json
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import tokenizers
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.data.files import splits_of
from pipeline.data.rows import PackedBlocks, SentenceWindows, WordBlocks, shuffled, word_windows
from pipeline.data.tables import read_jsonl, table
from pipeline.data.token_store import TokenStore
from pipeline.finetuning.words import place_words
from pipeline.models import losses
from pipeline.models.inputs import first_segment_length
from pipeline.storage.checksums import SUMS, damage, digest, file_hash, seal, sha256
from pipeline.storage.json_lines import json_line, repair_surrogates
from pipeline.tokenization.overlong_words import OVERLONG
from pipeline.tokenization.registry import SCHEMES
from tasks.bio import spans, to_bio

fixed = settings(derandomize=True, deadline=None, database=None, max_examples=60)
few = settings(fixed, max_examples=20)
small = st.integers(1, 40)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


# ---------------------------------------------------------------------- rows of a store


@st.composite
def stores(draw: st.DrawFn) -> TokenStore:
    """Documents of sentences whose tokens are all different, so that each can be recognized in a row."""
    documents = draw(st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=8))
    sentences = np.concatenate([[0], np.cumsum([size for document in documents for size in document])])
    starts = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    return TokenStore(np.arange(1, sentences[-1] + 1), sentences, starts, {"raw_bytes": 1})


@fixed
@given(stores(), st.integers(2, 40), st.integers(0, 1000))
def test_sentence_windows_hold_every_token_once(store: TokenStore, length: int, phase: int) -> None:
    windows = SentenceWindows(store, length, phase)
    documents, begins, ends = windows.bounds(np.arange(len(windows)))
    assert np.concatenate([store.tokens[b:e] for b, e in zip(begins, ends, strict=True)]).tolist() == [*store.tokens]
    assert ((begins >= store.document_starts[documents]) & (ends <= store.document_starts[documents + 1])).all()
    assert (ends > begins).all()
    assert (ends - begins).max() <= 1.5 * length
    for begin, end in zip(begins, ends, strict=True):
        inside = [s for s in store.sentences if begin < s < end]
        assert windows.sentence_starts(begin, end).tolist() == inside


@fixed
@given(stores(), st.integers(1, 40), st.integers(0, 1000))
def test_packed_blocks_are_the_stream_of_the_corpus(store: TokenStore, length: int, phase: int) -> None:
    blocks = PackedBlocks(store, length, boundary=0, phase=phase)
    stream: list[tuple[int, int]] = []
    for number, (begin, end) in enumerate(itertools.pairwise(store.document_starts)):
        stream += [(0, number), *((int(token), number) for token in store.tokens[begin:end])]
    ids, documents = blocks(np.arange(len(blocks)))
    assert ids.shape == documents.shape == (len(blocks), length + 1)
    for row in range(len(blocks)):
        expected = stream[blocks.offset + row * length :][: length + 1]
        inside = documents[row] >= 0
        assert list(zip(ids[row, inside].tolist(), documents[row, inside].tolist(), strict=True)) == expected
    assert len(stream) - blocks.offset - len(blocks) * length < length  # what is left is less than a row
    assert blocks.offset < length


@fixed
@given(stores(), st.integers(1, 40), st.integers(0, 1000))
def test_what_ends_a_document_belongs_to_it(store: TokenStore, length: int, phase: int) -> None:
    """Where one token ends a text and another one begins the next; the first document has one that ends none."""
    blocks = PackedBlocks(store, length, boundary=[-2, -1], phase=phase)
    stream: list[tuple[int, int]] = []
    for number, (begin, end) in enumerate(itertools.pairwise(store.document_starts)):
        stream += [(-2, max(0, number - 1)), (-1, number), *((int(id_), number) for id_ in store.tokens[begin:end])]
    ids, documents = blocks(np.arange(len(blocks)))
    for row in range(len(blocks)):
        inside = documents[row] >= 0
        found = list(zip(ids[row, inside].tolist(), documents[row, inside].tolist(), strict=True))
        assert found == stream[blocks.offset + row * length :][: length + 1]


@fixed
@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=8), min_size=1, max_size=12),
    st.integers(1, 12),
    st.integers(0, 100),
)
def test_word_blocks_are_the_stream_of_the_corpus(sentences: list[list[bytes]], length: int, phase: int) -> None:
    spelled = [[byte + 256 * (n > 0) for n, byte in enumerate(word)] for words in sentences for word in words]
    counts = [sum(map(len, words)) for words in sentences]
    store = TokenStore(
        np.array(list(itertools.chain(*spelled))),
        np.concatenate([[0], np.cumsum(counts)]),
        np.array([0, len(sentences)]),
        {"raw_bytes": 1},
        words=np.concatenate([[0], np.cumsum([len(words) for words in sentences])]),
    )
    stream = [word for words in sentences for word in (b"<s>", *words, b"</s>")]
    blocks = WordBlocks(store, length, begin=b"<s>", end=b"</s>", phase=phase)
    rows = np.arange(len(blocks))
    expected = [stream[blocks.offset + row * length :][: length + 2] for row in rows]
    assert blocks(rows) == expected
    assert [blocks(rows[n : n + 1])[0] for n in reversed(rows)] == expected[::-1]  # whatever was read before


@fixed
@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.integers(4, 40))
def test_every_word_is_predicted_in_one_window(counts: list[int], room: int) -> None:
    counts = [min(count, room) for count in counts]
    windows = word_windows(counts, room)
    assert [i for _, targets in windows for i in targets] == list(range(len(counts)))
    for window, targets in windows:
        assert sum(counts[i] for i in window) <= room
        assert set(targets) <= set(window)


@fixed
@given(st.integers(1, 3000), st.integers(0, 2**31))
def test_shuffled_is_a_permutation(size: int, seed: int) -> None:
    order = shuffled(np.arange(size), size, seed)
    assert sorted(order.tolist()) == list(range(size))
    assert shuffled(np.array([size // 2]), size, seed).tolist() == [order[size // 2]]  # each by itself


# ---------------------------------------------------------------------- texts and tags

tags = st.lists(st.sampled_from(["O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC"))]))


@fixed
@given(tags)
def test_bio_keeps_the_spans_of_any_scheme(given_tags: list[str]) -> None:
    bio = to_bio(given_tags)
    assert spans(bio) == spans(given_tags)
    assert to_bio(bio) == bio
    assert {tag[0] for tag in bio} <= set("BIO")
    ends = [place for _, first, last in spans(given_tags) for place in (first, last)]
    assert ends == sorted(ends)


@fixed
@given(st.integers(0, 30), st.integers(0, 30), st.integers(2, 40))
def test_pairs_are_cut_as_fast_tokenizers_cut_them(first: int, second: int, room: int) -> None:
    left = first_segment_length(first, second, room)
    right = min(second, room - left)
    assert left + right == min(room, first + second)
    theirs = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    theirs.enable_truncation(room, strategy="longest_first")
    ids = theirs.encode(" ".join("a" * first), " ".join("b" * second)).ids
    assert (left, right) == (ids.count(0), ids.count(1))


@fixed
@given(st.text(st.sampled_from("ab'’.,- \n\u0301\u0915\u094d😀é")) | plain_text)
def test_offsets_of_words_are_those_in_the_text(text: str) -> None:
    words, places = place_words(text)
    assert words == [text[begin:end] for begin, end in places]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))
    left = "".join(text[end:begin] for (_, end), (begin, _) in itertools.pairwise([(0, 0), *places, (len(text), 0)]))
    assert not left.strip()
    words, places = place_words(words)
    assert [" ".join(words)[begin:end] for begin, end in places] == words


@few
@given(st.lists(st.tuples(st.sampled_from(["a", "ab", "-", "_", " ", "é"]), st.sampled_from([1, 7, 3999, 5000]))))
def test_cutting_overlong_words_loses_nothing(runs: list[tuple[str, int]]) -> None:
    text = "".join(unit * times for unit, times in runs)
    for kind in SCHEMES.values():
        parts = kind.parts_of(text)
        assert "".join(parts) == text
        assert kind.overlong_words(text) == 0 or len(text) > OVERLONG
        assert max(kind.overlong_words(part) for part in parts) == 0


# ---------------------------------------------------------------------- files


@fixed
@given(st.lists(st.tuples(plain_text, st.text("ab;|\t\" '", min_size=1).filter(str.strip)), min_size=1))
def test_a_csv_file_gives_the_rows_that_were_written(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="\n")
    csv.writer(file, lineterminator="\n").writerows([("text", "label"), *rows])
    file.seek(0)
    names, read = table(file, Path("a.csv"), "csv")
    assert names == ["text", "label"]
    assert [(row["text"], row["label"]) for _, row in read] == rows


@fixed
@given(st.lists(st.tuples(plain_text, st.text("ab; '", min_size=1).filter(str.strip)), min_size=1))
def test_a_tsv_file_gives_the_rows_that_were_written(rows: list[tuple[str, str]]) -> None:
    assume(not any(set(text) & set('\t\n"') for text, _ in rows))
    file = io.StringIO("".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]), newline="\n")
    _, read = table(file, Path("a.tsv"), "tsv")
    assert [(number, row["text"], row["label"]) for number, row in read] == [
        (n, *row) for n, row in enumerate(rows, start=2)
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain_text,
    lambda inner: st.lists(inner) | st.dictionaries(plain_text, inner),
    max_leaves=4,
)


@few
@given(st.lists(st.dictionaries(plain_text, values)))
def test_json_lines_give_the_rows_that_were_written(rows: list[dict[str, object]]) -> None:
    lines = [json_line(row) for row in rows]
    assert all(len(line.splitlines()) == 1 for line in lines)  # for any reader's idea of the end of a line
    file = io.StringIO("".join(lines), newline="\n")
    assert [row for _, row in read_jsonl(file, Path("a.jsonl"))] == rows


@fixed
@given(st.text(st.characters(categories=["Cs", "Lu", "So"])))
def test_repaired_text_has_no_lone_surrogate(text: str) -> None:
    repaired = repair_surrogates(text)
    assert repaired.encode().decode() == repaired == repair_surrogates(repaired)
    assert repair_surrogates(json.loads(json.dumps("😀" + text))) == "😀" + repaired


NAMES = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid", "dev": "valid"}
NAMES |= {"development": "valid", "test": "test", "tests": "test"}


@fixed
@given(
    st.sampled_from(sorted(NAMES)),
    st.sampled_from(sorted(NAMES)),
    st.text("0123456789-_.", max_size=6),
    st.sampled_from(["a", "mine", "b-9"]),
)
def test_a_split_is_of_the_nearest_name(name: str, other: str, rest: str, plain: str) -> None:
    named = [f"{name}{rest}.txt", f"{other}/{plain}/{name.upper()}{rest}.jsonl.gz", f"{other}/{name}{rest}/{plain}.txt"]
    paths = [*map(Path, named), Path(f"{plain}/{plain}.txt")]
    assert list(splits_of(paths).values()) == [NAMES[name]] * 3 + ["train"]


def test_words_within_names_are_those_of_parts_where_no_name_begins_with_one() -> None:
    wiki = ["wiki.train.txt", "wiki.valid.txt", "a/wiki_test.txt"]
    assert list(splits_of(map(Path, wiki)).values()) == ["train", "valid", "test"]
    assert set(splits_of(map(Path, ["my-test.txt", "a_dev.txt"])).values()) == {"train"}  # nothing to train on
    assert set(splits_of(map(Path, [*wiki, "train.txt"])).values()) == {"train"}
    assert set(splits_of(map(Path, ["the.train.txt", "latest.txt"])).values()) == {"train"}


@few
@given(st.dictionaries(st.text("abc", min_size=1), st.binary(min_size=1), min_size=1), st.data())
def test_a_changed_byte_is_noticed(files: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        seal(folder)
        assert damage(folder, sha256) is None
        changed = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[changed])
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (folder / changed).write_bytes(content)
        assert f"{folder / changed} is damaged: its checksum differs from the one in {SUMS}." == damage(
            folder, file_hash
        )
        (folder / changed).unlink()
        assert damage(folder, sha256) == f"{folder / changed} is missing."


@few
@given(st.dictionaries(plain_text, values), values)
def test_a_digest_is_of_the_content(mapping: dict[str, object], other: object) -> None:
    assert digest(mapping) == digest(dict(reversed(mapping.items()))) != digest(mapping, other)


# ---------------------------------------------------------------------- losses


@few
@given(st.integers(1, 30), small, small, st.booleans(), st.integers(1, 40), st.integers(0, 2**31))
def test_linear_cross_entropy_is_torchs(n: int, d: int, v: int, biased: bool, chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n, d), (v, d), (v,)][: 2 + biased]
    ours = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    theirs = [tensor.detach().clone().requires_grad_() for tensor in ours]
    labels = torch.randint(v, (n,), generator=generator)
    with patch.object(losses, "CHUNK", chunk):
        loss = losses.linear_cross_entropy(ours[0], ours[1], labels, *ours[2:])
    logits = F.linear(*theirs)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-9)
    assert loss.correct is not None
    assert loss.correct.item() == (logits.argmax(-1) == labels).sum().item()
    (2.5 * loss.sum).backward()
    (2.5 * expected).backward()
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-6, atol=1e-9)
