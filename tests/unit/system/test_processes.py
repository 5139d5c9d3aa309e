"""Processes of a run: how they end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys
from snugfit.system.processes import leave
class Held:
    def __del__(self):
        sys.stdout.write("taken down ")
held = Held()
atexit.register(sys.stdout.write, "exit functions ")
sys.stdout.write("output ")
leave(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("size", "code", "output"),
    [
        (2, 0, "output exit functions "),
        (2, 3, "output "),  # what waits for other ranks would never end
        (1, 0, "output exit functions taken down "),
        (1, 3, "output exit functions taken down "),
    ],
)
def test_one_of_several_leaves_with_its_code_and_is_not_taken_down(size: int, code: int, output: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(size)},
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, output), done.stderr
