"""A real update that is recorded is the update that it would have been."""

from __future__ import annotations

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.planner.cost.records import Phase, Role
from snugfit.planner.trace.real_run import record_gradients, record_update
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved


def weighed(techniques: tuple[Technique, ...]) -> object:
    quick = not techniques
    return techniques if quick else pytest.param(techniques, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "techniques", [weighed(each) for each in problems.singles_and_together()], ids=problems.name_of
)
def test_recording_changes_nothing(techniques: tuple[Technique, ...]) -> None:
    if any(each.card.name == "compile" for each in techniques):
        pytest.skip("what is compiled has no operators to record")
    problem = problems.main(techniques)
    first, second, third = problem.windows()
    plain, recorded = (make_step(problem, techniques, micro_batch=4) for _ in range(2))
    random = torch.get_rng_state()
    for step in (plain, recorded):
        step(first)
    plain(second)
    found = record_update(recorded, Batch.of(second))
    record_gradients(recorded, Batch.of(third))
    assert not differences(saved(plain), saved(recorded))
    assert torch.equal(random, torch.get_rng_state())
    weights = sum({id(p): p.nbytes for p in recorded.parameters}.values())
    held = sum(s.bytes for s in found.trace.storages if s.role is Role.WEIGHTS and s.op < 0)
    assert held >= weights
    assert {op.place.phase for op in found.trace.ops} >= {Phase.FORWARD, Phase.BACKWARD}
