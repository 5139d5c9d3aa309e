from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from snugfit.report.page import render
from snugfit.report.sections import read_timeline, setup
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


TIMELINE = {
    "segments": ["forward 1", "backward 1", "optimizer"],
    "seconds": [0.0, 0.1, 0.3],
    "bytes_by_kind": {"weights": [2**20] * 3, "activations": [2**20, 3 * 2**20, 0]},
}


def test_the_memory_over_an_update_is_drawn_as_it_was_predicted_with_its_peak(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "mine" / "20261121-0930-1a2b"
    write_run(run)
    assert "Memory, predicted" not in render(read_story(run), run)
    (run / "timeline.json").write_text(json.dumps(TIMELINE), encoding="utf-8")
    at = {"segment": "backward 1", "module": "head", "operator": "aten.mm.default"}
    plan = {"choice": {"micro_batch": 8}, "peak_at": at, "peak_bytes": 4 * 2**20}
    (run / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    text = render(read_story(run), run)
    assert text.count('<svg class="plot stack"') == 1
    assert "Highest at 4.00 MiB, in backward 1, head, aten.mm.default." in text


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps(TIMELINE | {"seconds": [0.0]}),
        json.dumps(TIMELINE | {"bytes_by_kind": {}}),
    ],
)
def test_a_timeline_that_cannot_be_read_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "timeline.json").write_text(content, encoding="utf-8")
    assert read_timeline(tmp_path / "timeline.json") is None
