from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from snugfit.core.parameters import parameter_groups
from snugfit.techniques.learning.adafactor import (
    Adafactor,
    empty_moments,
    root_mean_square,
    second_moment_,
)
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize("name", ["learning_rate", "clip", "epsilon", "smallest"])
@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan")])
def test_an_impossible_size_is_refused(name: str, value: float) -> None:
    refuses(Adafactor, **{name: value})


@pytest.mark.parametrize("value", [0.0, -0.8, 1.1, float("nan")])
def test_an_impossible_power_is_refused(value: float) -> None:
    refuses(Adafactor, decay_power=value)


def test_a_negative_decay_is_refused() -> None:
    refuses(Adafactor, weight_decay=-0.1)


def made(settings: Adafactor, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def test_vectors_are_not_decayed() -> None:
    decay, no_decay = made(Adafactor(learning_rate=0.3, weight_decay=0.2), nn.Linear(2, 2)).param_groups
    assert (decay["lr"], decay["weight_decay"]) == (0.3, 0.2)
    assert (no_decay["lr"], no_decay["weight_decay"]) == (0.3, 0.0)


@pytest.mark.parametrize(
    ("shape", "numbers"), [((), 1), ((7,), 7), ((5, 3), 8), ((1, 9), 10), ((6, 5, 3, 3), 6 * 5 * 6)]
)
def test_the_state_is_one_number_a_row_and_a_column(shape: tuple[int, ...], numbers: int) -> None:
    assert sum(moment.numel() for moment in empty_moments(torch.zeros(shape)).values()) == numbers


def test_rows_and_columns_of_a_kernel_are_those_of_each_of_its_matrices() -> None:
    kernel = torch.randn(4, 3, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = second_moment_(empty_moments(kernel), kernel, 1.0)
    for place in range(4):
        for inner in range(3):
            matrix = kernel[place, inner]
            expected = second_moment_(empty_moments(matrix), matrix, 1.0)
            torch.testing.assert_close(whole[place, inner], expected, rtol=1e-12, atol=0)


def step_of(settings: Adafactor, weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """What the first update moves the only weight by."""
    model = nn.Linear(*weight.shape[::-1], bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(weight)
    model.weight.grad = gradient.double()
    made(settings, model).step()
    return model.weight.detach() - weight


def test_a_step_is_relative_to_the_size_of_the_weights_down_to_the_smallest() -> None:
    weight, gradient = torch.full((2, 3), 5.0), torch.full((2, 3), -1e4)
    settings = Adafactor(learning_rate=0.1, smallest=0.01)
    for scale, expected in ((1.0, 0.5), (1e-9, 0.001)):
        step = step_of(settings, scale * weight, gradient)
        torch.testing.assert_close(step, torch.full_like(step, expected))
    absolute = step_of(Adafactor(learning_rate=0.1, relative=False), weight, gradient)
    torch.testing.assert_close(absolute, torch.full_like(absolute, 0.1))


def test_a_step_is_clipped_as_a_whole() -> None:
    weight, gradient = torch.zeros(3, 3), torch.eye(3)  # the worst case of rows and columns
    free = step_of(Adafactor(learning_rate=0.1, relative=False, clip=100.0), weight, gradient)
    clipped = step_of(Adafactor(learning_rate=0.1, relative=False, clip=0.5), weight, gradient)
    assert root_mean_square(free) > 0.1
    assert float(root_mean_square(clipped)) == pytest.approx(0.05)
    torch.testing.assert_close(clipped / clipped.norm(), free / free.norm())


def test_a_gradient_of_zero_changes_nothing() -> None:
    assert not step_of(Adafactor(), torch.ones(2, 2), torch.zeros(2, 2)).any()


def test_a_parameter_without_a_gradient_is_left_alone_and_starts_at_its_own_first_update() -> None:
    model = nn.Linear(2, 2)
    before = model.bias.detach().clone()
    optimizer = made(Adafactor(), model)
    for _ in range(3):
        model.weight.grad = torch.ones(2, 2)
        optimizer.step()
    assert torch.equal(model.bias, before)
    assert list(optimizer.state) == [model.weight]
    model.bias.grad = torch.ones(2)
    optimizer.step()
    assert [optimizer.state[parameter]["updates"] for parameter in (model.weight, model.bias)] == [4, 1]


def test_a_loaded_state_goes_on_where_it_was() -> None:
    model = nn.Linear(3, 2)
    optimizer = made(Adafactor(learning_rate=0.1), model)
    train(model, optimizer)
    other = deepcopy(model)
    resumed = made(Adafactor(learning_rate=0.9), other)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for parameters, each in ((model, optimizer), (other, resumed)):
        train(parameters, each)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, updates: int = 3) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(updates):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=source)
        optimizer.step()


def test_it_agrees_with_torchs_where_that_has_no_schedule() -> None:
    """Torch's rate is `min(lr, 1/√t)`, and its epsilon far below these gradients."""
    model = nn.Linear(4, 3, dtype=torch.float64)
    other = deepcopy(model)
    ours = made(Adafactor(learning_rate=0.05, weight_decay=0.1), model)
    theirs = torch.optim.Adafactor(parameter_groups(other), lr=0.05, weight_decay=0.1)
    started = model.weight.detach().clone()
    for trained, optimizer in ((model, ours), (other, theirs)):
        source = torch.Generator().manual_seed(0)
        for _ in range(5):
            for parameter in trained.parameters():
                parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=source)
            optimizer.step()
    assert not torch.allclose(started, model.weight)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_weights_stay_finite_where_a_whole_row_and_a_whole_column_have_no_gradient() -> None:
    """Such as those of a unit that is never active, behind an input that is always 0."""
    model = nn.Linear(4, 3)
    started = model.weight.detach().clone()
    optimizer = made(Adafactor(), model)
    for _ in range(2):
        gradient = torch.ones(3, 4)
        gradient[1], gradient[:, 2] = 0, 0
        model.weight.grad, model.bias.grad = gradient, torch.zeros(3)
        optimizer.step()
    moved = model.weight != started
    assert model.weight.isfinite().all()
    assert torch.equal(moved, gradient != 0)
