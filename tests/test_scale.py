"""Large inputs: what is held in memory, made twice, or done for each row; shown on small ones, with limits lowered."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.data import documents
from pipeline.data.documents import Source, plain_line
from pipeline.data.seen_lines import SeenLines
from pipeline.errors import UserError
from pipeline.finetuning import features
from pipeline.models.ngram import Ngram
from pipeline.models.registry import load
from pipeline.objectives import span_corruption
from pipeline.tokenization.byte_bpe import ByteBpe
from pipeline.training.loader import Loader, MicroBatches, StepLoader
from tasks import baselines
from tasks import labels as labeling
from tasks.sentiment import Sentiment
from tests.conftest import run


class Counted:
    """Steps of four rows, whose whole batches are counted."""

    def __init__(self) -> None:
        self.made = multiprocessing.Value("i", 0)

    def __call__(self, step: int) -> list[int]:
        with self.made.get_lock():
            self.made.value += 1
        return [4 * step + row for row in range(4)]

    def part(self, batch: list[int], index: int, parts: int) -> list[int]:
        return batch[index * len(batch) // parts : (index + 1) * len(batch) // parts]


@pytest.mark.parametrize("loader", [StepLoader, Loader])
@pytest.mark.parametrize("workers", [0, 3])
def test_a_step_is_made_once_whatever_the_number_of_workers(loader: type[StepLoader], workers: int) -> None:
    steps = Counted()
    data = MicroBatches(steps, parts=4, world=1, rank=0)  # type: ignore[arg-type]
    found = loader(data, range(6), num_workers=workers, collate_fn=lambda item: item)
    assert len(found) == 24
    assert [row for part in found for row in part] == list(range(24))
    assert steps.made.value == 6


def test_names_of_labels_are_looked_up_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"label {number}" for number in range(50)]
    task = Sentiment({"text": "text", "label": "label"}, labels={name: name for name in names})
    rows = [(f"row {number}", {"text": "a", "label": name}) for number, name in enumerate(names)]
    calls, composed = [0], labeling._composed

    def counted(value: Any) -> str:
        calls[0] += 1
        return composed(value)

    monkeypatch.setattr(labeling, "_composed", counted)
    assert [task.example(row).label for row in rows] == list(range(50))
    assert calls[0] < 10 * len(rows)
    task.label_names = ["b", *names]  # of a model that gives others
    assert task.example(rows[0]).label == 1


def test_texts_are_tokenized_in_portions(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(pretrained / "encoder")
    texts: list[Any] = ["the taxi " * 40, ("a", "b b"), ["the", "taxi"], "", "a " * 20]
    whole = features.cut_texts(encoder, texts, max_length=12, cut="both")
    sizes, tokenize = [], encoder.tokenize

    def counted(part: Any) -> list[Any]:
        sizes.append(len(part))
        return tokenize(part)

    monkeypatch.setattr(features, "PORTION", 10)
    monkeypatch.setattr(encoder, "tokenize", counted)
    assert features.cut_texts(encoder, texts, max_length=12, cut="both") == whole
    assert sizes == [1, 1, 2, 1]
    assert [feature.was_cut for feature in whole] == [True, False, False, False, True]


@pytest.mark.parametrize("distinct", [3_000, 12_000])
def test_repeated_lines_of_a_large_corpus_are_estimated(monkeypatch: pytest.MonkeyPatch, distinct: int) -> None:
    monkeypatch.setattr(SeenLines, "BITS", 13)  # as 200 to 800 million lines are to the filter's own size
    monkeypatch.setattr(SeenLines, "KEPT", 1 << 10)
    monkeypatch.setattr(SeenLines, "MOST", 1_000)
    seen = SeenLines()
    lines = [f"line {number}" for number in range(distinct)] + [f"line {number}" for number in range(1_000)]
    found = sum(seen.add(line) for line in lines)
    assert found > 1_300
    assert abs(seen.repeated(len(lines), found) - 1_000) < 0.1 * distinct
    assert seen.repeated(900, found) == found


def test_progress_moves_within_one_long_document(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(f"a line, the {number:05d}th\n" for number in range(1_000)))
    source = Source(files=[tmp_path / "one.txt"], section=100)
    positions = [position for _, position in source.documents()]
    assert len(positions) == 10
    assert positions == sorted(set(positions))
    assert positions[0] == pytest.approx(source.size() / 10, rel=0.05)  # type: ignore[operator]
    assert positions[-1] == source.size()


def test_files_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text("".join(f"the {number} taxi is at the {n} store.\n" for n in range(80)))
    hashed, hash_of = list[Path](), documents.file_hash

    def counted(path: Path, **how: Any) -> str:
        hashed.append(path)
        return hash_of(path, **how)

    monkeypatch.setattr(documents, "file_hash", counted)
    run("data", "--corpus", str(folder), "--data.tokenizer.vocab_size=300")
    assert sorted(hashed) == sorted(folder.iterdir())


def test_marks_around_a_line_are_stripped_at_once() -> None:
    around = "\u200b \ufeff\t\u3000" * 3
    assert plain_line(f"{around}a \u200b b{around}") == "a \u200b b"
    assert plain_line(around) == ""
    assert {character for character in map(chr, range(0x110000)) if character.isspace()} <= set(documents.AROUND)


def test_t5_counts_its_windows_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Windows:
        length = 6

        def bounds(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            sizes.append(len(index))
            return index, index * 0, 1 + index % 8

    sizes = list[int]()
    rows: Any = type("Rows", (), {"windows": Windows(), "__len__": lambda self: 100})()
    store: Any = type("Store", (), {"meta": {"tokens": 400, "words": 300}})()
    objective = span_corruption.SpanCorruption()
    objective._model = [type("Model", (), {"target_prefix": [0]})()]  # type: ignore[list-item]
    whole = objective.words_per_token(rows, store)
    assert sizes == [100]
    monkeypatch.setattr(span_corruption, "PORTION", 7)
    assert objective.words_per_token(rows, store) == whole
    assert sizes[1:] == [7] * 14 + [2]
    bounds = [min(1 + number % 8, 6) for number in range(100)]
    tokens = sum(2 + sum(objective.numbers(size)) for size in bounds)
    assert whole == pytest.approx(sum(bounds) / 400 * 300 / tokens)


def test_counts_beyond_32_bits_are_refused() -> None:
    model = Ngram(
        ByteBpe.train(["a b", "b c"], vocab_size=260), order=2, smoothing="add-k", k=1.0, discount=None, max_length=64
    )
    with pytest.raises(UserError, match=r"fewer than 2,147,483,648 tokens, and these are 3,000,000,000"):
        model.check_fit(3_000_000_000, 1e18)


def test_a_bag_of_words_of_too_many_labels_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, classes = ["a b", "c d", "e f", "a c"], [0, 1, 2, 0]
    assert baselines.bag_of_words(texts, classes, ["a b"]) == [0]
    known = np.eye(3, dtype=int)[classes]
    assert baselines.labels_of_bags(texts, known, ["a b"], threshold=0.5) is not None
    monkeypatch.setattr(baselines, "MOST_WEIGHTS", 20)
    assert baselines.bag_of_words(texts, classes, ["a b"]) is None
    assert baselines.labels_of_bags(texts, known, ["a b"], threshold=0.5) is None
    task = Sentiment({"text": "text", "label": "label"}, labels={str(n): str(n) for n in range(3)})
    rows = [
        (f"row {n}", {"text": text, "label": str(label)})
        for n, (text, label) in enumerate(zip(texts, classes, strict=True))
    ]
    examples = [task.example(row) for row in rows]
    assert task.baselines(examples, examples) == {"majority": 0.5}
