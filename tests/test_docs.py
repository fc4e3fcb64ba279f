"""The pages of docs/: their links, and the notebook of the tutorial."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import PAGES, REPOSITORY
from tests.fork_server import python
from tests.test_readme_commands import toy_configurations

TOP = [REPOSITORY / name for name in ("README.md", "BENCHMARKS.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def test_links_lead_to_files() -> None:
    """Read in the repository, where generated pages are not there; the build of the site checks anchors, too."""
    generated = re.findall(r'^ +"([\w/-]+\.md)": ', (REPOSITORY / "docs/hooks.py").read_text(), flags=re.M)
    assert "reference/commands.md" in generated
    for page in {*PAGES, *TOP}:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not re.match(r"[a-z]+:", link):
                target = (page.parent / link).resolve()
                assert target.exists() or target in {REPOSITORY / "docs" / name for name in generated}, (page, link)


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On toy sizes, in the environment of a user; its commands are in the environment of its kernel."""
    ignored = shutil.ignore_patterns(".*", "runs", "build", "__pycache__", "*.egg-info", "wandb", "results", "tests")
    shutil.copytree(REPOSITORY, tmp_path / "repository", ignore=ignored)
    toy_configurations(tmp_path / "repository/configs")
    monkeypatch.setattr("sys.executable", python())  # of the kernel
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "repository"))
    program = tmp_path / "bin/pretrain-finetune"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{python()}" -m pipeline "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "work").mkdir()
    notebook = nbformat.read(REPOSITORY / "docs/tutorial.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path / "work")}})
    client.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    assert not re.findall(r"^Error: .*|Traceback.*", printed, flags=re.M)
    assert (tmp_path / "work/runs/zeroshot/bert-sentiment/metrics.json").exists()
