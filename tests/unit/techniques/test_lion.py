from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.lion import Lion, lion_
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_is_refused(value: float) -> None:
    refuses(Lion, learning_rate=value)


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, 0.99, 0.999)])
def test_impossible_betas_are_refused(betas: tuple[float, ...]) -> None:
    refuses(Lion, betas=betas)


def test_a_negative_decay_or_epsilon_is_refused() -> None:
    refuses(Lion, weight_decay=-0.1)
    refuses(Lion, epsilon=-1e-9)


def made(settings: Lion, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed() -> None:
    settings = Lion(learning_rate=0.3, betas=(0.5, 0.6), epsilon=0.1, weight_decay=0.2)
    decay, no_decay = made(settings, nn.Linear(2, 2)).param_groups
    for group, weight_decay in ((decay, 0.2), (no_decay, 0.0)):
        assert (group["lr"], group["betas"], group["eps"]) == (0.3, (0.5, 0.6), 0.1)
        assert group["weight_decay"] == weight_decay


def test_a_step_has_one_size_however_long_the_gradient() -> None:
    weight, moment = torch.zeros(4), torch.zeros(4)
    lion_([weight], [torch.tensor([1e-30, -1e30, 0.0, 2.0])], [moment], learning_rate=0.5)
    assert weight.tolist() == [-0.5, 0.5, 0.0, -0.5]


def test_the_direction_is_of_the_moment_before_it_moves() -> None:
    weight, moment = torch.zeros(1), torch.tensor([-1.0])
    gradient = torch.tensor([2.0])
    lion_([weight], [gradient], [moment], learning_rate=1.0, betas=(0.5, 0.75))
    assert weight.tolist() == [-1.0], "0.5 · −1 + 0.5 · 2 is above 0"
    assert moment.tolist() == [-0.25]


def test_decay_is_times_the_rate_and_not_in_the_moment() -> None:
    weight, moment = torch.tensor([2.0]), torch.zeros(1)
    lion_([weight], [torch.zeros(1)], [moment], learning_rate=0.5, weight_decay=0.5)
    assert (weight.tolist(), moment.tolist()) == ([1.5], [0.0])


def test_rounding_alone_makes_a_whole_step_only_without_epsilon() -> None:
    steps = []
    for epsilon in (0.0, 1e-6):
        weight = torch.zeros(2)
        lion_([weight], [torch.tensor([1e-12, 1.0])], [torch.zeros(2)], learning_rate=1.0, epsilon=epsilon)
        steps.append(weight.tolist())
    assert steps[0] == [-1.0, -1.0]
    assert steps[1] == [pytest.approx(-1e-7), -1.0]


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    before = model.bias.detach().clone()
    optimizer = made(Lion(), model)
    model.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(model.bias, before)
    assert list(optimizer.state) == [model.weight]


def test_a_loaded_state_goes_on_where_it_was() -> None:
    model = nn.Linear(2, 2)
    optimizer = made(Lion(learning_rate=0.1), model)
    train(model, optimizer, updates=3)
    other = deepcopy(model)
    resumed = made(Lion(learning_rate=0.9), other)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for parameters, each in ((model, optimizer), (other, resumed)):
        train(parameters, each, updates=3)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(updates):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=source)
        optimizer.step()


def test_a_closure_is_called_with_gradients_on() -> None:
    model = nn.Linear(2, 1)
    optimizer = made(Lion(), model)
    loss = optimizer.step(lambda: model(torch.ones(1, 2)).sum())
    assert loss is not None and loss.requires_grad
