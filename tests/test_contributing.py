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
from pipeline.errors import UserError
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
    for name in (*new, "pipeline/models/half.py"):
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


BROKEN = {
    "def forward(:\n": "SyntaxError: invalid syntax.",
    "import nothing_of_this_name\n": "ModuleNotFoundError: No module named 'nothing_of_this_name'.",
    "class Own:\n    size: int = wide\n": "NameError: name 'wide' is not defined.",
}


def half_written(folder: Path, content: str) -> Path:
    """A file of a model in the packages of `page`, and its configuration, MODEL=half."""
    (folder / "configs/pretrain/half.yaml").write_text(
        (folder / "configs/pretrain/my-gru.yaml").read_text().replace("my_gru", "half")
    )
    file = folder / "pipeline/models/half.py"
    file.write_text(content)
    return file


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_is_named_and_the_others_serve(
    page: None, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model that is being written; a task and a command are found in the same way."""
    file = half_written(tmp_path, content)
    assert {"bert", "gpt", "ngram"} < set(registry.names())
    registry._in_package.cache_clear()
    assert "half" not in registry.names()  # looked for again, and said once
    why = f"{file}, line {content.count(chr(10))}: {BROKEN[content]}"
    assert capsys.readouterr().err == f"Warning: {why} The file is left out.\n"
    with pytest.raises(UserError) as error:
        run("pretrain", "--model", "half")
    assert str(error.value) == why


def test_a_model_that_lacks_a_method_says_so_before_it_is_trained(page: None, tmp_path: Path) -> None:
    whole = (tmp_path / "pipeline/models/my_gru.py").read_text()
    changes = {'"my-gru"': '"half"', "def logits": "def scores", "def layer_groups": "def groups"}
    for before, after in changes.items():
        assert before in whole
        whole = whole.replace(before, after)
    half_written(tmp_path, whole)
    with pytest.raises(UserError, match=r"half\.Gru has no layer_groups, logits yet"):
        run("pretrain", "--model", "half", *SMALL)
