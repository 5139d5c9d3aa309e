from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from snugfit.core.card import Sharing
from snugfit.core.parameters import parameter_groups
from snugfit.core.selection import check, check_shared
from snugfit.errors import PlanConflict, SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.ranger21 import Ranger21, centralised, positive_negative
from snugfit.techniques.placement.optimizer_in_backward import OptimizerInBackward
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("epsilon", -1.0),
        ("betas", (0.9, 1.0)),
        ("betas", (0.9,)),
        ("negative_momentum", -0.1),
        ("weight_decay", -1.0),
        ("norm_loss", float("nan")),
        ("warmup", 1.5),
        ("warmdown", -0.1),
    ],
)
def test_an_impossible_setting_is_refused(name: str, value: object) -> None:
    refuses(Ranger21, **{name: value})


def test_an_outer_schedule_is_refused_by_name() -> None:
    with pytest.raises(PlanConflict, match=r"ranger21.*cosine|cosine.*ranger21"):
        check([Ranger21(), Cosine()])


def test_what_steps_weights_one_by_one_or_has_parts_of_them_is_refused() -> None:
    with pytest.raises(PlanConflict, match="all weights together"):
        check([Ranger21(), OptimizerInBackward()])
    with pytest.raises(PlanConflict, match="all weights together"):
        check_shared([Ranger21()], Sharing.SHARDS)
    check_shared([Ranger21()], Sharing.COPIES)


def test_it_needs_the_length_of_the_run() -> None:
    with pytest.raises(SettingError, match="ranger21: needs the number of updates"):
        Step(nn.Linear(2, 2), Ranger21())


def test_the_rate_rises_stays_and_falls_to_the_last_update_which_still_moves() -> None:
    factors = [Ranger21(warmup=4, warmdown=5).factor(updates, total=20) for updates in range(20)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[14:] == [1.0, 1.0, 0.8, 0.6, 0.4, 0.2]


def test_a_short_memory_of_squares_needs_less_warm_up() -> None:
    settings = Ranger21(betas=(0.9, 0.8), warmup=100)
    assert settings.factor(4, total=1000) == pytest.approx(0.5)


def made(settings: Ranger21, model: nn.Module) -> torch.optim.Optimizer:
    make = settings.seams(context(model, total_updates=100)).optimizer
    assert make is not None
    return make(parameter_groups(model))


def test_gradients_of_kernels_lose_the_mean_of_each_unit_and_vectors_keep_theirs() -> None:
    kernel = torch.arange(16.0).reshape(2, 2, 2, 2)
    assert torch.equal(centralised(kernel).flatten(1).mean(dim=1), torch.zeros(2))
    assert torch.equal(centralised(torch.tensor([1.0, 3.0])), torch.tensor([1.0, 3.0]))


def test_the_older_average_is_taken_away_and_the_noise_stays_that_of_one() -> None:
    torch.manual_seed(0)
    newest, before = torch.randn(2, 100_000)
    assert float(positive_negative(newest, before, strength=1.0).std()) == pytest.approx(1.0, rel=0.01)
    assert torch.equal(positive_negative(newest, newest, strength=0.0), newest)


def test_every_other_gradient_goes_into_one_average() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = made(Ranger21(betas=(0.5, 0.9)), model)
    for gradient in (1.0, 10.0, 100.0):
        model.weight.grad = torch.tensor([[gradient, -gradient]])
        optimizer.step()
    state = optimizer.state[model.weight]
    assert state["updates"] == 3
    assert state["newest"].tolist() == [[75.1875, -75.1875]]  # 0.25 · 0.75 · 1 + 0.75 · 100
    assert state["before"].tolist() == [[7.5, -7.5]]


def test_without_any_gradient_nothing_is_decayed() -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    model.weight.grad = torch.zeros(1, 2)
    made(Ranger21(weight_decay=0.5, norm_loss=0.0), model).step()
    assert torch.equal(model.weight, before)


def test_units_of_matrices_are_drawn_to_length_one_and_vectors_are_not() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        model.bias.fill_(7.0)
    optimizer = made(Ranger21(learning_rate=0.1, norm_loss=0.5, weight_decay=0.0), model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    lengths = model.weight.detach().norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([5.0 - 0.1 * 4.0, 0.5 + 0.1 * 0.5]), rtol=1e-5, atol=0)
    assert model.bias.tolist() == [7.0, 7.0]


def test_the_decay_is_slow_where_gradients_are_large() -> None:
    sizes = []
    for gradient in (1.0, 100.0):
        model = nn.Linear(2, 1, bias=False)
        nn.init.constant_(model.weight, 1.0)
        optimizer = made(
            Ranger21(learning_rate=0.1, betas=(0.0, 0.9), weight_decay=0.1, norm_loss=0.0), model
        )
        model.weight.grad = torch.tensor([[gradient, -gradient]])
        optimizer.step()
        sizes.append(1 - float(model.weight.detach().mean()))
    assert sizes[0] == pytest.approx(100 * sizes[1], rel=1e-3)
    assert sizes[0] == pytest.approx(0.1 * 0.1, rel=1e-3)


def test_the_gradient_itself_is_left_as_it_is() -> None:
    model = nn.Linear(2, 2)
    optimizer = made(Ranger21(), model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(
        torch.equal(each.grad, torch.ones_like(each)) for each in model.parameters() if each.grad is not None
    )


def test_a_parameter_without_a_gradient_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    optimizer = made(Ranger21(learning_rate=0.1, norm_loss=1.0), model)
    before = model.weight.detach().clone()
    model.bias.grad = torch.ones(2)
    optimizer.step()
    assert torch.equal(model.weight, before)
    assert model.weight not in optimizer.state


def test_a_loaded_state_goes_on_where_it_was() -> None:
    model = nn.Linear(3, 2)
    optimizer = made(Ranger21(learning_rate=0.1), model)
    train(model, optimizer)
    other = deepcopy(model)
    resumed = made(Ranger21(learning_rate=0.1), other)
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    for parameters, each in ((model, optimizer), (other, resumed)):
        train(parameters, each)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), other.parameters(), strict=True))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    source = torch.Generator().manual_seed(0)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=source)
        optimizer.step()
