"""Dry run: the step of any techniques runs on tensors without numbers, as the planner does it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from snugfit.core.batch import Batch
from snugfit.core.technique import Technique
from snugfit.core.tree import map_tree
from snugfit.step.step import Step
from tests.laws import problems
from tests.laws.problems import Problem, make_step


@pytest.mark.parametrize("techniques", problems.singles_and_slowly_together(), ids=problems.name_of)
def test_a_step_asks_no_tensor_for_its_value_but_through_read(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    window = problem.windows(torch.float32)[0]
    with FakeTensorMode() as mode:
        assert fake_step(problem, techniques)(fake_batch(window, mode)).applied


@pytest.mark.slow
@pytest.mark.parametrize("techniques", problems.singles(), ids=problems.name_of)
def test_a_dry_run_leaves_nothing_fake_behind_for_a_real_run(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    windows = problem.windows(torch.float32)
    for _ in range(2):
        with FakeTensorMode() as mode:
            fake_step(problem, techniques)(fake_batch(windows[0], mode))
        assert make_step(problem, techniques, micro_batch=3, dtype=torch.float32)(windows[0]).applied


def test_a_fake_tensor_refuses_to_give_its_value() -> None:
    """What the tests above rest on."""
    with FakeTensorMode(), pytest.raises(DataDependentOutputException):
        torch.ones(()).item()


def fake_step(problem: Problem, techniques: tuple[Technique, ...]) -> Step:
    model = problem.make_model(0.1)
    return Step(
        model,
        problems.plain_optimizer(model, techniques, momentum=0.9),
        problem.loss,
        techniques,
        micro_batch=4,  # of seven rows: a pass that finds no gradients, and one that adds to them
        total_updates=problems.TOTAL_UPDATES,
    )


def fake_batch(window: Any, mode: FakeTensorMode) -> Batch:
    """Lengths are read on the host, before anything is fake."""
    with torch._subclasses.fake_tensor.unset_fake_temporarily():
        batch = Batch.of(window)
        return replace(batch, data=map_tree(mode.from_tensor, batch.data))
