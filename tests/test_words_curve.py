"""Accuracy over words seen, and the sets of sentence pairs that it is drawn for."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from pipeline.data import hub
from pipeline.data.row_sources import rows_of
from pipeline.errors import UserError
from pipeline.experiments.words.saved import runs_at
from pipeline.presets.tasks import task_file, task_of
from pipeline.prompting.metrics import by_group, published_credits
from tasks.prompted import Prompted
from tests.conftest import assert_plot, figures, run

TWELVE = [
    *("adjunct_island", "anaphor_gender_agreement", "determiner_noun_agreement_1", "ellipsis_n_bar_1"),
    *("expletive_it_object_raising", "irregular_past_participle_verbs", "npi_present_1", "principle_A_case_1"),
    *("regular_plural_subject_verb_agreement_1", "superlative_quantifiers_1", "transitive", "wh_questions_object_gap"),
]


def test_all_configurations_of_a_set_are_read_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def open_hub(**address: Any) -> list[dict[str, str]]:
        asked.append(address)
        return [{"UID": address["name"]}] * 2

    monkeypatch.setattr(hub, "_check_connection", lambda path: None)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda path, revision: ["wh_island", "transitive"])
    monkeypatch.setattr(hub, "open_hub", open_hub)
    task = task_of(task_file("blimp"))
    rows = rows_of(task, None, "test") or []
    assert asked == [{"path": "nyu-mll/blimp", "name": n, "split": "train"} for n in ("transitive", "wh_island")]
    assert [row["UID"] for _, row in rows] == ["transitive"] * 2 + ["wh_island"] * 2
    assert rows[3][0] == "nyu-mll/blimp/wh_island (train), row 2"
    assert by_group([1, 0, 1, 1], rows, "file") == {"transitive": (0.5, 2), "wh_island": (1.0, 2)}
    assert task.hub is not None
    task.hub["name"] = "x*"
    with pytest.raises(UserError, match=r"no configuration 'x\*' on the hub; it has wh_island, transitive"):
        rows_of(task, None, "test")


def test_published_figures_are_those_of_the_rows_that_are_scored() -> None:
    task = task_of(task_file("blimp"))
    assert isinstance(task, Prompted)
    assert task.published is not None
    every = list(task.published.accuracies)
    assert len(every) == 67

    def means(names: list[str]) -> list[float]:
        assert task.published is not None
        rows = [("x, line 1", {"UID": name}) for name in names for _ in range(1000)]
        return [round(sum(credits) / len(rows), 3) for credits in published_credits(task.published, rows).values()]

    assert means(every) == [0.612, 0.698, 0.696, 0.83]  # table 3 of the paper
    assert means(TWELVE) == [0.621, 0.761, 0.753, 0.886]
    assert means(["transitive"]) == task.published.accuracies["transitive"] == [0.708, 0.647, 0.758, 0.86]
    rows = [("x, line 1", {"UID": "transitive"})]
    assert published_credits(task.published, rows * 999) == {}  # other rows than the published ones
    assert published_credits(task.published, rows * 1000 + [("y, line 1", {"UID": "mine"})]) == {}


def test_groups_by_file_where_rows_have_no_such_column() -> None:
    rows = [("data/hypernym.jsonl, line 1", {}), ("data/turn_taking.jsonl.gz, line 1", {})]
    assert by_group([1.0, 0.0], rows, "file") == {"hypernym": (1.0, 1), "turn_taking": (0.0, 1)}
    assert by_group([1.0, 0.0], rows, "UID") == {}
    numbered = [("row", {"length": number}) for number in (2, 10, 1, -1)]
    assert list(by_group([1.0] * 4, numbered, "length")) == ["-1", "1", "2", "10"]


def saved(encoder: Path, *places: str) -> None:
    for place in places:
        shutil.copytree(encoder, place)


def test_a_curve_of_several_runs(
    toys: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(toys("gpt") / "encoder", "a/encoders/300-words", "a/encoders/2k-words", "a/encoder")
    saved(toys("bert") / "encoder", "b/encoders/chck_1M")  # as BabyLM calls them
    for name in ("one", "two"):
        pair = {"sentence_good": f"The soup was {name}.", "sentence_bad": "Soup the was.", "UID": name, "field": "x"}
        Path(f"pairs-{name}.jsonl").write_text(json.dumps({**pair, "linguistics_term": name, "pairID": "0"}) + "\n")
    where = ["zeroshot", "--task", "blimp", "--data", "pairs-*.jsonl", "--out", "curve"]
    run(*where, "--from", "?/encoders")
    assert "Saved curve.csv, curve.md and curve.png in curve" in capsys.readouterr().out
    with open("curve/curve.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    whole = [(row["run"], int(row["words"])) for row in rows if not row["column"]]
    assert whole == [("a", 300), ("a", 2000), ("b", 1_000_000)]  # the last one of a is that of 2,000
    by = {row["column"]: row["group"] for row in rows if row["run"] == "b"}
    assert by == {"": "", "linguistics_term": "two", "field": "x", "UID": "two"}
    end = figures(Path("curve/runs/b-1M-words"))
    assert next(float(row["accuracy"]) for row in rows if row["run"] == "b") == end["zeroshot/accuracy"]
    table = Path("curve/curve.md").read_text()
    assert "| b | 1,000,000 |" in table
    assert "published" not in table  # for other rows
    assert_plot(Path("curve/curve.png"))
    times = {path: path.stat().st_mtime_ns for path in Path("curve").glob("runs/*/metrics.json")}
    run(*where, "--from", "a/encoders, b/encoders")
    assert {path: path.stat().st_mtime_ns for path in times} == times  # asked once
    with pytest.raises(UserError, match="one number of shots"):
        run(*where, "--from", "a/encoders", "--shots", "0,1")
    with pytest.raises(UserError, match="toys has no encoders that were saved at numbers of words"):
        run(*where, "--from", f"a/encoders,{toys('gpt').parent}")


def test_what_is_no_set_of_saved_encoders(toys: Callable[[str], Path]) -> None:
    assert runs_at(None) == []
    assert runs_at(toys("gpt") / "encoder") == []
    assert runs_at(toys("gpt")) == []
    assert runs_at(Path("nowhere")) == []
    saved(toys("gpt") / "encoder", "x/run/encoders/1k-words", "y/run/encoders/1k-words")
    assert [curve.name for curve in runs_at(Path("*/run/encoders"))] == ["x-run", "y-run"]
    assert [curve.name for curve in runs_at(Path("x/run/encoders, */run/encoders"))] == ["x-run", "y-run"]
