from __future__ import annotations

import re
from pathlib import Path

from snugfit.report.planned import setup
from snugfit.report.story import read_story
from tests.unit.report.fake_run import write_run


def test_of_a_plan_that_was_searched_for_the_choice_and_what_it_needs_are_told(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine" / "20261121-0930-1a2b"
    write_run(run)
    plan = {
        "fits": True,
        "choice": {"micro_batch": 8, "numerics": "fp32", "techniques": [{"adamw": {"epsilon": 1e-8}}]},
        "peak_bytes": 3 * 2**20,
        "seconds_per_update": 0.5,
        "seconds_total": None,
        "peak_by_phase": {"forward": {"weights": 17928}},
    }
    words = re.sub("<[^>]+>", " ", setup(read_story(run), plan).partition("Machine")[0])
    assert "3.00 MiB" in words and "micro_batch" in words
    assert "epsilon" not in words and "17,928" not in words and "seconds_total" not in words


def test_a_plan_as_it_was_set_is_told_whole(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine" / "20261121-0930-1a2b"
    write_run(run)
    assert "num_workers" in setup(read_story(run), {"micro_batch": 8, "num_workers": 3})
