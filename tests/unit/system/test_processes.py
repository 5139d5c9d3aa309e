"""Processes of a run: how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snugfit.system.processes import ENDING

PROGRAM = """
import atexit, sys
from snugfit.system.processes import leave
class Held:
    def __del__(self):
        sys.stdout.write("taken down ")
held = Held()
atexit.register(sys.stdout.write, "exit functions ")
sys.stdout.write("output ")
leave(3)
"""


@pytest.mark.parametrize(
    ("one_of_several", "said"),
    [(True, "output exit functions "), (False, "output exit functions taken down ")],
)
def test_one_of_several_leaves_with_its_code_and_is_not_taken_down(
    one_of_several: bool, said: str, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != ENDING}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if one_of_several:
        environment[ENDING] = str(tmp_path / "ending.json")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, said), done.stderr
