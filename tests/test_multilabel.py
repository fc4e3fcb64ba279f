"""Several labels of a text: how they are read, guessed and scored, and what is learned of them."""

from __future__ import annotations

import csv
import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import f1_score

import pipeline
from pipeline.errors import UserError
from pipeline.finetuning.heads.multilabel import MultiLabelHead
from pipeline.finetuning.options import HeadOptions, ModelConfig
from pipeline.reporting.finetuning import types_section
from pipeline.reporting.page import Table
from pipeline.storage.validation import checked
from tasks.baselines import labels_of_bags
from tasks.multilabel import MultiLabel
from tests.conftest import assert_plot, figures, run

ANIMALS = ["cat", "dog", "big bird"]
TASK = """\
data:
  task:
    class_path: tasks.multilabel.MultiLabel
    init_args:
      columns: {text: text, label: labels}
"""


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Texts that name animals, and these; every fifth text names none."""
    rng = random.Random(seed)
    found = []
    for number in range(count):
        chosen = [] if number % 5 == 0 else rng.sample(ANIMALS, rng.randint(1, 3))
        found.append({"text": " and ".join(["we saw", *(f"a {name}" for name in chosen), "a house"]), "labels": chosen})
    return found


def write(folder: Path) -> Path:
    for split, count in (("train", 200), ("valid", 40), ("test", 60)):
        lines = "".join(json.dumps(row) + "\n" for row in rows(count, seed=count))
        (folder / f"{split}.jsonl").write_text(lines)
    (folder / "animals.yaml").write_text(TASK)
    return folder / "animals.yaml"


def test_labels_are_learned_predicted_and_shown(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, out = write(tmp_path), tmp_path / "run"
    flags = ["--data.epochs=24", "--precision=32-true", "--learning-rate", "2e-3", "--validations=2"]
    flags += ["--task", str(task), "--data", str(tmp_path), "--from", str(pretrained / "encoder")]
    run("finetune", *flags, "--out", str(out))
    end = figures(out)
    assert end["test/micro_f1"] > max(0.8, end["baseline/majority"] + 0.1)
    assert end["baseline/bag_of_words"] > 0.9
    assert {"test/exact_match", "test/macro_f1", "test/big bird/f1", "test/big bird/support"} < end.keys()
    assert "test micro F1 0." in capsys.readouterr().out
    assert_plot(out / "labels.png")
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    sides = [[[name in line[side] for name in ANIMALS] for line in lines] for side in ("gold", "labels")]
    assert end["test/micro_f1"] == pytest.approx(f1_score(*sides, average="micro"))
    (tmp_path / "new.txt").write_text("we saw a big bird and a dog and a house\nwe saw a house\n")
    named_before = ["--model", str(out)]
    run("predict", *named_before, "--data", str(tmp_path / "new.txt"), "--out", str(tmp_path / "new.csv"))
    first, second = csv.DictReader((tmp_path / "new.csv").open())
    assert "big bird" in first["predicted_labels"].split(",")  # as the task reads them
    assert second["predicted_labels"] == ""
    assert float(first["probability_big bird"]) > 0.5 > float(second["probability_big bird"])
    run("score", "--from", str(out), "--task", str(task), "--data", str(tmp_path), "--out", str(tmp_path / "own.json"))
    assert json.loads((tmp_path / "own.json").read_text())["micro_f1"] == pytest.approx(end["test/micro_f1"])
    run("report", "--from", str(out))
    page = (out / "report.html").read_text()
    assert "Each label, in texts that have it" in page
    assert "conlleval" not in page


def test_it_is_the_head_of_transformers(pretrained: Path, tmp_path: Path) -> None:
    task = write(tmp_path)
    few = ["--data.epochs=1", "--data.train_rows=32", "--precision=32-true", "--validations=1"]
    where = ["--task", str(task), "--data", str(tmp_path), "--from", str(pretrained / "encoder")]
    run("finetune", *few, *where, "--out", str(tmp_path / "run"))
    ours = pipeline.load(tmp_path / "run/model")
    theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "run/model", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert theirs.config.problem_type == "multi_label_classification"
    features = ours.features([row["text"] for row in rows(4, seed=1)])
    labels, count = MultiLabelHead.collate(ours.encoder, [[], [0], [0, 2], [0, 1, 2]], features)
    batch = ours.encoder.collate([feature.ids for feature in features])
    outputs = ours(batch)[0]
    truth = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 0, 1], [1, 1, 1]]).float()
    names = {"input_ids": batch["input_ids"], "attention_mask": batch["mask"].long()}
    expected = theirs.eval()(**names, labels=truth)
    torch.testing.assert_close(outputs, expected.logits, rtol=0, atol=1e-5)
    loss = ours.head.loss(outputs, labels)
    assert float(loss.sum.detach() / count) == pytest.approx(float(expected.loss), rel=1e-5)


def test_scores_are_those_of_sklearn() -> None:
    task = MultiLabel(labels={name: name for name in ANIMALS})
    rng = np.random.default_rng(0)
    sets = [[np.flatnonzero(rng.random(3) < 0.4).tolist() for _ in range(50)] for _ in range(2)]
    found = task.scores(*sets)
    truth = [task.indicators(side) for side in sets]
    assert found.figures["micro_f1"] == pytest.approx(f1_score(*truth, average="micro"))
    assert found.figures["macro_f1"] == pytest.approx(f1_score(*truth, average="macro"))
    assert found.figures["exact_match"] == np.mean([a == b for a, b in zip(*sets, strict=True)])
    perfect = task.scores([[0], []], [[0], []]).figures
    assert perfect == {"micro_f1": 1.0, "macro_f1": 1.0, "exact_match": 1.0}  # of labels that occur


@pytest.mark.parametrize(
    ("value", "wanted"), [("dog,cat", [0, 1]), (["dog"], [1]), ([], []), ("", []), (None, []), (" cat , ", [0])]
)
def test_how_labels_are_read(value: Any, wanted: list[int]) -> None:
    task = MultiLabel(labels={name: name for name in ANIMALS})
    assert task.label(("a.csv, line 2", {"text": "a text", "label": value})) == wanted


@pytest.mark.parametrize(
    ("value", "message"), [("cow", "line 2 has the label 'cow'; the task knows"), ([["cat"]], "which are no names")]
)
def test_labels_that_cannot_be_read(value: Any, message: str) -> None:
    task = MultiLabel(labels={name: name for name in ANIMALS})
    with pytest.raises(UserError, match=message):
        task.label(("a.csv, line 2", {"text": "a text", "label": value}))


def test_the_constant_answer_is_the_best_one() -> None:
    task, rng = MultiLabel(labels={str(label): str(label) for label in range(5)}), np.random.default_rng(0)
    for _ in range(20):
        known = [np.flatnonzero(rng.random(5) < [0.6, 0.5, 0.3, 0.2, 0.1]).tolist() for _ in range(40)]
        answers = [list(chosen) for size in range(1, 6) for chosen in itertools.combinations(range(5), size)]
        best = max(task.scores(known, [answer] * 40).figures["micro_f1"] for answer in answers)
        assert task.scores(known, [task.constant(known)] * 40).figures["micro_f1"] == pytest.approx(best)
    assert task.constant([[], []]) == []


def test_a_label_that_all_texts_have_is_in_the_baseline() -> None:
    known = np.array([[1, 1], [1, 0]] * 10)
    found = labels_of_bags(["a dog", "a cat"] * 10, known, ["dog", "cat"], threshold=0.5)
    assert found == [[0, 1], [0]]


def test_settings_are_checked() -> None:
    with pytest.raises(UserError, match="threshold is 1"):
        MultiLabel(threshold=1)
    with pytest.raises(UserError, match="separator is empty"):
        MultiLabel(separator=" ")


def test_names_with_commas_between_them_are_guessed(tmp_path: Path) -> None:
    """As several labels where each of them stands alone too; otherwise a comma is a part of a name."""
    parts = [{"text": row["text"], "labels": ",".join(row["labels"])} for row in rows(60, seed=0)]
    parts += [{"text": f"we saw number {n}", "labels": name} for n, name in enumerate(ANIMALS * 3)]
    for name, found, kind in (
        ("several", parts, "multilabel"),
        (
            "names",
            [{"text": f"text number {n}", "label": ["Bonn, Germany", "Bern"][n % 2]} for n in range(40)],
            "sentence",
        ),
    ):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]))
            writer.writeheader()
            writer.writerows(found)
        run("new-task", "--name", name, "--data", f"{name}.csv")
        content = Path(f"configs/tasks/{name}.yaml").read_text()
        assert ("MultiLabel" in content) == (kind == "multilabel")


def test_a_head_may_have_a_digit_in_its_name() -> None:
    options = {**HeadOptions(**OPTIONS).__dict__, "name": "head2"}
    config = {"id2label": {"0": "no", "1": "yes"}, "head": options}
    assert checked(ModelConfig, config, Path("config.json"))["head"].name == "head2"


OPTIONS: dict[str, Any] = {"name": "multilabel", "pairs": False, "columns": {}, "mix": False, "mix_dropout": 0.0}
OPTIONS |= {"lstm": 0, "dropout": 0.0, "max_length": 32, "cut": "head"}


def test_a_label_may_have_a_slash_in_its_name() -> None:
    scores = {"precision": 0.5, "recall": 0.25, "f1": 0.333, "support": 4}
    run: Any = SimpleNamespace(metrics={f"test/sci/tech/{name}": value for name, value in scores.items()})
    [table] = types_section(run).blocks
    assert isinstance(table, Table)
    assert table.rows == [["sci/tech", "0.500", "0.250", "0.333", "4"]]
