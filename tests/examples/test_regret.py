"""The choice beside the table of plans in the results of benchmarks/planner/regret.py, of four pairs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "planner"
PAIRS = ("ranker, a100-80", "vit, rtx3090", "lstm, rtx4090", "gpt2, many words, t4")


def recorded(pair: str) -> list[dict[str, Any]]:
    """Return the choices of a pair in the results, in the order of its budgets."""
    lines = (FOLDER / "results" / "regret-choices.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["pair"] == pair]


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_a_choice_takes_at_most_a_twentieth_more_than_the_best_of_a_table_of_plans(pair: str) -> None:
    budgets = recorded(pair)
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
