from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.technique import Rate, Technique
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.adafactor import Adafactor
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.one_cycle import OneCycle
from snugfit.techniques.learning.rmsprop import RMSprop
from snugfit.techniques.learning.sgd import SGD
from tests.unit.techniques.settings import parameter, refuses

BATCH = (torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0]))


def test_impossible_settings_are_refused() -> None:
    refuses(OneCycle, rise=0.0)
    refuses(OneCycle, rise=1.0)
    refuses(OneCycle, div_factor=0.5)
    refuses(OneCycle, final_div_factor=0.0)
    refuses(OneCycle, anneal="exp")
    refuses(OneCycle, momentum=(0.9, 0.8))
    refuses(OneCycle, momentum=(0.9, 1.0))
    refuses(OneCycle, momentum=(0.0, 0.9))
    with pytest.raises(SettingError, match=r"one_cycle\.rise: must be between 0 and 0\.5"):
        OneCycle(rise=0.6, three_phase=True)


@pytest.mark.parametrize("three_phase", [False, True])
@pytest.mark.parametrize("anneal", ["cos", "linear"])
@pytest.mark.parametrize(("rise", "total"), [(0.3, 25), (0.25, 8), (0.45, 200), (0.1, 30)])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_rate_and_momentum_are_those_of_torch_over_a_whole_run(
    kind: str, rise: float, total: int, anneal: str, three_phase: bool
) -> None:
    weights = [parameter([0.0])]
    optimizer: Any = (
        torch.optim.SGD(weights, lr=1.0, momentum=0.9) if kind == "sgd" else torch.optim.Adam(weights)
    )
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=1.0,
        total_steps=total,
        pct_start=rise,
        anneal_strategy=anneal,
        div_factor=10.0,
        final_div_factor=100.0,
        base_momentum=0.8,
        max_momentum=0.9,
        three_phase=three_phase,
    )
    schedule = OneCycle(rise, 10.0, 100.0, anneal, (0.8, 0.9), three_phase)  # type: ignore[arg-type]
    for update in range(total):
        group = optimizer.param_groups[0]
        momentum = group["momentum"] if kind == "sgd" else group["betas"][0]
        assert schedule.rate(update, total) == pytest.approx(Rate(group["lr"], momentum), abs=1e-12)
        optimizer.step()
        if update < total - 1:
            scheduler.step()


def test_the_step_sets_the_momentum_of_sgd_and_the_first_beta_of_adam() -> None:
    schedule = OneCycle(rise=0.5, anneal="linear", momentum=(0.5, 0.9))
    for optimizer in (SGD(momentum=0.3), AdamW(betas=(0.3, 0.99))):
        step = Step(nn.Linear(2, 2), optimizer, techniques=[schedule], total_updates=8)
        found = []
        for _ in range(8):
            step(BATCH)
            group = step.optimizer.param_groups[0]
            found.append(group["betas"][0] if "betas" in group else group["momentum"])
            assert group.get("betas", (0, 0.99))[1] == 0.99
        assert found == pytest.approx([schedule.rate(update, 8).momentum for update in range(8)])
        assert min(found) == pytest.approx(0.5)


def test_momentum_may_be_left_alone() -> None:
    step = Step(nn.Linear(2, 2), SGD(momentum=0.3), techniques=[OneCycle(momentum=None)], total_updates=4)
    step(BATCH)
    assert step.optimizer.param_groups[0]["momentum"] == 0.3


def test_an_optimizer_without_momentum_is_refused_before_training() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(SettingError, match="schedule: moves the momentum, and the optimizer has none"):
        Step(model, torch.optim.Adagrad(model.parameters()), techniques=[OneCycle()], total_updates=4)


def test_it_stays_at_its_end_behind_the_run() -> None:
    schedule = OneCycle()
    assert schedule.factor(50, total_updates=10) == schedule.factor(9, total_updates=10)
    assert schedule.factor(9, total_updates=10) == pytest.approx(1 / 25 / 1e4)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.0), RMSprop(), AdamW(betas=(0.0, 0.99))], ids=str)
def test_an_optimizer_with_a_momentum_of_zero_is_refused_before_training(optimizer: Technique) -> None:
    with pytest.raises(SettingError, match=r"has one of 0, which is none.+\(momentum: null\)"):
        Step(nn.Linear(2, 2), optimizer, techniques=[OneCycle()], total_updates=4)


def test_adafactor_goes_with_it_if_the_momentum_is_left_alone() -> None:
    with pytest.raises(SettingError, match="schedule: moves the momentum, and the optimizer has none"):
        Step(nn.Linear(2, 2), Adafactor(), techniques=[OneCycle()], total_updates=4)
    step = Step(nn.Linear(2, 2), Adafactor(), techniques=[OneCycle(momentum=None)], total_updates=4)
    assert all(step(BATCH).applied for _ in range(4))


def test_an_optimizer_given_to_a_second_step_has_its_first_momentum_still() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.3)
    for _ in range(2):
        Step(model, optimizer, techniques=[OneCycle()], total_updates=4)(BATCH)
    group = optimizer.param_groups[0]
    assert (group["initial_momentum"], group["momentum"]) == (0.3, OneCycle().rate(0, 4).momentum)
