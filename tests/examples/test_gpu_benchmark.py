"""The GPU benchmark, at toy size without a GPU: whoever has one finds that it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


SHOWN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "laws": lambda found: found["summary"]["held"] == found["summary"]["of"] > 10,
    "seven": lambda found: found["it_learns"],
    "seventy": lambda found: found["streamed"]["copies_per_micro_batch"] >= 4,
    "peers": lambda found: found["tokens_per_second_ratio"] > 0,
    "predicted": lambda found: (
        found["summary"]["allocated"]["held"] == found["summary"]["allocated"]["of"] >= 2
    ),
}


def test_no_part_is_left_out() -> None:
    assert set(SHOWN) == set(runner().LIMITS)


@pytest.mark.slow
@pytest.mark.parametrize("part", SHOWN)
def test_a_part_runs_and_writes_its_figures(part: str, tmp_path: Path) -> None:
    command = [str(ROOT / "benchmarks/gpu/run.sh"), "--toy", "--only", part, "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["toy"] and found["commit"]
    assert SHOWN[part](found[part]), found[part]


def test_a_part_that_passes_its_limit_is_said() -> None:
    assert runner().run_part("laws", True, 1)["error"] == "stopped after 1 s"


def runner() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_run", ROOT / "benchmarks/gpu/run.py")
    assert spec is not None and spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    return run
