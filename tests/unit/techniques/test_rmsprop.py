from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.rmsprop import RMSprop
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_or_epsilon_is_refused(value: float) -> None:
    refuses(RMSprop, learning_rate=value)
    refuses(RMSprop, epsilon=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_an_impossible_decay_or_momentum_is_refused(value: float) -> None:
    refuses(RMSprop, decay=value)
    refuses(RMSprop, momentum=value)


def test_a_negative_weight_decay_is_refused() -> None:
    refuses(RMSprop, weight_decay=-0.1)


def made(settings: RMSprop, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed() -> None:
    settings = RMSprop(
        learning_rate=0.3, decay=0.5, epsilon=0.1, momentum=0.2, centered=True, weight_decay=0.4
    )
    decay, no_decay = made(settings, nn.Linear(2, 2)).param_groups
    for group, weight_decay in ((decay, 0.4), (no_decay, 0.0)):
        assert (group["lr"], group["alpha"], group["eps"]) == (0.3, 0.5, 0.1)
        assert (group["momentum"], group["centered"], group["weight_decay"]) == (0.2, True, weight_decay)


def test_the_first_update_is_the_rate_over_the_root_of_what_is_new() -> None:
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    optimizer = made(RMSprop(learning_rate=0.1, decay=0.75, epsilon=1e-12), model)
    model.weight.grad = torch.tensor([[1e-3, -1e3], [2.0, -5.0]])
    optimizer.step()
    expected = 0.2 * model.weight.grad.sign()  # 0.1 / sqrt(1 - 0.75), whatever the length of the gradient
    torch.testing.assert_close(before - model.weight, expected, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    before = model.bias.detach().clone()
    optimizer = made(RMSprop(weight_decay=0.5), model)
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(model.bias, before)
    assert list(optimizer.state) == [model.weight]
