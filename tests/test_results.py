"""`make results`: what is missing is run, once; one table with footnotes; and the corpus that a reader can build."""

from __future__ import annotations

import json
import lzma
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.commands import compare
from pipeline.data import wikipedia_sample
from pipeline.data.files import find_files
from pipeline.errors import UserError
from pipeline.experiments.comparison import files as comparison_files
from pipeline.experiments.comparison import gains as comparison
from pipeline.experiments.comparison.table import Footnote, score_table
from pipeline.presets.files import REPOSITORY
from pipeline.tracking.history import read_metrics
from tests.conftest import run

TINY = ["--precision=32-true", "--data.max_length=24", "--data.train_rows=16", "--data.epochs=1", "--validations=1"]


def test_what_is_missing_is_run_and_the_page_is_written(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tmp_path / "mine.yaml"
    grid.write_text(
        "models: [bert]\ntasks: [sentiment]\narms: {full: {seeds: 1}}\n"
        f"encoders: {tmp_path}/{{model}}/encoder\ncorpus: nowhere-en\n"
    )
    flags = ["--name", str(grid), "--out", str(tmp_path / "out"), *TINY]
    with pytest.raises(UserError, match=r"no such corpus.*wikipedia-sample"):
        run("results", *flags)
    with pytest.raises(UserError, match="There is no table in"):
        run("results", *flags, "--table-only")
    run("results", *flags, "--corpus", "sample", "--dry-run")
    assert f"pretrain bert on sample into {tmp_path}/bert" in capsys.readouterr().out
    run("compare", *flags, "--dry-run")
    assert f"fine-tunes: 0 of 1 are finished in {tmp_path}/out" in capsys.readouterr().out
    asked: list[Any] = []

    def pretrain(request: Any) -> None:
        asked.append(request)
        shutil.copytree(pretrained, request.out)

    monkeypatch.setattr(compare, "pretrain", pretrain)
    run("results", *flags, "--corpus", "sample")
    assert [(request.model, request.corpus, request.resume) for request in asked] == [("bert", "sample", True)]
    page = (tmp_path / "out/report.html").read_text()
    rows = comparison_files.read(tmp_path / "out/compare.csv")
    version = read_metrics(tmp_path / "out/runs/bert-sentiment-full-0").get("version")
    assert rows[0].get("version") == version
    assert "Learning curves" in page
    command = (tmp_path / "out/command.txt").read_text().strip()
    assert shlex.split(command)[3:] == ["results", f"--name={grid}", "--corpus=sample", f"--out={tmp_path}/out", *TINY]
    assert command in page
    (tmp_path / "out/notes.yaml").write_text("- {task: sentiment, text: A caveat of the task.}\n- {text: Of all.}\n")
    monkeypatch.setattr(compare, "finetune", None)  # nothing is left to run
    run(*shlex.split(command)[3:])
    for name in ("report.md", "compare.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "| bert¹ |" in text
        assert "¹ A caveat of the task." in text
    assert "$^1$" in (tmp_path / "out/report.tex").read_text()
    (tmp_path / "out/notes.yaml").write_text("- {task: sentiment, words: A caveat.}\n")
    with pytest.raises(UserError, match=r"notes.yaml has no 0.text"):
        run("results", *flags, "--table-only")
    capsys.readouterr()
    run("results", *flags, "--dry-run")
    assert "fine-tunes: 1 of 1 are finished" in capsys.readouterr().out


def test_rows_of_several_versions_are_said() -> None:
    rows = comparison_files.read(REPOSITORY / "results/real/compare.csv")
    arms = comparison.arms_of(rows)
    assert all(row.get("version") for row in rows)
    same = [{**row, "version": "0.15.0", "precision": "32-true", "device": "a CPU"} for row in rows]
    table = score_table(comparison.lines_of(same))
    assert "All rows: version 0.15.0, precision 32-true, device a CPU." in table.notes
    mixed = score_table(comparison.lines_of([*same[:-1], {**same[-1], "version": "0.16.0"}]), costs=True)
    assert mixed.head[-3:] == ["tokens", "minutes", "version"]
    assert any(note.startswith("Rows differ in version") for note in mixed.notes)
    assert all(len(row) == len(mixed.head) for row in mixed.rows)
    odd = [{**row, "precision": "bf16-mixed"} if row["arm"] == "scratch" else row for row in same]
    within = score_table(comparison.lines_of(odd))  # each row has both, but not in the same arm
    assert "precision" not in within.head
    assert "Some runs of the same seed differ in precision: take their difference with care." in within.notes
    by_seed = [{**row, "precision": "bf16-mixed"} if row["seed"] == 0 else row for row in same if row["arm"] in FULL]
    assert not any("differ in" in note for note in score_table(comparison.lines_of(by_seed)).notes)
    marked = [any(cell.startswith("**") for cell in row[2 : 2 + len(arms)]) for row in table.rows]
    assert marked == [line.is_worth_a_mark for line in comparison.lines_of(same)]
    assert any(marked)
    assert not all(marked)  # GPT is not better than the most frequent tag of each word


FULL = ("full", "scratch")  # of all seeds
PAGES = {
    **dict.fromkeys(("real", "pairs", "once", "gpt-c"), "docs/results.md"),
    **dict.fromkeys(("static", "static-real"), "docs/guides/word-vectors.md"),
    "sample": "README.md",
}


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_the_documentation_has_the_figures_of_the_table(name: str, page: str) -> None:
    text = (REPOSITORY / page).read_text().replace("**", "")
    rows = [row for row in text.splitlines() if row.startswith("|")]
    for line in comparison.lines_of(comparison_files.read(REPOSITORY / f"results/{name}/compare.csv")):
        cells = [comparison.format_score(scores) for scores in line.arms.values() if scores]
        gain = line.gain_over_scratch
        if gain and gain.half is not None and page != "README.md":
            cells.append(str(gain).strip("*"))
        named = name in ("real", "pairs", "sample")  # pages with a column or a row of models
        mine = [row for row in rows if not named or line.model in row.lower()]
        assert any(all(cell in row for cell in cells) for row in mine), (line.task_name, line.model, cells)


def test_many_footnotes_are_numbered() -> None:
    line = comparison.lines_of(comparison_files.read(REPOSITORY / "results/real/compare.csv"))[0]
    table = score_table([line], [Footnote(f"Caveat {number}.", line.task_name) for number in range(1, 13)])
    assert table.rows[0][1] == line.model + "¹,²,³,⁴,⁵,⁶,⁷,⁸,⁹,¹⁰,¹¹,¹²"
    assert table.notes[-1] == "¹² Caveat 12."


# ---------------------------------------------------------------------- the sample of Wikipedia


def read(file: Path) -> list[dict[str, Any]]:
    with lzma.open(file, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


class Hub:
    """A stand-in for the stream of the hub: articles of different lengths, in order."""

    read = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(10_000):
            self.read = number + 1
            words = 3 if number % 4 == 1 else 60  # every fourth is too short
            yield {"id": str(number), "url": "x", "title": f"T{number}", "text": f" word{number}" * words}


def test_the_sample_of_wikipedia_is_the_same_for_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, asked = Hub(), {}

    def open_hub(**arguments: Any) -> Hub:
        asked.update(arguments)
        return hub

    monkeypatch.setattr(wikipedia_sample, "open_hub", open_hub)
    run("wikipedia-sample", "--out", str(tmp_path / "wiki"), "--articles", "250")
    assert asked == {"path": "wikimedia/wikipedia", "name": "20231101.en", "split": "train", "streaming": True}
    assert hub.read < 2000  # no more than it needs
    assert "248 training articles" in capsys.readouterr().out
    files = find_files(str(tmp_path / "wiki"))
    found = [row for file in files for row in read(file)]
    assert len(found) == len({row["id"] for row in found}) == 250
    assert all(len(row["text"]) >= 200 for row in found)
    held_out = read(tmp_path / "wiki/valid.jsonl.xz")
    kept = [number for number in range(10_000) if number % 4 != 1][::5]
    assert [int(row["id"]) for row in held_out] == [kept[121], kept[243]]
    with pytest.raises(UserError, match="is there already"):
        run("wikipedia-sample", "--out", str(tmp_path / "wiki"))
    with pytest.raises(UserError, match="take 122 at least"):
        run("wikipedia-sample", "--out", str(tmp_path / "few"), "--articles", "100")
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="holds something else"):
        run("wikipedia-sample", "--out", str(tmp_path / "mine"), "--overwrite")
