"""Resume: {run to N} equals {run to k, stop, resume to N} bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from tests.laws import problems
from tests.laws.problems import Problem, Window, differences, make_step, poisoned, saved, unlabelled

ROWS = (5, 5, 5, 5, 3)


CASES = problems.cases(problems.singles_and_together(), problems.suitable, problems.with_batch_norm)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
def test_a_resumed_run_is_the_uninterrupted_one(
    problem: problems.Maker, techniques: tuple[Technique, ...]
) -> None:
    stopping_changes_nothing(problem(techniques), techniques, stops=[1, 2, 3, 4])


@pytest.mark.parametrize("techniques", problems.singles()[1:], ids=problems.name_of)
def test_a_state_of_other_techniques_is_refused_and_leaves_no_trace(
    techniques: tuple[Technique, ...],
) -> None:
    problem = problems.main(techniques)
    step = make_step(problem, techniques)
    plain = make_step(problem, (), model_seed=2)
    for window in problem.windows()[: 0 if problems.couples(techniques) else 1]:
        step(window), plain(window)
    before = saved(plain)
    if not step.seams.states and step.seams.make_optimizer is None:
        plain.load_state_dict(saved(step))  # nothing of the technique is in the state
        return
    with pytest.raises(SettingError, match="^(techniques|optimizer|model): "):
        plain.load_state_dict(saved(step))
    assert not differences(before, saved(plain))


@pytest.mark.parametrize("change", ["drop", "widen"])
def test_a_state_of_another_model_is_refused_and_leaves_no_trace(change: str) -> None:
    step = make_step(problems.reader(()), (), model_seed=2)
    state = saved(make_step(problems.reader(()), ()))
    bias = state["parameters"].pop("mix.bias")
    if change == "widen":
        state["parameters"]["mix.bias"] = bias[:1]  # would be broadcast
    before = saved(step)
    with pytest.raises(SettingError, match=r"model: .*mix\.bias"):
        step.load_state_dict(state)
    assert not differences(before, saved(step))


def stopping_changes_nothing(problem: Problem, techniques: tuple[Technique, ...], stops: list[int]) -> None:
    windows = with_a_skipped_one(problem)
    unbroken = fresh(problem, techniques, model_seed=1)
    states, results = [], []
    for window in windows:
        results.append(summary(unbroken(window)))
        states.append(saved(unbroken))
    assert [result["applied"] for result in results] == [True, False, True, True, True]

    for stop in stops:
        # another initialisation, so that what is not restored shows
        resumed = fresh(problem, techniques, model_seed=2)
        torch.manual_seed(stop)
        resumed.load_state_dict(states[stop - 1])
        assert not differences(states[stop - 1], saved(resumed))
        for place in range(stop, len(windows)):
            assert summary(resumed(windows[place])) == results[place], f"window {place}, stopped after {stop}"
            assert not differences(states[place], saved(resumed)), f"window {place}, stopped after {stop}"


def with_a_skipped_one(problem: Problem) -> list[Window]:
    windows = problem.windows(torch.float32, ROWS)
    windows[1] = poisoned(windows[1], float("nan")) if problem.floats else unlabelled(windows[1])
    return windows


def fresh(problem: Problem, techniques: tuple[Technique, ...], model_seed: int) -> problems.Step:
    return make_step(
        problem, techniques, micro_batch=3, dtype=torch.float32, dropout=0.2, model_seed=model_seed
    )


def summary(result: Any) -> dict[str, Any]:
    """What a step returned, in a form in which NaN equals NaN."""
    return {
        "loss": repr(result.loss),
        "weight": result.weight,
        "applied": result.applied,
        "learning_rate": result.learning_rate,
        "metrics": {name: float(value) for name, value in result.metrics.items()},
    }
