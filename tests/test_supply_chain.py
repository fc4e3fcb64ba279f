"""The versions that users install: one for each Python that the project takes, and the same ones in the lock files."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.presets.files import REPOSITORY

PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def pins(file: Path) -> list[Requirement]:
    lines = file.read_text().replace("\\\n", " ").splitlines()
    found = [line.partition("--hash")[0].partition("#")[0].strip() for line in lines]
    return [Requirement(line) for line in found if line]


def versions(file: Path, python: str) -> dict[str, str]:
    """Package -> its version on Linux, each pinned once."""
    about = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    chosen = [pin for pin in pins(file) if pin.marker is None or pin.marker.evaluate(about)]
    found = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in chosen}
    assert len(found) == len(chosen)
    return found


CONSTRAINTS = REPOSITORY / "constraints.txt"
LOCKS = sorted((REPOSITORY / "requirements").glob("*.txt"))


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_has_one_version_of_each_package(python: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    known = versions(CONSTRAINTS, python)
    extras = itertools.chain.from_iterable(project["optional-dependencies"].values())
    for needed in map(Requirement, [*project["dependencies"], *extras]):
        assert needed.specifier.contains(known[canonicalize_name(needed.name)]), needed


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_lock_files_have_the_versions_of_the_constraints(lock: Path) -> None:
    """`make lock` writes them again."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    locked, known = versions(lock, "3.11"), versions(CONSTRAINTS, "3.11")
    assert {canonicalize_name(Requirement(needed).name) for needed in project["dependencies"]} <= set(locked)
    for name, version in locked.items():
        assert version.removesuffix("+cpu") == known.get(name, version), name
    text = lock.read_text()
    assert text.count("==") <= text.count("--hash=sha256:")
    assert not re.search(r"^ *-(?!-hash)|//", text, flags=re.M)  # no option but hashes, no address


def test_an_unknown_lock_is_refused() -> None:
    done = subprocess.run(["make", "-n", "install", "LOCK=other"], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2
    assert "LOCK=other is none of default linux-cpu" in done.stderr


def test_the_citation_has_what_its_format_needs() -> None:
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_image_copies_what_the_wheel_is_built_from() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", text, flags=re.M)
    sources = {name.rstrip("/") for line in copied for name in line.split()}
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = {line[1:].rstrip("/") for line in ignored if line.startswith("!")}
    assert sources == allowed
    assert all((REPOSITORY / name).exists() for name in sources)
