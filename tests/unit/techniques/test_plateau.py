from __future__ import annotations

import math
import random

import pytest
import torch

from snugfit.core.technique import Seams
from snugfit.errors import SettingError
from snugfit.techniques.learning.plateau import Plateau
from tests.unit.techniques.settings import context, parameter, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(Plateau, factor=1.0)
    refuses(Plateau, factor=0.0)
    refuses(Plateau, patience=-1)
    refuses(Plateau, threshold=-1.0)
    refuses(Plateau, cooldown=-1)
    refuses(Plateau, minimum=1.5)
    refuses(Plateau, warmup=1.5)


def test_the_direction_of_a_metric_is_known_or_has_to_be_given() -> None:
    assert Plateau(metric="accuracy").metrics() == ("accuracy",)
    assert Plateau(metric="min:mine").metrics() == ("mine",)
    with pytest.raises(
        SettingError, match=r"^plateau\.metric: .* 'mine' is better is not known. Write 'max:mine'"
    ):
        Plateau(metric="mine")


def factor(seams: Seams, updates: int = 100) -> float:
    assert seams.schedule is not None
    return seams.schedule(updates, {}).factor


def evaluated(seams: Seams, **metrics: float) -> None:
    assert seams.evaluated is not None
    seams.evaluated(metrics)


@pytest.mark.parametrize("higher", [False, True])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("patience", "cooldown", "minimum"), [(0, 0, 0.0), (2, 0, 0.05), (1, 3, 0.0)])
def test_a_run_of_evaluations_lowers_the_rate_as_torch_does(
    higher: bool, relative: bool, patience: int, cooldown: int, minimum: float
) -> None:
    optimizer = torch.optim.SGD([parameter([0.0])], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode="max" if higher else "min",
        factor=0.5,
        patience=patience,
        threshold=0.05,
        threshold_mode="rel" if relative else "abs",
        cooldown=cooldown,
        min_lr=minimum,
        eps=0.0,
    )
    name = "accuracy" if higher else "loss"
    seams = Plateau(name, 0.5, patience, 0.05, relative, cooldown, minimum).seams(context())
    source, reductions = random.Random(0), set()
    for number in range(60):
        value = 1 / (1 + 0.2 * number) + 0.1 * source.random()
        value = math.nan if number % 17 == 16 else 1 - value if higher else value
        scheduler.step(value)
        evaluated(seams, **{name: value, "other": 0.0})
        assert factor(seams) == optimizer.param_groups[0]["lr"], f"evaluation {number}"
        reductions.add(factor(seams))
    assert len(reductions) > 3


def test_it_warms_up_first() -> None:
    seams = Plateau(warmup=4, patience=0).seams(context())
    assert [factor(seams, updates) for updates in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_resumed_one_goes_on_counting() -> None:
    settings = Plateau(patience=2, factor=0.5, cooldown=1)
    whole, first, second = (settings.seams(context()) for _ in range(3))
    values = [1.0, 0.9, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.95]
    for number, value in enumerate(values):
        evaluated(whole, loss=value)
        evaluated(first if number < 4 else second, loss=value)
        if number == 3:
            assert first.state is not None and second.state is not None
            second.state.load_state_dict(first.state.state_dict())
        assert factor(first if number < 4 else second) == factor(whole)
    assert factor(whole) == 0.25


def test_a_metric_that_was_not_evaluated_is_named() -> None:
    with pytest.raises(SettingError, match=r"plateau\.metric: 'accuracy' was not evaluated\. Known: loss\."):
        evaluated(Plateau(metric="accuracy").seams(context()), loss=1.0)
