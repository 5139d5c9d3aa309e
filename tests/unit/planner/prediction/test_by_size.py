"""Predictions for every micro-batch, from runs of few."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from snugfit.core.job import Plan
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.prediction.predict import Planner
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.placement.recompute import Recompute
from tests.unit.planner.dry import subject_of

ROWS = 32
SIZES = (16, 8, 4, 2, 1)


@pytest.fixture(scope="module")
def planner() -> Planner:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(10)), nn.Linear(64, 5))
    data = torch.randn(ROWS, 64), torch.zeros(ROWS, dtype=torch.long)
    cpu = replace(uncalibrated("cpu"), rates={})
    return Planner(subject_of(model, data, (AdamW(),)), Machine(cpu, cpu, baseline=0))


@pytest.mark.parametrize("techniques", [(AdamW(),), (AdamW(), Recompute())])
def test_between_two_sizes_a_plan_needs_what_a_run_of_it_tells(planner: Planner, techniques) -> None:
    sized = planner.by_size(Plan(), techniques)
    sized.traced(SIZES[0])
    sized.traced(SIZES[-1])
    for size in SIZES[1:-1]:
        found = sized.between(size)
        run = planner.predict(Plan(micro_batch=size), techniques, rough=True)
        assert found is not None
        assert run.peak_bytes <= found.peak_bytes <= 1.02 * run.peak_bytes, "a line above what bends upwards"
        assert found.seconds_per_update == pytest.approx(run.seconds_per_update, rel=0.05)
        assert found.flops_per_update == run.flops_per_update


def test_a_size_that_was_run_is_told_as_it_is_and_run_once(planner: Planner) -> None:
    sized = planner.by_size(Plan(), (AdamW(),))
    runs: list[int] = []
    whole = sized.run
    sized.run = lambda size: (runs.append(size), whole(size))[1]
    assert sized.traced(8) == sized.traced(8) == sized.between(8)
    assert runs == [8]


def test_beyond_what_was_run_nothing_is_told(planner: Planner) -> None:
    """A window that is taken whole meets no gradients of passes before it."""
    sized = planner.by_size(Plan(), (AdamW(),))
    sized.traced(ROWS)
    sized.traced(4)
    assert sized.between(8) is None and sized.between(2) is None
