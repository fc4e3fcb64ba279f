"""An installed wheel works in an empty folder: configurations and word list come with it, runs go where the user is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline.presets.files import REPOSITORY
from tests.conftest import SMALL, surroundings
from tests.fork_server import python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel of this repository holds; built in a copy, which leaves nothing here."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for part in ("pipeline", "tasks", "configs"):
        shutil.copytree(REPOSITORY / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / part, source / part)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-q"]
    subprocess.run([*build, "-w", str(folder), str(source)], check=True, timeout=120)
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_every_file_of_the_packages_is_in_the_wheel(installed: Path) -> None:
    for part, place in (("pipeline", "pipeline"), ("tasks", "tasks"), ("configs", "pipeline/configs")):
        for file in (REPOSITORY / part).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert (installed / place / file.relative_to(REPOSITORY / part)).is_file(), file
    [scripts] = installed.glob("*.dist-info/entry_points.txt")
    assert "pretrain-finetune = pipeline.__main__:command" in scripts.read_text()


def test_it_pretrains_and_makes_a_task_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    environment = surroundings(PYTHONPATH=str(installed))

    def command(*args: str) -> str:
        script = [python(), "-c", "import sys; from pipeline.__main__ import command; sys.exit(command())", *args]
        done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    command("pretrain", *SMALL, "--trainer.max_steps=2", "--validate_every=2")
    assert (tmp_path / "runs/pretrain/bert/encoder/model.safetensors").is_file()
    command("new-task", "--name", "mine")
    assert (tmp_path / "configs/tasks/mine.yaml").is_file()
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "configs", "tests", ".cache"}
