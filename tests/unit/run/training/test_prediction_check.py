"""What a run says of its plan: like is compared with like, warm times and the memory of the whole run."""

from __future__ import annotations

import pytest
import torch

from snugfit.run.plans import planning
from snugfit.run.training import update_events
from snugfit.run.training.update_events import LOOKED_AT, WARM, PredictionCheck

CPU = torch.device("cpu")
PLAN = {"reserved_bytes": 7, "peak_bytes": 5, "seconds_per_update": 0.5}


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The peak of the process, which a test lets grow."""
    peak = [10]
    monkeypatch.setattr(update_events, "peak_memory_bytes", lambda device: peak[-1])
    return peak


def test_slow_first_updates_are_no_part_of_the_time_that_is_compared(memory: list[int]) -> None:
    found = PredictionCheck({"peak_bytes": 7, "seconds_per_update": 0.5}, CPU)
    told = [found.after_update(9.0) for _ in range(WARM)]
    told += [found.after_update(0.57) for _ in range(LOOKED_AT)]

    assert told == [None] * (WARM + LOOKED_AT - 1) + [{"seconds_per_update": 0.57}]
    assert found.at_end()["seconds_per_update"] == 0.57


def test_memory_is_compared_at_the_end_when_evaluations_and_checkpoints_have_taken_theirs(
    memory: list[int],
) -> None:
    found = PredictionCheck({"peak_bytes": 7, "seconds_per_update": 0.5}, CPU)
    for _ in range(WARM + LOOKED_AT - 1):
        found.after_update(0.5)
    early = found.after_update(0.5)
    memory.append(12)

    assert early is not None and "peak_bytes" not in early
    assert found.at_end()["peak_bytes"] == 12


@pytest.mark.parametrize(
    ("seconds", "median"), [([3.0], 3.0), ([3.0, 2.0, 1.0], 1.0), ([9.0] * 5 + [1.0, 2.0], 1.5)]
)
def test_a_run_too_short_to_be_warm_has_the_time_of_its_last_update(
    memory: list[int], seconds: list[float], median: float
) -> None:
    found = PredictionCheck({"seconds_per_update": 0.5}, CPU)
    for each in seconds:
        assert found.after_update(each) is None
    assert found.at_end() == {"seconds_per_update": median}


@pytest.mark.parametrize(
    ("device", "predicted"),
    [
        ("cpu", {"peak_bytes": 7, "seconds_per_update": 0.5}),  # resident
        ("cuda:1", {"peak_bytes": 5, "seconds_per_update": 0.5}),  # allocated
        ("mps", {"seconds_per_update": 0.5}),  # of which neither is told
    ],
)
def test_the_bytes_of_a_plan_are_compared_with_those_that_the_device_tells(
    device: str, predicted: dict[str, float]
) -> None:
    assert planning.figures_to_compare(PLAN, device) == predicted
    assert planning.figures_to_compare({"micro_batch": 4}, device) is None
