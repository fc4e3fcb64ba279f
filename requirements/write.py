"""Writes the lock files beside this file: the packages of pyproject.toml, in the versions of constraints.txt.

`default.txt` has torch as PyPI has it (with CUDA on Linux), for any platform and Python 3.11 or newer. `linux-cpu.txt`
has torch for CPUs, for Linux on x86-64 and Python 3.11.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = {
    "default": ["--universal", "--python-version=3.11"],
    "linux-cpu": ["--python-platform=x86_64-manylinux_2_28", "--python-version=3.11"],
}
HEADERS = {
    "default": "Any platform, Python 3.11 or newer; torch with CUDA on Linux.",
    "linux-cpu": "Linux on x86-64, Python 3.11; torch for CPUs (pip needs --extra-index-url for it).",
}
ELSEWHERE = ("UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX")  # where torch for CPUs is


def main() -> None:
    uv = Path(sys.executable).with_name("uv")
    [torch] = re.findall(r"^torch==.+", (HERE.parent / "constraints.txt").read_text(), flags=re.M)
    more_of = {"default": "setuptools", "linux-cpu": f"setuptools\n{torch}+cpu"}  # setuptools builds the project itself
    for name, platform in LOCKS.items():
        with tempfile.TemporaryDirectory() as folder:
            more, lock = Path(folder, "more.txt"), Path(folder, "lock.txt")
            more.write_text(more_of[name])
            inputs = ["pyproject.toml", str(more), "-c", "constraints.txt", "-o", str(lock)]
            options = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", *platform]
            known = {key: value for key, value in os.environ.items() if name != "default" or key not in ELSEWHERE}
            subprocess.run([uv, "pip", "compile", *inputs, *options], cwd=HERE.parent, env=known, check=True)
            header = f"# {HEADERS[name]} Written by `make lock`.\n"
            (HERE / f"{name}.txt").write_text(header + lock.read_text())


if __name__ == "__main__":
    main()
