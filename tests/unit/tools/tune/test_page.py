"""The page of a search."""

from __future__ import annotations

import math
from typing import Any

from snugfit.tools.tune.page import render_tune_page
from snugfit.tools.tune.result import Choices, Range, Space, Trial, Tuned

SPACE: Space = {
    "optimizer.adamw.learning_rate": Range(1e-5, 1e-2, log=True),
    "train.global_batch": Range(8, 64),
    "techniques.ema.decay": Choices((0.9, 0.99)),
}


def trial(
    number: int, value: float | None, state: Any = "finished", rate: float = 1e-3, **given: Any
) -> Trial:
    values = {"optimizer.adamw.learning_rate": rate, "train.global_batch": 36, "techniques.ema.decay": 0.99}
    return Trial(number, state, values, value, run_dir=f"/runs/trial-{number}/id{number}", **given)


def found(*trials: Trial, planned: int = 4, **given: Any) -> Tuned:
    about = {"name": "films <b>", "planned": planned, "folder": "/runs/tune", **given}
    return Tuned("accuracy", True, SPACE, trials, **about)


def test_the_best_and_every_trial_are_shown():
    page = render_tune_page(
        found(
            trial(1, 0.8),
            trial(2, 0.9, rate=1e-5),
            trial(3, 0.5, "pruned", reason="behind the others"),
            trial(4, None, "failed", reason="out of memory"),
        )
    )
    assert "4 of 4 trials" in page and "films &lt;b&gt;" in page
    assert "<dd>0.9<small> trial 2</small></dd>" in page
    assert "2 finished" in page and "1 pruned" in page and "1 failed" in page
    assert "behind the others" in page and "out of memory" in page
    assert all(f"id{number}" in page for number in (1, 2, 3, 4))


def test_a_rate_lies_by_its_factor_a_choice_and_a_number_by_their_places():
    page = render_tune_page(found(trial(1, 0.8, rate=10**-3.5), trial(2, 0.9, rate=1e-5)))
    by_rate = page.split("<h3>optimizer.adamw.learning_rate</h3>")[1].split("</figure>")[0]
    # half of the way from 1e-5 to 1e-2 in factors
    assert 'cx="50.00%"' in by_rate and 'cx="0.00%"' in by_rate and "1e−5" in by_rate
    by_batch = page.split("<h3>train.global_batch</h3>")[1].split("</figure>")[0]
    assert by_batch.count('cx="50.00%"') >= 2, "36 is half of the way from 8 to 64"
    by_decay = page.split("<h3>techniques.ema.decay</h3>")[1].split("</figure>")[0]
    assert 'cx="75.00%"' in by_decay and ">0.9<" in by_decay and ">0.99<" in by_decay


def test_a_trial_without_a_value_lies_at_the_worst_edge():
    higher = render_tune_page(found(trial(1, 0.8), trial(2, 0.9), trial(3, None, "failed")))
    dot = higher.split("trial 3, failed: no value")[0].rpartition("<circle")[2]
    lowest = higher.split("trial 1, finished: 0.8<")[0].rpartition("<circle")[2]
    height = dot.split('cy="')[1].split("%")[0]
    assert height == lowest.split('cy="')[1].split("%")[0] and float(height) > 50


def test_more_trials_than_other_charts_have_dots_are_all_drawn():
    page = render_tune_page(found(*(trial(number, number / 100) for number in range(1, 91)), planned=90))
    over_trials = page.split("<h3>accuracy</h3>")[1].split("</figure>")[0]
    assert over_trials.count('class="dot tone1"') == 90


def test_the_best_so_far_jumps_where_a_trial_is_better():
    page = render_tune_page(found(trial(1, 0.5), trial(2, 0.5), trial(3, 1.0), trial(4, 0.75)))
    curve = page.split('class="curve tone2" d="M')[1].split('"')[0]
    places = [tuple(map(int, place.split())) for place in curve.split("L")]
    assert [x for x, _ in places] == [222, 444, 667, 667, 889], "of 4.5 trials"
    heights = [y for _, y in places]
    assert heights[0] == heights[1] == heights[2] > heights[3] == heights[4]


def test_nothing_yet_a_stop_and_numbers_that_are_none_are_said():
    page = render_tune_page(found(trial(1, 0.8), stop_reason="received SIGTERM"))
    assert "1 of 4 trials" in page and "Not finished: received SIGTERM" in page
    assert "No trial is finished yet" in render_tune_page(found())
    failed = [trial(1, None, "failed", evaluations=(math.nan,)), trial(2, None, "failed")]
    assert "2 failed" in render_tune_page(found(*failed))
