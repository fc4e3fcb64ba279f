"""A command that is forked is to its caller what a Python of its own would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import python

CODE = """
import os, sys, uuid
print(sys.argv, sys.stdin.read(), os.getcwd(), os.environ["MINE"], __name__, len(sys.modules["__main__"].__dict__) < 20)
print(sys.flags.utf8_mode, sys.stdout.encoding, sys.stderr.errors, sys.path[:2], os.umask(0))
"""
ENDS = {
    "sys.exit(7)": 7,
    "sys.exit('said')": 1,
    "1 / 0": 1,
    "raise KeyboardInterrupt": -signal.SIGINT,
    "os.kill(os.getpid(), 9)": -signal.SIGKILL,
    "os.abort()": -signal.SIGABRT,
    "import atexit; atexit.register(print, 'at exit')": 0,
}


@pytest.mark.parametrize("end", ENDS)
def test_a_fork_is_as_a_python_of_its_own(end: str, tmp_path: Path) -> None:
    environment = {**os.environ, "MINE": "mine", "PYTHONPATH": str(tmp_path)}
    found = []
    for program in (python(), sys.executable):
        command = [program, "-c", CODE + end, "an argument"]
        done = subprocess.run(command, input="given", capture_output=True, text=True, env=environment, cwd=tmp_path)
        found.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert found[0] == found[1]
    assert found[0][0] == ENDS[end]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_signals_reach_it(number: signal.Signals) -> None:
    code = "import time; print('begun', flush=True); time.sleep(100)"
    process = subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    assert process.wait(60) == -number
    assert process.stdout.read() == ""  # closed: the fork has ended too


def test_with_other_settings_of_libraries_it_begins_anew() -> None:
    code = "import sys; print('torch' in sys.modules, sys.executable)"
    for more, imported, program in (({}, True, python()), ({"OMP_NUM_THREADS": "2"}, False, sys.executable)):
        environment = {**os.environ, **more}
        done = subprocess.run([python(), "-c", code], capture_output=True, text=True, env=environment)
        assert done.stdout.split() == [str(imported and program != sys.executable), program]
