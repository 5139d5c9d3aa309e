"""What was tried with a step leaves no trace in it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.core.technique import Technique
from snugfit.tools.preserved_step import preserved
from tests.laws import problems
from tests.laws.problems import differences, make_step, saved

CASES = [
    (),
    *(
        pytest.param(each, marks=pytest.mark.slow) for each in problems.singles_and_together()[1:]
    ),  # dozens, of a fifth of a second; what compiles is compiled anew
]


@pytest.mark.parametrize("techniques", CASES, ids=problems.name_of)
def test_training_within_leaves_no_trace(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    first, second, third = problem.windows()
    tried, never = (make_step(problem, techniques, micro_batch=4, dropout=0.3) for _ in range(2))
    for window in (first, second, third):  # before the first update, and in the middle of a run
        before = saved(tried)
        with preserved(tried):
            tried(third), tried(first)
        assert not differences(before, saved(tried))
        tried(window), never(window)
    assert not differences(saved(never), saved(tried))


class Counting(nn.Module):
    """Has a cache that a checkpoint leaves out, and draws from every generator there is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.dropout = nn.Dropout()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.seen += len(rows)
        torch.rand(1), np.random.rand(), random.random()
        return self.layer(self.dropout(rows))


def test_what_no_checkpoint_holds_is_given_back_too() -> None:
    model = Counting()
    step = sf.Step(model, sf.SGD(learning_rate=1.0), micro_batch=2)
    window = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    step(window)
    model.dropout.eval()
    gradients = [parameter.grad for parameter in model.parameters()]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with preserved(step):
        step.micro_batch = 1
        model.train()
        step(window)
        assert model.seen == 8 and step.progress.windows == 2
    assert model.seen == 4 and step.progress.windows == 1 and step.micro_batch == 2
    assert [parameter.grad for parameter in model.parameters()] == gradients
    assert model.training and not model.dropout.training
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


def test_an_error_within_gives_the_step_back_as_well() -> None:
    step = sf.Step(nn.Linear(2, 2), sf.AdamW(learning_rate=1.0))
    before = saved(step)

    def broken() -> None:
        with preserved(step):
            step((torch.ones(2, 2), torch.tensor([0, 1])))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    assert not differences(before, saved(step))
