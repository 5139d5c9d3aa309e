from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from snugfit.kit.optimizers.combined import CombinedOptimizer


def model_of(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def combined(model: nn.Linear, rate: float = 0.1) -> CombinedOptimizer:
    return CombinedOptimizer(
        [
            torch.optim.SGD([model.weight], lr=rate, momentum=0.9),
            torch.optim.AdamW([model.bias], lr=2 * rate, fused=True),
        ]
    )


def train(model: nn.Module, *optimizers: torch.optim.Optimizer, updates: int = 3, seed: int = 0) -> None:
    source = torch.Generator().manual_seed(seed)
    for _ in range(updates):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=source)
        for optimizer in optimizers:
            optimizer.step()


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))


def test_it_updates_as_its_optimizers_do_one_by_one() -> None:
    model, other = model_of(), model_of()
    train(model, combined(model))
    apart = [
        torch.optim.SGD([other.weight], lr=0.1, momentum=0.9),
        torch.optim.AdamW([other.bias], lr=0.2, fused=True),
    ]
    train(other, *apart)
    assert same(model, other)


def test_a_rate_that_is_set_in_a_group_is_used() -> None:
    model = model_of()
    optimizer = combined(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, updates=1)
    assert same(model, model_of())


def test_the_state_has_the_form_of_one_torch_optimizer() -> None:
    model = model_of()
    optimizer = combined(model)
    train(model, optimizer)
    state = optimizer.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0], [1]]
    assert [set(state["state"][place]) for place in range(2)] == [
        {"momentum_buffer"},
        {"step", "exp_avg", "exp_avg_sq"},
    ]


def test_a_loaded_state_goes_on_bit_for_bit_also_in_rates() -> None:
    model = model_of()
    optimizer = combined(model)
    train(model, optimizer)
    other = deepcopy(model)
    resumed = combined(other, rate=0.7)
    train(other, resumed, updates=1, seed=9)  # what it had is given up
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(deepcopy(optimizer.state_dict()))
    assert [group["lr"] for group in resumed.param_groups] == [0.1, 0.2]
    for parameters, each in ((model, optimizer), (other, resumed)):
        train(parameters, each, seed=1)
    assert same(model, other)
    for group in resumed.param_groups:  # the groups are shared after loading too
        group["lr"] = 0.0
    before = deepcopy(other)
    train(other, resumed, updates=1)
    other.bias.grad = None
    assert same(before, other)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_states_of_other_optimizers_are_refused_both_ways(make: type[torch.optim.Optimizer]) -> None:
    model = model_of()
    optimizer, plain = combined(model), make(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for one, other in ((optimizer, plain), (plain, optimizer)):
        with pytest.raises(ValueError, match="different number of parameter groups"):
            one.load_state_dict(other.state_dict())


def test_a_state_that_the_optimizers_have_already_is_kept() -> None:
    model, other = model_of(), model_of()
    for trained, late in ((model, True), (other, False)):
        parts = combined(trained).optimizers
        optimizer = None if late else CombinedOptimizer(parts)
        train(trained, *parts)
        train(trained, optimizer or CombinedOptimizer(parts), seed=1)
    assert same(model, other)


def test_a_copy_is_whole_and_its_own() -> None:
    model = model_of()
    optimizer = combined(model)
    train(model, optimizer)
    other, copied = deepcopy((model, optimizer))
    train(other, copied, seed=1)
    assert not same(model, other)
    train(model, optimizer, seed=1)
    assert same(model, other)


def test_a_parameter_in_two_of_them_is_refused() -> None:
    model = model_of()
    parts = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD([model.bias], lr=0.1)]
    with pytest.raises(ValueError, match="more than one parameter group"):
        CombinedOptimizer(parts)


def test_a_closure_is_called_once_with_gradients_on() -> None:
    model = model_of()
    losses = []

    def closure() -> torch.Tensor:
        losses.append(model(torch.ones(1, 3)).sum())
        return losses[-1]

    assert combined(model).step(closure) is losses[0]
    assert len(losses) == 1 and losses[0].requires_grad
