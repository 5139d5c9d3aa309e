"""The choice beside the table of plans in the results of benchmarks/planner/regret.py, of four pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "planner"
RECORDED = [
    json.loads(line) for line in (FOLDER / "results" / "regret-choices.jsonl").read_text().splitlines()
]
"""The choices in the results, of each pair in the order of its budgets."""


def quickest(count: int) -> list[str]:
    """Return the pairs whose searches took the least time."""
    pairs = {each["pair"] for each in RECORDED}
    return sorted(pairs, key=lambda pair: sum(each["seconds"] for each in RECORDED if each["pair"] == pair))[
        :count
    ]


@pytest.mark.slow
@pytest.mark.parametrize("pair", quickest(4))
def test_a_choice_takes_at_most_a_twentieth_more_than_the_best_of_a_table_of_plans(pair: str) -> None:
    budgets = [each for each in RECORDED if each["pair"] == pair]
    quick = sorted(range(len(budgets)), key=lambda place: budgets[place]["looked"])[len(budgets) // 2]
    command = [sys.executable, str(FOLDER / "regret.py"), "--one", pair, "--budget", str(quick)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (one,) = json.loads(done.stdout.splitlines()[-1])["choices"]
    assert one["memory_bytes"] == budgets[quick]["memory_bytes"] and one["fitting"] > 0
    assert one["regret"] <= 0.05 and not one["coarser"], (one["chosen"], one["best"])
