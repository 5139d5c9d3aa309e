"""The GPU benchmark, at toy size without a GPU: whoever has one finds that it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_part_runs_and_writes_its_figures(tmp_path: Path) -> None:
    command = [str(ROOT / "benchmarks/gpu/run.sh"), "--toy", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["toy"] and found["commit"]
    assert found["laws"]["summary"]["held"] == found["laws"]["summary"]["of"] > 10
    assert found["seven"]["it_learns"]
    assert found["seventy"]["streamed"]["copies_per_micro_batch"] >= 4
    assert found["peers"]["tokens_per_second_ratio"] > 0
    allocated = found["predicted"]["summary"]["allocated"]
    assert allocated["held"] == allocated["of"] >= 2


def test_a_part_that_passes_its_limit_is_said() -> None:
    spec = importlib.util.spec_from_file_location("gpu_run", ROOT / "benchmarks/gpu/run.py")
    assert spec is not None and spec.loader is not None
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    found = run.run_part("laws", True, 1)
    assert found["error"] == "stopped after 1 s"
