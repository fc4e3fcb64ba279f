"""What CONTRIBUTING.md shows is whole and runs: its files are put where their names say, and used by the commands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipeline.cli.commands
import pipeline.models
import pipeline.objectives
from pipeline.models import registry
from pipeline.presets import files as presets
from pipeline.presets.files import REPOSITORY
from pipeline.prompting import log_likelihoods
from tests.conftest import figures, run

SMALL = ["--data.sample_documents=300", "--data.validation_rows=64", "--precision=32-true", "--validate_every=30"]
FILES = dict(
    re.findall(r"^```(?:python|yaml) (\S+)\n(.*?)^```", (REPOSITORY / "CONTRIBUTING.md").read_text(), flags=re.S | re.M)
)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The new files of the page, as if they were in the packages."""
    new = {name: content for name, content in FILES.items() if not (REPOSITORY / name).exists()}
    for name, content in new.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    for package in (pipeline.models, pipeline.objectives, pipeline.cli.commands):
        folder = tmp_path / package.__name__.replace(".", "/")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    monkeypatch.setattr(presets, "folders_of", lambda kind: [presets.CONFIGS / kind, tmp_path / "configs" / kind])
    registry._in_package.cache_clear()
    yield
    registry._in_package.cache_clear()
    for name in new:
        sys.modules.pop(name.removesuffix(".py").replace("/", "."), None)


def test_what_is_in_the_repository_is_shown_as_it_is_there() -> None:
    there = [name for name in FILES if (REPOSITORY / name).exists()]
    assert "pipeline/finetuning/heads/regression.py" in there
    for name in there:
        assert FILES[name] == (REPOSITORY / name).read_text(), name


@pytest.mark.slow
def test_a_model_an_objective_and_a_command_are_one_file_each(
    page: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "my-gru" in registry.names()
    run("pretrain", "--model", "my-gru", "--out", "run", *SMALL)
    end = figures(Path("run"))
    assert end["val/lm_loss"] < min(value for name, value in end.items() if name.endswith("/unigram"))
    run("audit", "--model", "my-gru", SMALL[0])
    audit = capsys.readouterr().out
    assert "FAIL" not in audit
    assert "no gradient reaches later tokens" in audit
    skip = ["--model.objective=pipeline.objectives.skip_lm.SkipLM", "--model.objective.distance=3"]
    run("pretrain", "--model", "my-gru", "--out", "skip", *SMALL, *skip, "--trainer.max_steps=4")
    assert figures(Path("skip"))["val/skip_loss"] > 0
    run("pieces", "--from", "run/encoder", "--text", "The soup")
    assert capsys.readouterr().out.splitlines()[-1].replace(" | ", "") == "The soup"
    encoder = pipeline.encoders.load("run/encoder")
    [prompt] = encoder.tokenize(["The"])
    assert len(encoder.generate(prompt, tokens=4, temperature=1, top_k=0, top_p=1.0, seed=0)) <= 4
    whole, *parts = log_likelihoods(encoder, [("The", " soup was"), ("The", " soup"), ("The soup", " was")])
    assert sum(parts) == pytest.approx(whole, abs=1e-4)
    more = ["--data.train_rows=32", "--data.epochs=1", "--validations=1", "--precision=32-true"]
    for task in ("sentiment", "entailment", "tagging"):
        run("finetune", "--model", "my-gru", "--from", "run/encoder", "--task", task, "--out", task, *more)
        assert figures(Path(task))["test/rows"] == 500
