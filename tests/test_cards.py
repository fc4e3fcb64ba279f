"""Model cards: the hub accepts them, they say what is true, and their lines of Python run as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.conftest import figures, run

pytestmark = pytest.mark.slow

ENCODERS = {"bert": "transformers", "gpt": "transformers", "elmo": "pretrain-finetune"}
TUNED = {"bert": ("tagging", "transformers"), "gpt": ("entailment", "transformers"), "elmo": ("sentiment", None)}


def run_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the card's lines of Python have defined, run beside the folder."""
    monkeypatch.chdir(folder.parent)
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.S)
    assert len(code.splitlines()) == 3
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("model", ENCODERS)
def test_the_card_of_an_encoder(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = toys(model)
    folder, metrics = out / "encoder", figures(out)
    card = ModelCard.load(folder / "README.md")
    data, content = card.data, card.content
    assert (data.library_name, data.language) == (ENCODERS[model], "en")
    assert data.get("license") is None  # nobody has chosen one
    assert {model, "synthetic-data"} <= set(data.tags)
    assert data.eval_results[0].metric_value in [round(v, 6) for v in metrics.values() if isinstance(v, float)]
    assert f"{metrics['parameters']:,} parameters" in content
    assert f"{metrics['steps']:,} steps of 16 rows" in content
    assert f"{metrics['baseline/unigram']:.4g} for guessing each token by its frequency" in content
    assert ("bytes of words" in content) == (model == "elmo")
    assert ("transformers as it is" in content) == (model != "elmo")
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", content):
        assert (folder / picture).is_file()
    names = run_lines(folder, monkeypatch)
    assert names["layers"] if model == "elmo" else names["model"].config.model_type.startswith(model)


@pytest.mark.parametrize("model", TUNED)
def test_the_card_of_a_fine_tuned_model(
    model: str, toys: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, library = TUNED[model]
    out = tmp_path / "run"
    tiny = ["--data.epochs=1", "--data.train_rows=32", "--validations=1", "--precision=32-true"]
    run("finetune", "--from", str(toys(model) / "encoder"), "--task", task, "--model", model, "--out", str(out), *tiny)
    card, metrics = ModelCard.load(out / "model/README.md"), figures(out)
    [result] = card.data.eval_results
    assert result.metric_value == round(metrics[f"test/{result.metric_type}"], 6)
    assert (result.dataset_name, result.dataset_split) == (task, "test")
    assert card.data.library_name == (library or "pretrain-finetune")
    assert card.data.pipeline_tag == ("token-classification" if task == "tagging" else "text-classification")
    assert all(f"baseline: {name}" in card.content for name in ("training spans" if task == "tagging" else "majority",))
    assert run_lines(out / "model", monkeypatch)["model"]
    assert metrics["encoder"] in (out / "lineage.json").read_text()
    assert {"device", "seed", "version", "date"} <= metrics.keys()
