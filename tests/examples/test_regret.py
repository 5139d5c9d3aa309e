"""Choices beside tables of plans: those in the results of benchmarks/planner/regret.py, and four of them made anew."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "planner"
LIMIT = 0.05
"""By how much more time a choice may take than the best plan that is known."""


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    return [json.loads(line) for line in (FOLDER / "results" / name).read_text().splitlines()]


RECORDED = rows_of("regret-choices.jsonl")
"""The choices in the results, of each pair in the order of its budgets."""

PAIRS = sorted({each["pair"] for each in RECORDED})


def budgets_of(pair: str) -> list[dict[str, Any]]:
    return [each for each in RECORDED if each["pair"] == pair]


def quickest(count: int) -> list[str]:
    """Return the pairs whose searches took the least time."""
    return sorted(PAIRS, key=lambda pair: sum(each["seconds"] for each in budgets_of(pair)))[:count]


@pytest.mark.parametrize("pair", PAIRS)
def test_each_recorded_choice_is_within_a_twentieth_of_the_best_plan_that_is_known(pair: str) -> None:
    for each in budgets_of(pair):
        row = (each["level"], each["memory_bytes"], each["chosen"], each["best"])
        assert each["chosen"] is not None and each["regret"] <= LIMIT and not each["coarser"], row


@pytest.mark.parametrize("pair", PAIRS)
def test_beside_each_recorded_choice_many_plans_of_several_levels_fit_most_of_them_slow(pair: str) -> None:
    hard = [each for each in budgets_of(pair) if each["hard"]]
    assert len(hard) >= 3
    for each in hard:
        assert each["fitting"] >= 20 and each["levels"] >= 3 and each["median_over_fastest"] >= 1.3


def test_each_recorded_choice_is_beside_a_table_of_at_most_400_plans() -> None:
    tables = {each["pair"]: each["plans"] for each in rows_of("regret-tables.jsonl")}
    assert {*PAIRS} <= {*tables} and all(len(plans) <= 400 for plans in tables.values())


BOUNDED = [each for each in RECORDED if "bounds" in each]
"""Choices beside which bounds, and a search without the ladder, were recorded too."""

if_bounded = pytest.mark.skipif(not BOUNDED, reason="no choice has been recorded since bounds are")


@if_bounded
def test_no_bound_by_which_a_search_leaves_plans_out_is_above_what_a_plan_of_the_table_takes() -> None:
    for each in BOUNDED:
        assert 0 < each["bounds"]["seconds"] <= 1 and 0 < each["bounds"]["bytes"] <= 1, each


@if_bounded
def test_the_ladder_finds_no_less_than_a_search_from_the_recipe_s_own_plan() -> None:
    for each in BOUNDED:
        assert each["regret"] <= _regret_without_ladder(each) + LIMIT, each


def _regret_without_ladder(choice: Mapping[str, Any]) -> float:
    """Infinite where nothing was found, or a plan that is coarser than what its time is worth, beside which regret is below zero."""
    bare = choice["without_ladder"]
    return math.inf if bare["regret"] is None or bare["coarser"] else float(bare["regret"])


@pytest.mark.slow
@pytest.mark.parametrize("pair", quickest(4))
def test_a_choice_takes_at_most_a_twentieth_more_than_the_best_of_a_table_of_plans(pair: str) -> None:
    budgets = budgets_of(pair)
    hard = [place for place, each in enumerate(budgets) if each["hard"]]
    quick = sorted(hard, key=lambda place: budgets[place]["looked"])[len(hard) // 2]
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
    assert one["memory_bytes"] == budgets[quick]["memory_bytes"] and one["hard"]
    assert one["regret"] <= LIMIT and not one["coarser"], (one["chosen"], one["best"])
    assert max(one["bounds"].values()) <= 1
    assert one["regret"] <= _regret_without_ladder(one) + LIMIT
