from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.job import Plan
from snugfit.errors import SettingError, Untraceable
from snugfit.kit.phases import phase
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.prediction.measure import measure
from snugfit.planner.trace.dry_run import dry_run
from snugfit.techniques import discover
from tests.unit.planner.dry import Middle, live, rows_of, subject_of

AdamW = discover()["adamw"]
CPU = Machine(find_device("cpu"), find_device("cpu"), "cpu")
RANDOM_STATE = torch.get_rng_state().nbytes  # which the step keeps, and no operator makes


def branches(x: Tensor) -> Tensor:
    return x.exp() if x.sum() > -1e9 else x


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 8, 32])
def test_a_measured_peak_is_the_dry_runs(micro_batch: int | None) -> None:
    plan = Plan(micro_batch=micro_batch)
    subject = subject_of(Middle(torch.exp, 32), rows_of(32, 64), [AdamW()])
    found = measure(subject, plan, subject.techniques, CPU)
    exact = max(live(dry_run(subject, plan, subject.techniques))) - RANDOM_STATE
    assert found.peak_bytes == pytest.approx(exact, rel=0.02)
    assert sum(found.peak_by_kind.values()) == found.peak_bytes
    assert found.peak_by_kind["weights"] == 4 * (32 * 32 + 32 + 32 * 4 + 4)
    assert found.confidence["memory"] == "measured with 1 and 2 examples, carried on"


@pytest.mark.slow
def test_what_cannot_be_traced_is_measured() -> None:
    subject = subject_of(Middle(branches), rows_of(), [AdamW()])
    with pytest.raises(Untraceable):
        dry_run(subject, Plan(), subject.techniques)
    found = measure(subject, Plan(), subject.techniques, CPU)
    alike = subject_of(Middle(torch.exp), rows_of(), [AdamW()])
    assert found.peak_bytes == pytest.approx(
        measure(alike, Plan(), alike.techniques, CPU).peak_bytes, rel=0.02
    )
    assert found.seconds_per_update > 0 and found.seconds_per_update < 60
    # products forward, those for both weights, and that for the rows between the layers
    assert found.flops_per_update == 2 * 6 * (96 + 96 + 32)


@pytest.mark.slow
def test_a_model_that_no_single_row_can_train_is_measured_with_two_and_four() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    subject = subject_of(model, rows_of(), [AdamW()])
    found = measure(subject, Plan(), subject.techniques, CPU)
    assert found.confidence["memory"] == "measured with 2 and 4 examples, carried on"


@pytest.mark.slow
def test_the_users_optimizer_model_and_randomness_are_as_before() -> None:
    model = Middle(torch.exp)
    optimizer = torch.optim.AdamW(model.parameters())
    subject = subject_of(model, rows_of(), (), optimizer=optimizer)
    kept, state = [each.clone() for each in model.parameters()], torch.get_rng_state()
    found = measure(subject, Plan(), (), CPU)
    weights = found.peak_by_kind["weights"]
    assert (
        found.peak_by_kind["optimizer"] == 2 * weights + 4 * 4
    )  # two moments, and a count for each of four tensors
    assert all(torch.equal(own, before) for own, before in zip(model.parameters(), kept, strict=True))
    assert torch.equal(torch.get_rng_state(), state) and not optimizer.state
    with phase("pass"):  # nobody watches
        pass


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    device = find_device("t4")
    subject = subject_of(Middle(torch.exp), rows_of(), [AdamW()])
    with pytest.raises(SettingError, match="this machine has no"):
        measure(subject, Plan(device="cuda"), subject.techniques, Machine(device, device, "cuda"))
