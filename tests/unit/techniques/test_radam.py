from __future__ import annotations

from dataclasses import asdict

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.radam import RAdam, rectification
from tests.oracles.radam import direction
from tests.unit.techniques.settings import context, parameter, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_or_epsilon_is_refused(value: float) -> None:
    refuses(RAdam, learning_rate=value)
    refuses(RAdam, epsilon=value)


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, 0.99, 0.999)])
def test_impossible_betas_are_refused(betas: tuple[float, ...]) -> None:
    refuses(RAdam, betas=betas)


def test_a_negative_decay_is_refused() -> None:
    refuses(RAdam, weight_decay=-0.1)


def made(settings: RAdam, groups: object) -> torch.optim.Optimizer:
    make = settings.seams(context()).optimizer
    assert make is not None
    return make(groups)  # type: ignore[arg-type]


def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed() -> None:
    settings = RAdam(learning_rate=0.3, betas=(0.5, 0.6), epsilon=0.1, weight_decay=0.2)
    decay, no_decay = made(settings, parameter_groups(nn.Linear(2, 2))).param_groups
    for group, weight_decay in ((decay, 0.2), (no_decay, 0.0)):
        assert (group["lr"], tuple(group["betas"]), group["eps"]) == (0.3, (0.5, 0.6), 0.1)
        assert (group["weight_decay"], group["decoupled_weight_decay"]) == (weight_decay, True)


def test_twenty_updates_cross_the_turn_as_the_papers_equations_do() -> None:
    """The oracle's run is too short to leave the first phase."""
    settings = RAdam(learning_rate=0.1, betas=(0.8, 0.9), weight_decay=0.0)
    weight = parameter([1.0, -2.0, 0.5])
    optimizer = made(settings, [{"params": [weight]}])
    expected = weight.detach().clone()
    m = v = torch.zeros_like(expected)
    phases = set()
    for t in range(1, 21):
        gradient = torch.sin(torch.arange(3, dtype=torch.float64) + t)
        weight.grad = gradient.clone()
        optimizer.step()
        (m, v), step = direction(gradient, m, v, t, asdict(settings))
        expected -= 0.1 * step
        phases.add(rectification(t, beta2=0.9) is None)
        torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-12)
    assert phases == {True, False}


def test_the_rectification_is_what_torch_makes_of_a_step() -> None:
    """With one gradient all along, both moments are exact, and a step is the rate or the rectified rate."""
    weight = parameter([0.0])
    optimizer = made(RAdam(learning_rate=1.0, epsilon=1e-12), [{"params": [weight], "weight_decay": 0.0}])
    for t in range(1, 12):
        before = float(weight.detach())
        weight.grad = torch.tensor([2.0], dtype=torch.float64)
        optimizer.step()
        factor = rectification(t, beta2=0.999)
        assert before - float(weight.detach()) == pytest.approx(2.0 if factor is None else factor, rel=1e-8)


def test_the_rectification_grows_from_little_to_one() -> None:
    factors = [factor for t in range(1, 5000) if (factor := rectification(t, beta2=0.999)) is not None]
    assert factors == sorted(factors)
    assert factors[0] < 0.05
    assert factors[-1] == pytest.approx(1.0, abs=0.03)


def test_the_second_beta_may_be_so_small_that_it_never_adapts() -> None:
    assert all(rectification(t, beta2=0.6) is None for t in range(1, 1000))
