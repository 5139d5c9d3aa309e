"""The trials of a search: how they are drawn, what survives a process, and what is pruned."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from snugfit.errors import MissingExtra, SettingError
from snugfit.tools.tune import study as home
from snugfit.tools.tune.result import Choices, Range, Space, Trial, Tuned, size
from snugfit.tools.tune.study import Study, check_pruner

SPACE: Space = {"rate": Range(1e-4, 1.0, log=True), "depth": Range(1, 9), "kind": Choices(("a", "b"))}


def opened(folder: Path, space: Space = SPACE, seed: int = 0, **given: Any) -> closing[Study]:
    settings = {"higher": False, "pruner": "none", **given}
    return closing(Study(folder, space, seed=seed, **settings))


def bowl(parameters: Any) -> float:
    """Least, 0, at a rate of 0.01, a depth of 5 and kind b."""
    return (
        (math.log10(parameters["rate"]) + 2) ** 2
        + ((parameters["depth"] - 5) / 4) ** 2
        + (parameters["kind"] == "a")
    )


def search(study: Study, count: int) -> list[Trial]:
    for _ in range(count):
        trial = study.next()
        study.end(value=bowl(trial.parameters))
    return list(study.trials())


@pytest.mark.slow
def test_draws_depend_on_the_seed_and_the_trials_before_and_on_nothing_else(tmp_path: Path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    with opened(tmp_path / "whole") as study:
        whole = search(study, 14)
    parts: list[Trial] = []
    for count in (3, 8, 2, 1):  # as if in so many processes: TPE begins to learn after its tenth trial
        with opened(tmp_path / "parts") as study:
            parts = search(study, count)
    assert [each.parameters for each in parts] == [each.parameters for each in whole]
    (tmp_path / "other").mkdir()
    with opened(tmp_path / "other", seed=1) as study:
        assert search(study, 1)[0].parameters != whole[0].parameters


@pytest.mark.slow
def test_the_first_trials_cover_a_range_whatever_the_seed(tmp_path: Path):
    space: Space = {"rate": Range(1e-4, 1e-2, log=True)}
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        with opened(tmp_path / str(seed), space, seed) as study:
            rates = [study.next().parameters["rate"] for _ in range(1)]
            study.end(value=1.0)
            for _ in range(4):
                rates.append(study.next().parameters["rate"])
                study.end(value=1.0)
        places = sorted((math.log10(rate) + 4) / 2 for rate in rates)
        assert abs(math.log10(rates[0] / rates[1])) / 2 > 0.3  # of the whole range
        assert min(after - before for before, after in itertools.pairwise(places)) > 0.05


@pytest.mark.slow
def test_the_minimum_of_a_bowl_is_found(tmp_path: Path):
    with opened(tmp_path) as study:
        trials = search(study, 40)
    best = min(trials, key=lambda each: bowl(each.parameters))
    assert best.parameters["kind"] == "b" and abs(best.parameters["depth"] - 5) <= 1
    assert 10**-2.5 < best.parameters["rate"] < 10**-1.5
    late = [bowl(each.parameters) for each in trials[20:]]
    assert sum(late) / 20 < sum(bowl(each.parameters) for each in trials[:10]) / 10, "it learns"


def test_a_trial_that_was_begun_is_given_again_with_its_values(tmp_path: Path):
    with opened(tmp_path) as study:
        begun = study.next()
        study.report(1, 0.5)
    with opened(tmp_path) as study:
        again = study.next()
        assert (again.number, again.state, again.parameters) == (1, "begun", begun.parameters)
        assert again.evaluations == (0.5,) and study.trials() == ()
        study.report(1, 0.7)
        study.end(value=0.4)
        assert study.trials()[0].evaluations == (0.5,), "what is reported again changes nothing"
        assert study.next().number == 2


def test_what_became_of_a_trial_is_kept(tmp_path: Path):
    with opened(tmp_path) as study:
        study.next()
        study.end(value=0.25, run_dir="/runs/a", seconds=2.0)
        study.next()
        study.end(reason="out of memory", run_dir="/runs/b")
        study.next()
        study.report(1, 0.75)
        study.report(2, 0.5)
        study.report(3, math.nan)
        study.tell_to_stop("it is behind")
    with opened(tmp_path) as study:
        assert study.next().reason == "it is behind"
        study.next()
        study.end()
        first, second, third = study.trials()
    assert (first.state, first.value, first.run_dir, first.seconds) == ("finished", 0.25, "/runs/a", 2.0)
    assert (second.state, second.value, second.reason) == ("failed", None, "out of memory")
    assert (third.state, third.value, third.reason) == ("pruned", 0.5, "it is behind")


@pytest.mark.parametrize("higher", [False, True])
def test_the_median_pruner_stops_the_worse_half_after_five_trials(tmp_path: Path, higher: bool):
    sign = -1 if higher else 1
    with opened(tmp_path, higher=higher, pruner="median") as study:
        for value in (1.0, 2.0, 3.0, 4.0, 5.0):
            study.next()
            assert not study.report(1, sign * value), "there is too little to compare with"
            study.end(value=sign * value)
        study.next()
        assert study.report(1, sign * 3.5), "the median is 3"
        study.tell_to_stop("behind")
        study.end()
        study.next()
        assert not study.report(1, sign * 2.5)


@pytest.mark.slow
def test_hyperband_keeps_the_best_and_stops_others(tmp_path: Path):
    with opened(tmp_path, pruner="hyperband") as study:
        stopped = []
        for number in range(12):
            study.next()
            value = 1.0 if number % 4 == 0 else 2.0 + number
            behind = any(study.report(step, value) for step in range(1, 5))
            if behind:
                study.tell_to_stop("behind")
            study.end(value=value)
            stopped.append(behind)
    assert not stopped[0] and not stopped[4] and not stopped[8] and sum(stopped) > 4


def test_no_combination_is_tried_twice_as_long_as_there_are_others(tmp_path: Path):
    space: Space = {"a": Choices((1, True, None)), "b": Range(1, 3)}
    assert size(space) == 9
    with opened(tmp_path, space) as study:
        for _ in range(9):
            study.next()
            study.end(value=0.0)
        drawn = [repr(each.parameters) for each in study.trials()]
    assert len(set(drawn)) == 9 and any("True" in each for each in drawn)


def test_values_come_back_as_they_were_given(tmp_path: Path):
    space: Space = {"list": Choices(([1, 2], {"sgd": {"momentum": 0.5}})), "depth": Range(4, 8, log=True)}
    with opened(tmp_path, space) as study:
        values = [study.next().parameters]
    assert values[0]["list"] in ([1, 2], {"sgd": {"momentum": 0.5}}) and isinstance(values[0]["depth"], int)


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(home, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"snugfit\[tune\]"):
        Study(tmp_path, SPACE, seed=0, higher=True, pruner="none")
    with pytest.raises(SettingError, match="Did you mean 'median'"):
        check_pruner("medin")


def trial(number: int, state: Any, value: float | None) -> Trial:
    return Trial(number, state, {"rate": 0.1 * number}, value)


def test_only_a_finished_trial_is_the_best_and_the_ranking_goes_by_the_direction():
    trials = (
        trial(1, "finished", 0.5),
        trial(2, "pruned", 0.9),
        trial(3, "finished", 0.7),
        trial(4, "failed", None),
    )
    space: Space = {"rate": Range(0.0, 1.0)}
    higher = Tuned("accuracy", True, space, trials, name="news", planned=4, folder="/runs")
    assert higher.best is not None and higher.best.number == 3
    assert [each.number for each in higher.ranked()] == [3, 1, 2, 4]
    assert higher.best_so_far() == [0.5, 0.5, 0.7, 0.7] and higher.finished
    assert higher.counts() == {"finished": 2, "pruned": 1, "failed": 1}
    lower = Tuned("loss", False, space, trials, name="news", planned=5, folder="/runs")
    assert lower.best is not None and lower.best.number == 1 and not lower.finished
    assert lower.best_so_far() == [0.5, 0.5, 0.5, 0.5]
