from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.madgrad import MADGRAD, empty_sums, madgrad_
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_or_epsilon_is_refused(value: float) -> None:
    refuses(MADGRAD, learning_rate=value)
    refuses(MADGRAD, epsilon=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_an_impossible_momentum_is_refused(value: float) -> None:
    refuses(MADGRAD, momentum=value)


def test_a_negative_decay_is_refused() -> None:
    refuses(MADGRAD, weight_decay=-0.1)


def made(settings: MADGRAD, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def test_the_settings_reach_the_optimizer_and_vectors_are_not_decayed() -> None:
    settings = MADGRAD(learning_rate=0.3, momentum=0.5, epsilon=0.1, weight_decay=0.2)
    decay, no_decay = made(settings, nn.Linear(2, 2)).param_groups
    for group, weight_decay in ((decay, 0.2), (no_decay, 0.0)):
        assert (group["lr"], group["momentum"], group["eps"]) == (0.3, 0.5, 0.1)
        assert group["weight_decay"] == weight_decay


def test_it_goes_from_the_start_along_the_sum_over_the_cube_root_of_the_squares() -> None:
    parameter = torch.tensor([5.0], dtype=torch.float64)
    sums = empty_sums(parameter)
    for gradient, weight in ((3.0, 1.0), (-1.0, 2.0)):
        madgrad_(parameter, torch.full_like(parameter, gradient), sums, weight, momentum=0.0, epsilon=0.5)
    # sums: 3·1 − 1·2 = 1 and 9·1 + 1·2 = 11
    assert float(parameter) == pytest.approx(5.0 - 1.0 / (11 ** (1 / 3) + 0.5), rel=1e-12)


def test_momentum_goes_part_of_the_way() -> None:
    parameters = [torch.tensor([1.0]), torch.tensor([1.0])]
    for parameter, momentum in zip(parameters, (0.0, 0.75), strict=True):
        madgrad_(parameter, torch.tensor([2.0]), empty_sums(parameter), weight=0.1, momentum=momentum)
    assert float(1 - parameters[1]) == pytest.approx(float(1 - parameters[0]) / 4, rel=1e-5)


def test_later_gradients_weigh_more() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = made(MADGRAD(learning_rate=0.1), model)
    gradient = torch.tensor([[1.0, -2.0]])
    for _ in range(3):
        model.weight.grad = gradient.clone()
        optimizer.step()
    expected = 0.1 * (1 + 2**0.5 + 3**0.5) * gradient
    torch.testing.assert_close(optimizer.state[model.weight]["sums"]["gradients"], expected)


def test_decay_is_added_to_what_is_summed_and_not_to_the_gradient_itself() -> None:
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, 4.0)
    model.weight.grad = torch.ones(2, 2)
    optimizer = made(MADGRAD(learning_rate=1.0, weight_decay=0.5), model)
    optimizer.step()
    assert torch.equal(model.weight.grad, torch.ones(2, 2))
    assert torch.equal(optimizer.state[model.weight]["sums"]["gradients"], torch.full((2, 2), 3.0))


def test_a_rate_of_zero_stays_at_the_start() -> None:
    model = nn.Linear(2, 2)
    before = deepcopy(model)
    optimizer = made(MADGRAD(), model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer)
    assert same(model, before)


def test_a_parameter_without_a_gradient_is_left_alone_and_starts_at_its_own_first_update() -> None:
    model = nn.Linear(2, 2)
    optimizer = made(MADGRAD(), model)
    before = model.bias.detach().clone()
    for _ in range(3):
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
    assert torch.equal(model.bias, before)
    with torch.no_grad():
        model.bias.fill_(7.0)
    model.bias.grad = torch.ones(2)
    optimizer.step()
    assert [optimizer.state[parameter]["updates"] for parameter in (model.weight, model.bias)] == [4, 1]
    assert optimizer.state[model.bias]["sums"]["start"].tolist() == [7.0, 7.0]


def test_a_loaded_state_goes_on_where_it_was() -> None:
    model = nn.Linear(3, 2)
    optimizer = made(MADGRAD(learning_rate=0.1), model)
    train(model, optimizer)
    other = deepcopy(model)
    resumed = made(MADGRAD(learning_rate=0.9), other)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for parameters, each in ((model, optimizer), (other, resumed)):
        train(parameters, each)
    assert same(model, other)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=source)
        optimizer.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))
