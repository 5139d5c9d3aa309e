"""Resume: {run to N} equals {run to k, stop, resume to N} bit for bit."""

from __future__ import annotations

import pytest

from snugfit.core.technique import Technique
from snugfit.errors import SettingError
from snugfit.tools.certify import technique_laws
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved

CASES = problems.cases(problems.singles_and_together(), problems.suitable, problems.with_batch_norm)


@pytest.mark.parametrize(("problem", "techniques"), CASES, ids=problems.name_of)
def test_a_resumed_run_is_the_uninterrupted_one(
    problem: problems.Maker, techniques: tuple[Technique, ...]
) -> None:
    law = technique_laws.resume(problem(techniques), techniques)
    assert law.verdict == "held", (law.figures, law.worst, law.reasons)


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
