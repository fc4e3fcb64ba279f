"""`make score`: a fine-tuned model on labeled texts that it was not tested on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.data.synthetic.tasks import synthetic_rows
from pipeline.errors import UserError
from tests.conftest import assert_plot, figures, run

TINY = ["--validations=1", "--precision=32-true", "--data.train_rows=32", "--data.epochs=1"]
TASK = """
data:
  task:
    class_path: tasks.{kind}
    init_args:
      columns: {{{columns}}}
"""


@pytest.fixture(scope="module")
def tuned(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Task -> the folder of a short run."""
    folder = tmp_path_factory.mktemp("tuned")

    def tuned(task: str) -> Path:
        out = folder / task
        if not out.exists():
            run("finetune", "--task", task, "--from", str(pretrained / "encoder"), "--out", str(out), *TINY)
        return out

    return tuned


def task_file(folder: Path, kind: str, columns: str, more: str = "") -> str:
    file = folder / "own.yaml"
    file.write_text(TASK.format(kind=kind, columns=columns) + more)
    return str(file)


def rows_file(folder: Path, rows: list[dict], name: str = "other.jsonl") -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


@pytest.mark.parametrize(
    ("task", "picture"), [("sentiment", "confusion"), ("entailment", "confusion"), ("tagging", "types")]
)
def test_its_own_test_part_has_the_scores_of_the_run(
    tuned: Callable[[str], Path], task: str, picture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tuned(task), tmp_path / "scores" / "own.json"
    run("score", "--from", str(folder), "--out", str(out))
    wanted, found = figures(folder), json.loads(out.read_text())
    scores = {key.removeprefix("test/"): value for key, value in wanted.items() if key.startswith("test/")}
    assert "rows" in (shared := scores.keys() & found.keys())
    assert len(shared) > 4
    assert {key: found[key] for key in shared} == pytest.approx({key: scores[key] for key in shared})
    assert (folder / "predictions.jsonl").read_text().count("\n") == out.with_suffix(".jsonl").read_text().count("\n")
    assert_plot(tmp_path / "scores" / f"own-{picture}.png")
    assert f"{wanted['test/rows']:,} test rows of {task}" in capsys.readouterr().out


def test_a_file_of_some_labels_in_another_order(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    """Labels are compared by name, whatever their order, and whichever of them a file has."""
    rows = [row for row in synthetic_rows("entailment", "test") if row["label"] != "contradiction"][:60]
    task = task_file(tmp_path, "entailment.Entailment", "premise: premise, hypothesis: hypothesis, label: label")
    run(
        *("score", "--from", str(tuned("entailment") / "model"), "--task", task),
        *("--data", rows_file(tmp_path, rows), "--out", str(tmp_path / "some.json")),
    )
    answers = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert [answer["gold"] for answer in answers] == [row["label"] for row in rows]
    found = json.loads((tmp_path / "some.json").read_text())
    assert found["accuracy"] == sum(answer["gold"] == answer["label"] for answer in answers) / len(rows)
    assert found["rows"] == 60


def test_another_language_and_a_part(tuned: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    run("score", "--from", str(tuned("sentiment")), "--task", "sentiment-translated", "--part", "valid")
    shown = capsys.readouterr().out
    assert "200 valid rows of sentiment-translated" in shown
    assert "accuracy 0." in shown


def test_a_model_that_counts_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("finetune", "--model", "ngram", "--task", "sentiment", "--out", str(tmp_path / "run"))
    run("score", "--from", str(tmp_path / "run"), "--out", str(tmp_path / "own.json"))
    assert json.loads((tmp_path / "own.json").read_text())["accuracy"] == figures(tmp_path / "run")["test/accuracy"]
    with pytest.raises(UserError, match="a task of tagging needs a model that is trained in steps"):
        run("score", "--from", str(tmp_path / "run"), "--task", "tagging")


def test_one_label_only_is_no_error(
    tuned: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": "The garden was lovely.", "label": "positive"}] * 3
    run("score", "--from", str(tuned("sentiment")), "--data", rows_file(tmp_path, rows))
    assert "3 test rows of sentiment" in capsys.readouterr().out


def test_a_column_says_which_rows_are_of_the_part(
    tuned: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"review": "lovely", "label": "positive", "split": part} for part in ("train", "test", "test", "valid")]
    run("score", "--from", str(tuned("sentiment")), "--data", rows_file(tmp_path, rows))
    shown = capsys.readouterr().out
    assert "2 test rows of sentiment, by " in shown
    assert "read from the column review as text" in shown


def test_rows_without_a_label_are_counted(
    tuned: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_file(tmp_path, "sentiment.Sentiment", "text: text, label: label", '      ignore: ["-"]\n')
    rows = [{"text": "lovely", "label": label} for label in ("positive", "-", "negative")]
    run("score", "--from", str(tuned("sentiment")), "--task", task, "--data", rows_file(tmp_path, rows))
    assert "2 test rows of own (1 left out, without a label), by " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "fine", "label": "mixed"}], r"line 1 has the label 'mixed'; the task knows negative, positive"),
        ([{"label": "positive"}], r"it is not clear which of them are text and label"),
        ([], r"The test part of the task holds no row"),
    ],
)
def test_rows_that_do_not_fit(tuned: Callable[[str], Path], tmp_path: Path, rows: list[dict], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run("score", "--from", str(tuned("sentiment")), "--data", rows_file(tmp_path, rows))


def test_what_the_model_cannot_answer(tuned: Callable[[str], Path], pretrained: Path, tmp_path: Path) -> None:
    model = str(tuned("sentiment"))
    with pytest.raises(UserError, match=r"The model has the head 'sentence', and a task of tagging needs 'token'"):
        run("score", "--from", model, "--task", "tagging")
    task = task_file(tmp_path, "entailment.Entailment", "premise: premise, hypothesis: hypothesis, label: label")
    rows = [{"premise": "one", "hypothesis": "two", "label": "positive"}]
    with pytest.raises(UserError, match=r"This model reads single texts"):
        run("score", "--from", model, "--task", task, "--data", rows_file(tmp_path, rows))
    with pytest.raises(UserError, match=r"The task has the label entailment, neutral, contradiction, which the model"):
        run("score", "--from", model, "--task", "entailment")
    with pytest.raises(UserError, match=r"is an encoder without a head"):
        run("score", "--from", str(pretrained), "--task", "sentiment")
    with pytest.raises(UserError, match=r"There is no folder"):
        run("score", "--from", str(tmp_path / "none"))
    (tmp_path / "there.json").write_text("mine")
    with pytest.raises(UserError, match=r"there.json is there already"):
        run("score", "--from", model, "--out", str(tmp_path / "there.json"))


def test_a_model_whose_task_is_not_known_here(tuned: Callable[[str], Path], tmp_path: Path) -> None:
    """The lineage of a model has the name of its task, and of a user's own file no place."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (tuned("sentiment") / "model").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for file in ("lineage.json", "SHA256SUMS"):
        (folder / file).unlink()
    with pytest.raises(UserError, match=r"^Which task is it\? .*model does not say; name one \(--task=?\)"):
        run("score", "--from", str(folder))
